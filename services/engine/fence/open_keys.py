"""No key twice in objects whose keys a schema leaves open; a grammar cannot remember what it has seen.

Follows a JSON value byte by byte. The value is known to be JSON in canonical spelling, so equal keys are spelt alike.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from enum import Enum, auto

_QUOTE, _BACKSLASH = ord('"'), ord("\\")


class _Place(Enum):
    VALUE = auto()
    """Before a value, or in an array's beginning."""
    STRING = auto()
    KEY = auto()
    BEFORE_KEY = auto()
    AFTER = auto()
    """Behind a value, or in one that is no string."""


class OpenKeys:
    """The keys of all objects that are open where the value stands."""

    __slots__ = ("_is_escaped", "_key", "_place", "_seen", "_separator")

    def __init__(self) -> None:
        self._seen: list[frozenset[bytes] | None] = []
        """Of each container that is open, outermost first; None for arrays."""
        self._place = _Place.VALUE
        self._is_escaped = False
        self._key = b""
        """As far as it has been written."""
        self._separator = b'"'
        """What is still to come before a key's first character."""

    def copy(self) -> OpenKeys:
        """One that can be pushed by itself."""
        other = copy.copy(self)
        other._seen = self._seen.copy()
        return other

    def push(self, text: bytes) -> None:
        """More of the value."""
        for byte in text:
            if self._place is _Place.STRING or self._place is _Place.KEY:
                self._push_inside(byte)
            else:
                self._push_between(byte)

    def repeating(self) -> Iterator[bytes]:
        """The texts with which a key would come again."""
        seen = self._seen[-1] if self._seen else None
        if not seen:
            return
        match self._place:
            case _Place.KEY:
                written = len(self._key)
                yield from (key[written:] + b'"' for key in seen if key.startswith(self._key))
            case _Place.BEFORE_KEY:
                yield from (self._separator + key + b'"' for key in seen)
            case _Place.AFTER:
                yield from (b', "' + key + b'"' for key in seen)
            case _:
                pass

    def _push_inside(self, byte: int) -> None:
        if byte == _QUOTE and not self._is_escaped:
            if self._place is _Place.KEY:
                self._seen[-1] = (self._seen[-1] or frozenset()) | {self._key}
                self._place = _Place.VALUE
            else:
                self._place = _Place.AFTER
            return
        self._is_escaped = byte == _BACKSLASH and not self._is_escaped
        if self._place is _Place.KEY:
            self._key += bytes([byte])

    def _push_between(self, byte: int) -> None:
        match chr(byte):
            case '"':
                is_key = self._place is _Place.BEFORE_KEY
                self._place, self._key = (_Place.KEY if is_key else _Place.STRING), b""
            case "{":
                self._seen.append(frozenset())
                self._place, self._separator = _Place.BEFORE_KEY, b'"'
            case "[":
                self._seen.append(None)
                self._place = _Place.VALUE
            case "}" | "]":
                if self._seen:
                    self._seen.pop()
                self._place = _Place.AFTER
            case ",":
                in_object = bool(self._seen) and self._seen[-1] is not None
                self._place, self._separator = (_Place.BEFORE_KEY if in_object else _Place.VALUE), b' "'
            case " ":
                self._separator = b'"'
            case ":":
                pass
            case _:
                self._place = _Place.AFTER
