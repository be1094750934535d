"""Values with a grammar to solve: JSON by schema, raw text by pattern, grammars of a caller's own.

Each is a matcher of llguidance over the value and its joints. A matcher is compiled once for a grammar and its joints,
and copied for every value. Its rows are narrowed to canonical JSON and to what is not forbidden.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import llguidance

from services.engine.fence.library_grammar import JsonRule, grammar_of
from services.engine.fence.program import Grammar, GrammarSyntax, Raw, Value
from services.engine.fence.schema import JsonSchema, Strictness
from services.engine.fence.text_automaton import TextAutomaton
from services.engine.fence.token_rows import TokenRows

_MAX_CACHED = 1_024
_MAX_TOGETHER = 64
_LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=1_000_000, step_lexer_fuel=200_000, max_lexer_states=50_000, max_grammar_size=200_000
)
"""About 20 ms to build, 15 ms for a step, 64 MiB of lexer states."""


@dataclass(frozen=True, slots=True)
class CompiledValue:
    """A grammar ready to match."""

    matcher: llguidance.LLMatcher
    """Before the joint; never consumes itself."""
    joint: bytes
    tails: tuple[bytes, ...]
    """What the grammar has behind the value; one of them."""
    is_canonical: bool
    forbidden: TextAutomaton | None
    """Narrows the grammar: texts that may not be in it, and of raw text the terminator that may come only once."""
    dropped: tuple[tuple[str, str], ...]
    """(pointer into the schema, keyword) of what is not enforced."""
    strictness: Strictness
    has_open_objects: bool
    """Objects in it may have keys that no schema names."""


@dataclass(frozen=True, slots=True)
class _Library:
    """What the library made of one grammar."""

    matcher: llguidance.LLMatcher
    ignored: tuple[str, ...] = ()
    """Keywords of its schema that it does not know."""


class ValueCompiler:
    """Compiles values for one tokenizer; keeps what it has compiled."""

    def __init__(self, rows: TokenRows) -> None:
        self.rows = rows
        self._tokens = rows.tokens
        self._lock = Lock()
        """Programs are compiled beside the step loop, which compiles what they left."""
        self._grammars: dict[str, _Library] = {}
        self._schemas: dict[str, JsonSchema] = {}
        self._automata: dict[tuple[str, bool, tuple[str, ...], bool], TextAutomaton] = {}

    def automaton(self, end: str, stops_at_end: bool, forbidden: Sequence[str], counts_chars: bool) -> TextAutomaton:
        """Of well-formed text up to ``end``."""
        key = (end, stops_at_end, tuple(forbidden), counts_chars)
        automaton = self._automata.get(key)
        if automaton is None:
            automaton = TextAutomaton(
                self._tokens,
                self.rows.utf8,
                end=end.encode(),
                stops_at_end=stops_at_end,
                forbidden=[text.encode() for text in forbidden],
                counts_chars=counts_chars,
            )
            self._keep(self._automata, key, automaton)
        return automaton

    def compile(
        self,
        node: Value | Raw | Grammar,
        joint: bytes,
        tails: tuple[bytes, ...],
        end: str = "",
        *,
        stops_at_end: bool = False,
        strictness: Strictness = Strictness.WHOLE,
    ) -> CompiledValue | None:
        """At most as strict as ``strictness``; None where not even the weakest form of the grammar compiles.

        ``end``, ``stops_at_end``: of ``Raw``, the terminator that is its own, and whether the first one counts.
        """
        schema = self._schema(node)
        for level in range(strictness, -1, -1) if schema is not None else (strictness,):
            strictness = Strictness(level)
            if schema is None:
                grammar = grammar_of(node, joint, tails, end)
            else:
                grammar = JsonRule.of(schema.text(strictness), joint, tails).grammar
            found = self._library(grammar)
            if found is None:
                continue
            dropped = [] if schema is None else schema.dropped(strictness) + _places(found.ignored, schema)
            is_json = isinstance(node, Value) or schema is not None
            is_canonical = node.is_canonical if isinstance(node, Value) else is_json
            forbidden = None
            if isinstance(node, Raw):
                forbidden = self.automaton(end, stops_at_end, node.forbidden, False)
            elif isinstance(node, Value) and node.forbidden:
                forbidden = self.automaton("", False, node.forbidden, False)
            is_open = schema is not None and schema.has_open_objects(strictness)
            return CompiledValue(
                found.matcher, joint, tails, is_canonical, forbidden, tuple(dropped), strictness, is_open
            )
        return None

    def compile_together(
        self, wanted: Iterable[tuple[Value | Raw | Grammar, bytes, tuple[bytes, ...]]], deadline: float
    ) -> None:
        """Make ready what ``compile`` will be asked for (node, joint, tails), until ``deadline`` (monotonic, seconds).

        Setting up the library costs more than a schema: one grammar has all of them, each behind a text of its own.
        What does not compile along with others, or not without warnings, is left to ``compile``.
        """
        found: dict[str, tuple[JsonRule, JsonSchema]] = {}
        for node, joint, tails in wanted:
            schema = self._schema(node)
            if schema is not None:
                rule = JsonRule.of(schema.text(Strictness.WHOLE), joint, tails)
                found.setdefault(rule.grammar, (rule, schema))
        missing = [one for grammar, one in found.items() if grammar not in self._grammars]
        pending = [missing[at : at + _MAX_TOGETHER] for at in range(0, len(missing), _MAX_TOGETHER)]
        while pending and time.monotonic() < deadline:
            some = pending.pop()
            if len(some) > 1 and not self._compile_some(some):
                middle = len(some) // 2
                pending += [some[middle:], some[:middle]]

    def forget(self, matcher: llguidance.LLMatcher) -> None:
        """Compile it anew when it is asked for again.

        What a matcher and its copies have met grows one automaton between them; once that is full, all of them fail.
        """
        with self._lock:
            self._grammars = {text: one for text, one in self._grammars.items() if one.matcher is not matcher}

    def _compile_some(self, some: Sequence[tuple[JsonRule, JsonSchema]]) -> bool:
        """False where not all of them fit into one grammar."""
        lines = ["start: " + " | ".join(f'"{number};" start{number}' for number in range(len(some)))]
        lines += [rule.numbered(number) for number, (rule, _) in enumerate(some)]
        grammar = llguidance.LLMatcher.grammar_from_lark("\n".join(lines))
        whole = llguidance.LLMatcher(self._tokens.lltokenizer, grammar, log_level=0, limits=_LIMITS)
        if whole.is_error():
            return False
        warned = _ignored_keywords(whole)
        for number, (rule, schema) in enumerate(some):
            # Only alone it shows whether a warning is about this one.
            if not any(schema.places(keyword) for keyword in warned):
                matcher, ids = whole.deep_copy(), self._tokens.encode(f"{number};")
                if matcher.try_consume_tokens(ids) == len(ids):
                    self._keep(self._grammars, rule.grammar, _Library(matcher))
        return True

    def _schema(self, node: Value | Raw | Grammar) -> JsonSchema | None:
        text = _schema_text(node)
        if text is None:
            return None
        schema = self._schemas.get(text)
        if schema is None:
            schema = JsonSchema(text)
            self._keep(self._schemas, text, schema)
        return schema

    def _library(self, grammar: str | None) -> _Library | None:
        if grammar is None:
            return None
        found = self._grammars.get(grammar)
        if found is None:
            matcher = llguidance.LLMatcher(self._tokens.lltokenizer, grammar, log_level=0, limits=_LIMITS)
            found = _Library(matcher, tuple(_ignored_keywords(matcher)))
            self._keep(self._grammars, grammar, found)
        return None if found.matcher.is_error() else found

    def _keep(self, cache: dict[Any, Any], key: Any, value: object) -> None:
        with self._lock:
            if len(cache) >= _MAX_CACHED:
                cache.pop(next(iter(cache)))
            cache[key] = value


def _schema_text(node: Value | Raw | Grammar) -> str | None:
    match node:
        case Value():
            return node.json_schema
        case Grammar(GrammarSyntax.JSON_SCHEMA, text):
            return text
        case _:
            return None


def _places(keywords: Iterable[str], schema: JsonSchema) -> list[tuple[str, str]]:
    return [(place, keyword) for keyword in keywords for place in schema.places(keyword) or [""]]


def _ignored_keywords(matcher: llguidance.LLMatcher) -> list[str]:
    """What the library says it ignores."""
    found: dict[str, None] = {}
    for warning in matcher.get_grammar_warnings():
        subject, _, rest = warning.partition(": ")
        if subject == "Unimplemented keys":
            # Behind the list stands how often it was met, if more than once.
            found.update((str(key), None) for key in ast.literal_eval(rest[: rest.rindex("]") + 1]))
        else:
            found["format" if subject == "Unknown format" else warning.split()[0]] = None
    return list(found)
