"""Values of parameters in the dialects that write strings without quotation marks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from services.tokenizer.dialects.schema import STRING_ONLY
from services.tokenizer.fence.parameters import Parameter
from services.tokenizer.fence.program import (
    NOTHING,
    Branch,
    Choose,
    Grammar,
    Literal,
    Node,
    Raw,
    Relaxed,
    Value,
    is_prefix_free,
    sequence,
)
from services.tokenizer.fence.schemas import TextRule, encodes, keywords_of, literals_of, text_rule, without_strings

_INTEGER = "(?:0|-?[1-9][0-9]*)"
_NUMBER = rf"(?:{_INTEGER}|-?(?:0|[1-9][0-9]*)\.[0-9]*[1-9])"
_KIND_BY_WORD = {"true": "boolean", "false": "boolean", "null": "null"}
_SCALARS = frozenset({"integer", "number", "boolean", "null"})


class ValueWriter:
    """Writes the values of one program; ``relaxed`` is what they leave out of their schemas."""

    def __init__(
        self,
        after: str,
        forbidden: Sequence[str] = (),
        *,
        spelling: Callable[[str], str] | None = None,
        reserved: Callable[[str], bool] = lambda text: False,
    ) -> None:
        """``after`` ends a value; ``forbidden`` cannot stand in one.

        ``spelling``: of JSON's ``true``, ``false`` and ``null`` as a value, where a dialect has its own. ``reserved``:
        whether a string cannot stand as it is.
        """
        self._after = after
        self._forbidden = tuple(forbidden)
        self._spelling = spelling
        self._reserved = reserved
        self.relaxed: list[Relaxed] = []

    def untyped(self, parameter: Parameter) -> Node:
        """Where nothing marks a value's type, and the schema decides."""
        types = parameter.read_types
        if types == STRING_ONLY:
            return self.text(parameter)
        listed = literals_of(parameter.schema, parameter.root)
        if "string" in types:
            chosen = None if listed is None else self._choose([self._spelt(value) for value in listed])
            if chosen is not None:
                return chosen
            # Any text is a string, and any JSON of the other types is text.
            self._relax(parameter, keywords_of(parameter.schema, parameter.root))
            return self._raw(parameter, TextRule())
        if self._spelling is not None and types & {"boolean", "null"}:
            return self._spelt_scalar(parameter, listed)
        return self._json(parameter, parameter.json_schema())

    def text(self, parameter: Parameter) -> Node:
        """A string."""
        grammar = parameter.grammar
        if grammar is not None:
            return sequence(Grammar(grammar.syntax, grammar.text, parameter.place), Literal(self._after))
        rule = text_rule(parameter.schema, parameter.root)
        if rule.choices is not None:
            chosen = self._choose([choice for choice in rule.choices if not self._reserved(choice)])
            if chosen is not None:
                return chosen
            rule = TextRule(dropped=("enum",))
        self._relax(parameter, rule.dropped)
        return self._raw(parameter, rule)

    def other(self, parameter: Parameter) -> Node:
        """Anything but a string, as JSON."""
        part = without_strings(parameter.schema, parameter.root) if "string" in parameter.types else None
        return self._json(parameter, parameter.json_schema(part))

    def _json(self, parameter: Parameter, json_schema: str) -> Node:
        forbidden = tuple(dict.fromkeys((self._after.strip(), *self._forbidden)))
        return Value(json_schema, parameter.place, self._after, forbidden=forbidden)

    def _raw(self, parameter: Parameter, rule: TextRule) -> Raw:
        return Raw(self._after, parameter.place, rule.min_chars, rule.max_chars, rule.pattern, self._forbidden)

    def _spelt_scalar(self, parameter: Parameter, listed: list[object] | None) -> Node:
        """With ``true``, ``false`` or ``null`` among the values, which the dialect spells in its own way."""
        assert self._spelling is not None
        chosen = None if listed is None else self._choose([self._spelt(value) for value in listed])
        if chosen is not None:
            return chosen
        if not parameter.read_types <= _SCALARS:
            # A container has no other spelling, so null beside one is JSON's.
            return self._json(parameter, parameter.json_schema())
        words = [self._spelling(word) for word, kind in _KIND_BY_WORD.items() if kind in parameter.types]
        if "number" in parameter.types:
            words.append(_NUMBER)
        elif "integer" in parameter.types:
            words.append(_INTEGER)
        self._relax(parameter, keywords_of(parameter.schema, parameter.root))
        return Raw(self._after, parameter.place, pattern="|".join(words))

    def _spelt(self, value: object) -> str:
        if isinstance(value, str):
            return value
        text = json.dumps(value, ensure_ascii=False)
        return self._spelling(text) if self._spelling is not None else text

    def _choose(self, texts: Sequence[str]) -> Choose | None:
        """One of ``texts``; None where they cannot be told apart, or none of them can be written."""
        ends = (self._after, *self._forbidden)
        written = [text for text in dict.fromkeys(texts) if encodes(text) and not any(end in text for end in ends)]
        keys = [text + self._after for text in written]
        if not keys or (len(keys) > 1 and not is_prefix_free(keys)):
            return None
        return Choose(tuple(Branch(key, NOTHING) for key in keys))

    def _relax(self, parameter: Parameter, keywords: Sequence[str]) -> None:
        self.relaxed.extend(Relaxed(parameter.place, keyword) for keyword in keywords)
