"""Turns the value of ``arguments`` into a call's arguments while it arrives."""

from __future__ import annotations

import re

from services.tokenizer.dialects.json_reader import JsonReader, JsonState
from services.tokenizer.dialects.json_text import StringDecoder, decode_string, is_string, quote, split_object
from services.tokenizer.dialects.schema import CUSTOM_PARAMETER

_CUSTOM_BEGINNING = re.compile(r"\s*\{\s*" + re.escape(quote(CUSTOM_PARAMETER)) + r'\s*:\s*(?=")')


class ArgumentsReader:
    """Reads known JSON in pieces. What ``push`` and ``finish`` return concatenates to the arguments.

    A function's are the object as it is written, or what a string holds that has been put around it, or ``{}`` for
    null. A custom tool's are the text of the object's one parameter, or the string that stands in its place.
    """

    def __init__(self, *, is_custom: bool) -> None:
        self._is_custom = is_custom
        self._undecided = ""
        self._decoder: _StringReader | None = None
        self._inner = JsonReader()
        self._is_passing = False
        self._has_text = False

    def push(self, text: str) -> str:
        """More of the value; the arguments as far as they are certain."""
        if self._is_passing:
            return text
        if self._decoder is not None:
            return self._decode(text)
        self._undecided += text
        begun = self._undecided.lstrip()
        if begun.startswith('"'):
            return self._begin_string(begun)
        if self._is_custom:
            beginning = _CUSTOM_BEGINNING.match(self._undecided)
            return self._begin_string(self._undecided[beginning.end() :]) if beginning else ""
        if begun.startswith("{"):
            self._is_passing, self._undecided = True, ""
            return begun
        return ""

    def finish(self) -> str | None:
        """The value is whole: the last piece; None where it is not what a call's arguments can be."""
        if self._is_passing or (self._is_custom and self._decoder is not None):
            return ""
        if self._is_custom:
            return self._find_input()
        if self._decoder is not None:
            if not self._has_text:
                return "{}"
            return "" if self._inner.finish() is JsonState.COMPLETE else None
        return "{}" if self._undecided.strip() == "null" else None

    def _begin_string(self, text: str) -> str:
        self._decoder, self._undecided = _StringReader(), ""
        return self._decode(text)

    def _decode(self, text: str) -> str:
        assert self._decoder is not None
        decoded = self._decoder.push(text)
        if self._is_custom:
            return decoded
        return self._check_inner(decoded)

    def _check_inner(self, decoded: str) -> str:
        """Let the object in a string through; whatever is no object breaks the inner value."""
        if not self._has_text:
            decoded = decoded.lstrip()
            if not decoded:
                return ""
            self._has_text = True
            if not decoded.startswith("{"):
                self._inner.state = JsonState.BROKEN
        end = self._inner.push(decoded)
        if decoded[end:].strip():
            self._inner.state = JsonState.BROKEN
        return decoded[:end]

    def _find_input(self) -> str | None:
        for member in split_object(self._undecided) or []:
            if member.key == CUSTOM_PARAMETER and is_string(member.value):
                return decode_string(member.value)
        return None


class _StringReader:
    """The characters of a string at the beginning of a text in pieces; whatever follows it is ignored."""

    def __init__(self) -> None:
        self._reader = JsonReader()
        self._decoder = StringDecoder()
        self._is_begun = False
        self._is_over = False

    def push(self, text: str) -> str:
        if self._is_over:
            return ""
        end = self._reader.push(text)
        inside = text[:end]
        if not self._is_begun:
            self._is_begun, inside = True, inside[1:]
        self._is_over = self._reader.state is not JsonState.OPEN
        if not self._is_over:
            return self._decoder.push(inside)
        return self._decoder.push(inside[:-1]) + self._decoder.finish()
