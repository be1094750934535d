"""Parsers that take each dialect's canonical form and nothing else; they share no code with the dialects.

Each turns a block into calls, names with (parameter, value) pairs, and raises AssertionError for any other text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from bench.fences.agent_tools import Schema, options_of

_ESCAPES = re.compile(r"(\\\\)|\\u007f")
Pairs = list[tuple[str, Any]]
Calls = list[tuple[str, Pairs]]


class Cursor:
    """Reads a text from front to back."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def take(self, text: str) -> None:
        assert self._text.startswith(text, self._at), f"{text!r} expected at {self._text[self._at :][:60]!r}"
        self._at += len(text)

    def has(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def until(self, end: str) -> str:
        found = self._text.index(end, self._at)
        taken = self._text[self._at : found]
        self._at = found + len(end)
        return taken

    def match(self, pattern: str) -> re.Match[str]:
        found = re.compile(pattern, re.DOTALL).match(self._text, self._at)
        assert found is not None, f"{pattern} expected at {self._text[self._at :][:60]!r}"
        self._at = found.end()
        return found

    def json(self) -> Any:
        """A JSON value whose text is what ``json.dumps`` makes of it."""
        value, end = json.JSONDecoder(object_pairs_hook=_unique).raw_decode(self._text, self._at)
        text, self._at = self._text[self._at : end], end
        assert_canonical(text)
        return value

    @property
    def is_over(self) -> bool:
        return self._at == len(self._text)


def assert_canonical(text: str) -> None:
    # The grammar library insists on escaping U+007F, and nobody else does. Behind two backslashes stands no escape.
    plain = _ESCAPES.sub(lambda found: found[1] or "\x7f", text)
    assert json.dumps(json.loads(text), ensure_ascii=False) == plain, text


def _unique(pairs: Pairs) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), "a key twice"
    return dict(pairs)


def parse_dsml(text: str, tools: Mapping[str, Schema]) -> Calls:
    cursor, calls = Cursor(text), Calls()
    cursor.take("\n\n<｜DSML｜tool_calls>\n")
    while True:
        name = cursor.match('<｜DSML｜invoke name="([^"]+)">\n')[1]
        pairs = Pairs()
        while True:
            if not pairs and cursor.has("\n</｜DSML｜invoke>"):
                break
            key, marked = cursor.match('<｜DSML｜parameter name="([^"]+)" string="(true|false)">').groups()
            if marked == "true":
                pairs.append((key, cursor.until("</｜DSML｜parameter>")))
            else:
                pairs.append((key, cursor.json()))
                cursor.take("</｜DSML｜parameter>")
            cursor.take("\n")
            if cursor.has("</｜DSML｜invoke>"):
                break
        calls.append((name, pairs))
        cursor.take("\n")
        if cursor.has("</｜DSML｜tool_calls>"):
            assert cursor.is_over
            return calls


def parse_chatml_json(text: str, tools: Mapping[str, Schema]) -> Calls:
    cursor, calls = Cursor(text), Calls()
    while True:
        cursor.take("<tool_call>\n")
        call = cursor.json()
        assert list(call) == ["name", "arguments"]
        calls.append((call["name"], list(call["arguments"].items())))
        cursor.take("\n</tool_call>")
        if cursor.is_over:
            return calls
        cursor.take("\n")


def parse_qwen_xml(text: str, tools: Mapping[str, Schema]) -> Calls:
    cursor, calls = Cursor(text), Calls()
    while True:
        cursor.take("<tool_call>\n")
        calls.append(_qwen_call(cursor, tools))
        cursor.take("\n</tool_call>")
        if cursor.is_over:
            return calls
        cursor.take("\n")


def parse_qwen_xml_untagged(text: str, tools: Mapping[str, Schema]) -> Calls:
    """Without the first ``<tool_call>``; each of its tags behind that may be missing with its line."""
    cursor, calls = Cursor(text), Calls()
    while True:
        calls.append(_qwen_call(cursor, tools))
        cursor.has("\n</tool_call>")
        if cursor.is_over:
            return calls
        cursor.take("\n")
        cursor.has("<tool_call>\n")


def _qwen_call(cursor: Cursor, tools: Mapping[str, Schema]) -> tuple[str, Pairs]:
    name = cursor.match("<function=([^>]+)>\n")[1]
    pairs = Pairs()
    while not cursor.has("</function>"):
        key = cursor.match("<parameter=([^>]+)>\n")[1]
        pairs.append((key, _typed_value(cursor.until("\n</parameter>\n"), tools[name]["properties"][key])))
    return name, pairs


def parse_glm_xml(text: str, tools: Mapping[str, Schema]) -> Calls:
    cursor, calls = Cursor(text), Calls()
    while not cursor.is_over:
        name = cursor.match("\n<tool_call>([^\n<]+)\n")[1]
        pairs = Pairs()
        while not cursor.has("</tool_call>"):
            key = cursor.match("<arg_key>([^<]+)</arg_key>\n<arg_value>")[1]
            pairs.append((key, _typed_value(cursor.until("</arg_value>\n"), tools[name]["properties"][key])))
        calls.append((name, pairs))
    assert calls
    return calls


def _typed_value(text: str, schema: Schema) -> Any:
    string, other = options_of(schema)
    if string is not None and other is None:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        assert string is not None, text
        return text
    if string is None:
        assert_canonical(text)
        return value
    assert other is not None
    is_other = value is None if other["type"] == "null" else type(value) is int
    return value if is_other else text


Parse = Callable[[str, Mapping[str, Schema]], Calls]
