"""Values as grammars in the library's own language, with the joints around them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import llguidance

from services.engine.fence.program import Grammar, GrammarSyntax, Raw, Value

_MAX_GRAMMAR_CHARS = 64 * 1024
_JSON_OPTIONS = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False, "lenient": True}
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$/&~#-]")


@dataclass(frozen=True, slots=True)
class JsonRule:
    """A JSON value by schema."""

    schema: str
    before: str
    after: str

    @classmethod
    def of(cls, schema: str, joint: bytes, tails: tuple[bytes, ...]) -> JsonRule:
        """``joint`` before it, and one of ``tails`` behind it."""
        schema = {"true": "{}", "false": '{"enum": []}'}.get(schema, schema)
        options = json.dumps({"x-guidance": _JSON_OPTIONS})
        schema = options if schema == "{}" else f"{schema[:-1]}, {options[1:]}"
        return cls(schema, _before(joint), _after(tails))

    @property
    def grammar(self) -> str:
        """Of this value alone."""
        return llguidance.LLMatcher.grammar_from_lark(self.numbered(""))

    def numbered(self, number: int | str) -> str:
        """The rules of one value among several; the first is ``start<number>``."""
        return f"start{number}: {self.before}value{number}{self.after}\nvalue{number}: %json {self.schema}"


def grammar_of(node: Value | Raw | Grammar, joint: bytes, tails: tuple[bytes, ...], end: str) -> str | None:
    """Of a node without a JSON schema; None for what is too large. ``end``: the terminator that is raw text's own."""
    before, after = _before(joint), _after(tails)
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


def _before(joint: bytes) -> str:
    return f"{_quoted(joint.decode())} " if joint else ""


def _after(tails: tuple[bytes, ...]) -> str:
    texts = [_quoted(tail.decode()) for tail in tails if tail]
    if not texts:
        return ""
    return f" ({' | '.join(texts)})" + ("?" if b"" in tails else "")


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
