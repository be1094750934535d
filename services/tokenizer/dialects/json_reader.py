"""Finds where a JSON value ends while its text is still arriving."""

from __future__ import annotations

import re
from enum import Enum, auto

MAX_DEPTH = 256
"""Deeper nesting is not accepted: comparing values recurses."""

_SPACES = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE_BEGUN = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_SCALAR_PART = re.compile(r"[A-Za-z0-9+\-.]*")
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


class JsonState(Enum):
    """Of a value that is being read."""

    OPEN = auto()
    COMPLETE = auto()
    BROKEN = auto()


class _Next(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    STRING = auto()
    ESCAPE = auto()
    SCALAR = auto()


class JsonReader:
    """Follows one JSON value (RFC 8259) as it arrives; finds where it ends. Constant work a character."""

    def __init__(self) -> None:
        self.state = JsonState.OPEN
        self._next = _Next.VALUE
        self._open: list[str] = []
        """Closers of the containers around."""
        self._is_key = False
        self._partial = ""
        """The begun escape or scalar."""

    def push(self, text: str, start: int = 0) -> int:
        """Read ``text`` from ``start``; return where reading stopped: at its end, or where the value ended or broke.

        Leading whitespace belongs to the value, whitespace after it does not. A number or a literal ends at the
        first character that cannot be part of it, or with ``finish``.
        """
        position = start
        while self.state is JsonState.OPEN and position < len(text):
            position = self._step(text, position)
        return position

    def finish(self) -> JsonState:
        """Nothing follows: the state with a bare number or literal ended."""
        if self.state is JsonState.OPEN and self._next is _Next.SCALAR and not self._open:
            self._end_scalar()
        elif self.state is JsonState.OPEN:
            self.state = JsonState.BROKEN
        return self.state

    def _step(self, text: str, position: int) -> int:
        match self._next:
            case _Next.STRING:
                return self._read_string(text, position)
            case _Next.ESCAPE:
                return self._read_escape(text, position)
            case _Next.SCALAR:
                return self._read_scalar(text, position)
            case _:
                return self._read_structure(text, position)

    def _read_string(self, text: str, position: int) -> int:
        position = _end_of(_PLAIN, text, position)
        if position == len(text):
            return position
        if text[position] == "\\":
            self._next, self._partial = _Next.ESCAPE, ""
            return position
        if text[position] != '"':
            self.state = JsonState.BROKEN
            return position
        if self._is_key:
            self._next, self._is_key = _Next.COLON, False
        else:
            self._end_value()
        return position + 1

    def _read_escape(self, text: str, position: int) -> int:
        self._partial += text[position]
        if _ESCAPE.fullmatch(self._partial):
            self._next = _Next.STRING
        elif not _ESCAPE_BEGUN.fullmatch(self._partial):
            self.state = JsonState.BROKEN
            return position
        return position + 1

    def _read_scalar(self, text: str, position: int) -> int:
        end = _end_of(_SCALAR_PART, text, position)
        self._partial += text[position:end]
        if end < len(text):
            self._end_scalar()
        return end

    def _end_scalar(self) -> None:
        if _SCALAR.fullmatch(self._partial):
            self._end_value()
        else:
            self.state = JsonState.BROKEN

    def _read_structure(self, text: str, position: int) -> int:
        position = _end_of(_SPACES, text, position)
        if position == len(text):
            return position
        char = text[position]
        if self._next is _Next.COLON and char == ":":
            self._next = _Next.VALUE
        elif self._next is _Next.COMMA_OR_END and char == ",":
            self._next = _Next.KEY if self._open[-1] == "}" else _Next.VALUE
        elif self._next in (_Next.COMMA_OR_END, _Next.KEY_OR_END, _Next.VALUE_OR_END) and char == self._open[-1]:
            self._open.pop()
            self._end_value()
        elif self._next in (_Next.KEY, _Next.KEY_OR_END) and char == '"':
            self._next, self._is_key = _Next.STRING, True
        elif self._next in (_Next.VALUE, _Next.VALUE_OR_END):
            return self._begin_value(char, position)
        else:
            self.state = JsonState.BROKEN
            return position
        return position + 1

    def _begin_value(self, char: str, position: int) -> int:
        if char in "{[" and len(self._open) < MAX_DEPTH:
            self._open.append("}" if char == "{" else "]")
            self._next = _Next.KEY_OR_END if char == "{" else _Next.VALUE_OR_END
        elif char == '"':
            self._next = _Next.STRING
        elif char in "-0123456789tfn":
            self._next, self._partial = _Next.SCALAR, ""
            return position
        else:
            self.state = JsonState.BROKEN
            return position
        return position + 1

    def _end_value(self) -> None:
        if self._open:
            self._next = _Next.COMMA_OR_END
        else:
            self.state = JsonState.COMPLETE


def _end_of(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    assert match is not None
    return match.end()
