"""Values with a grammar to solve: JSON by schema, raw text by pattern, grammars of a caller's own.

Each is a matcher of llguidance over the value and its joints. A matcher is compiled once for a grammar and its joints,
and copied for every value. Its rows are narrowed to canonical JSON and to what is not forbidden.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import llguidance

from services.engine.fence.program import Grammar, GrammarSyntax, Raw, Value
from services.engine.fence.schema import JsonSchema, Strictness
from services.engine.fence.text_automaton import TextAutomaton
from services.engine.fence.token_rows import TokenRows

_MAX_CACHED = 1_024
_MAX_GRAMMAR_CHARS = 64 * 1024
_JSON_OPTIONS = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False, "lenient": True}
_LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=1_000_000, step_lexer_fuel=200_000, max_lexer_states=50_000, max_grammar_size=200_000
)
"""About 20 ms to build, 15 ms for a step, 64 MiB of lexer states."""
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$/&~#-]")


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


class ValueCompiler:
    """Compiles values for one tokenizer; keeps what it has compiled."""

    def __init__(self, rows: TokenRows) -> None:
        self.rows = rows
        self._tokens = rows.tokens
        self._lock = Lock()
        """Programs are compiled beside the step loop, which compiles what they left."""
        self._matchers: dict[str, llguidance.LLMatcher] = {}
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
            matcher = self._matcher(_grammar(node, joint, tails, end, strictness, schema))
            if matcher is None:
                continue
            dropped = [] if schema is None else schema.dropped(strictness) + _unimplemented(matcher, schema)
            is_json = isinstance(node, Value) or schema is not None
            is_canonical = node.is_canonical if isinstance(node, Value) else is_json
            forbidden = None
            if isinstance(node, Raw):
                forbidden = self.automaton(end, stops_at_end, node.forbidden, False)
            elif isinstance(node, Value) and node.forbidden:
                forbidden = self.automaton("", False, node.forbidden, False)
            is_open = schema is not None and schema.has_open_objects(strictness)
            return CompiledValue(matcher, joint, tails, is_canonical, forbidden, tuple(dropped), strictness, is_open)
        return None

    def _schema(self, node: Value | Raw | Grammar) -> JsonSchema | None:
        text = _schema_text(node)
        if text is None:
            return None
        schema = self._schemas.get(text)
        if schema is None:
            schema = JsonSchema(text)
            self._keep(self._schemas, text, schema)
        return schema

    def _matcher(self, grammar: str | None) -> llguidance.LLMatcher | None:
        if grammar is None:
            return None
        matcher = self._matchers.get(grammar)
        if matcher is None:
            matcher = llguidance.LLMatcher(self._tokens.lltokenizer, grammar, log_level=0, limits=_LIMITS)
            self._keep(self._matchers, grammar, matcher)
        return None if matcher.is_error() else matcher

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


def _unimplemented(matcher: llguidance.LLMatcher, schema: JsonSchema) -> list[tuple[str, str]]:
    """What the library says it ignores."""
    found: list[tuple[str, str]] = []
    for warning in matcher.get_grammar_warnings():
        subject, _, rest = warning.partition(": ")
        if subject == "Unimplemented keys":
            # Behind the list stands how often it was met, if more than once.
            keywords = [str(key) for key in ast.literal_eval(rest[: rest.rindex("]") + 1])]
        elif subject == "Unknown format":
            keywords = ["format"]
        else:
            keywords = [warning.split()[0]]
        for keyword in keywords:
            found.extend((place, keyword) for place in schema.places(keyword) or [""])
    return list(dict.fromkeys(found))


def _grammar(
    node: Value | Raw | Grammar,
    joint: bytes,
    tails: tuple[bytes, ...],
    end: str,
    strictness: Strictness,
    schema: JsonSchema | None,
) -> str | None:
    """In the library's form; None for what is too large."""
    before = f"{_quoted(joint.decode())} " if joint else ""
    texts = [_quoted(tail.decode()) for tail in tails if tail]
    after = f" ({' | '.join(texts)})" if texts else ""
    if texts and b"" in tails:
        after += "?"
    if schema is not None:
        text = schema.text(strictness)
        text = {"true": "{}", "false": '{"enum": []}'}.get(text, text)
        options = json.dumps({"x-guidance": _JSON_OPTIONS})
        text = options if text == "{}" else f"{text[:-1]}, {options[1:]}"
        return llguidance.LLMatcher.grammar_from_lark(f"start: {before}value{after}\nvalue: %json {text}")
    if isinstance(node, Raw):
        return llguidance.LLMatcher.grammar_from_lark(f"start: {before}TEXT\nTEXT: {_raw_terminal(node, end)}")
    assert isinstance(node, Grammar)
    if len(node.text) > _MAX_GRAMMAR_CHARS:
        return None
    if node.syntax is GrammarSyntax.REGEX:
        terminal = f"/{llguidance.regex_to_lark(node.text, '')}/"
        return llguidance.LLMatcher.grammar_from_lark(f"start: {before}TEXT{after}\nTEXT: {terminal}")
    outer = {"lark_grammar": f"start: {before}@inner{after}"}
    return json.dumps({"grammars": [outer, {"name": "inner", "lark_grammar": node.text}]})


def _raw_terminal(node: Raw, end: str) -> str:
    """A terminal of the library for the text with its terminator."""
    closing = _escaped(end)
    pattern = node.pattern or ""
    if "|" not in pattern:
        pattern = pattern.removeprefix("^")
        pattern = pattern[:-1] if pattern.endswith("$") and not pattern.endswith("\\$") else pattern
    terms = [f"/(?:{llguidance.regex_to_lark(pattern, 'dw')}){closing}/"]
    if node.min_chars or node.max_chars is not None:
        most = "" if node.max_chars is None else str(node.max_chars)
        terms.append(f"/(?s:.{{{node.min_chars},{most}}}){closing}/")
    return " & ".join(terms)


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: "\\" + found.group(), text).replace("\n", "\\n").replace("\r", "\\r")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
