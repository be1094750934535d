"""Strings that remember where they end up in a rendered template.

A template builds a prompt out of its own text and of what users, tools and models said. Which characters are whose
decides where an answer's exact ids may stand. A ``Marked`` string behaves as its plain text wherever a template looks
at it, and leaves invisible marks around its pieces where it is written out. Whatever an operation does not know how to
carry on loses its marks, never its text; the caller checks that what it needs is marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsIndex

# Noncharacters: Unicode promises that they never stand in text that is exchanged.
_OPEN, _NAMED, _CLOSE = "\ufdd0", "\ufdd1", "\ufdd2"
_MARKS = (_OPEN, _NAMED, _CLOSE)
# Names are spelt in tag characters, which mirror ASCII, so that no template replaces a part of a name.
_TAGS = 0xE0000
_PIECE = re.compile(f"{_OPEN}([\U000e0000-\U000e007f]+){_NAMED}([^{_OPEN}{_NAMED}{_CLOSE}]*){_CLOSE}")

_Run = tuple[str, str | None]
"""Text, and the name that it is marked with."""


@dataclass(frozen=True, slots=True)
class MarkedRange:
    """Characters [start, end) of a rendered text that come from the string marked ``name``."""

    name: str
    start: int
    end: int


class Marked(str):
    """A plain string to everyone but ``str()``, ``format`` and concatenation, which carry the marks."""

    __slots__ = ("_runs",)
    _runs: tuple[_Run, ...]

    def __new__(cls, text: str) -> Marked:
        """``text`` with the marks that are written in it, or carried by it."""
        return Marked._make(Marked._runs_of(text))

    @staticmethod
    def of(text: str, name: str) -> Marked:
        """``text`` marked with a ``name``, which is plain ASCII. An empty text has a place too."""
        return Marked._make(((text, name),))

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Written pieces as one string that has their marks; plain where there are none, or torn ones."""
        written = "".join(pieces)
        runs = _read(written) if holds_marks([written]) else None
        return written if runs is None else Marked._make(runs)

    @staticmethod
    def _make(runs: tuple[_Run, ...]) -> Marked:
        marked = str.__new__(Marked, "".join(text for text, _ in runs))
        marked._runs = runs
        return marked

    @staticmethod
    def _runs_of(value: str) -> tuple[_Run, ...]:
        """Of a string that may hold written marks."""
        if isinstance(value, Marked):
            return value._runs
        return (_read(value) if holds_marks([value]) else None) or ((value, None),)

    def _cut(self, start: int, end: int) -> Marked:
        """Characters [start, end), each marked as it is here; what remains of a marked text is marked, if empty too."""
        names = {name for _, name in self._runs}
        if start >= end:
            return Marked._make((("", names.pop() if len(names) == 1 else None),))
        runs: list[_Run] = []
        position = 0
        for text, name in self._runs:
            part = text[max(start - position, 0) : max(end - position, 0)]
            if part:
                runs.append((part, name))
            position += len(text)
        return Marked._make(tuple(runs))

    def __str__(self) -> str:
        return "".join(text if name is None else _write(text, name) for text, name in self._runs)

    def __format__(self, spec: str) -> str:
        return format(_plain(self), spec) if spec else str(self)

    def __add__(self, other: str) -> Marked:
        return Marked._make((*self._runs, *Marked._runs_of(other)))

    def __radd__(self, other: str) -> Marked:
        return Marked._make((*Marked._runs_of(other), *self._runs))

    def __getitem__(self, key: SupportsIndex | slice) -> Marked:
        if isinstance(key, slice):
            start, end, step = key.indices(len(self))
            if step == 1:
                return self._cut(start, end)
        return Marked(str.__getitem__(self, key))

    def strip(self, chars: str | None = None, /) -> Marked:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> Marked:
        return self._cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> Marked:
        return self._cut(0, len(str.rstrip(self, chars)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut_out(str.split(self, sep, maxsplit), "" if sep is None else sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._cut_out(str.rsplit(self, sep, maxsplit), "" if sep is None else sep)

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> Marked:
        text = str.replace(self, old, new, count)
        names = {name for _, name in self._runs}
        return Marked._make(((text, names.pop() if len(names) == 1 else None),))

    def _cut_out(self, pieces: list[str], separator: str) -> list[str]:
        cut: list[str] = []
        position = 0
        for piece in pieces:
            # Without a separator pieces are words: the next one that is found is the next one.
            start = position if separator else str.index(self, piece, position)
            cut.append(self._cut(start, start + len(piece)))
            position = start + len(piece) + len(separator)
        return cut


def holds_marks(texts: Iterable[str]) -> bool:
    """Whether any text contains the characters that marks are made of; such texts cannot be marked."""
    return any(mark in text for text in texts for mark in _MARKS)


def unmark(written: str) -> tuple[str, tuple[MarkedRange, ...]] | None:
    """The text without its marks, and the marked ranges in order; None when marks are torn or nested."""
    runs = _read(written)
    if runs is None:
        return None
    ranges: list[MarkedRange] = []
    num_chars = 0
    for text, name in runs:
        if name is not None:
            ranges.append(MarkedRange(name, num_chars, num_chars + len(text)))
        num_chars += len(text)
    return "".join(text for text, _ in runs), tuple(ranges)


def _write(text: str, name: str) -> str:
    return f"{_OPEN}{''.join(chr(_TAGS + ord(char)) for char in name)}{_NAMED}{text}{_CLOSE}"


def _read(written: str) -> tuple[_Run, ...] | None:
    runs: list[_Run] = []
    position = 0
    for piece in _PIECE.finditer(written):
        runs.append((written[position : piece.start()], None))
        runs.append((piece[2], "".join(chr(ord(char) - _TAGS) for char in piece[1])))
        position = piece.end()
    runs.append((written[position:], None))
    if holds_marks(text for text, name in runs if name is None):
        return None
    return tuple((text, name) for text, name in runs if text or name is not None) or (("", None),)


def _plain(value: str) -> str:
    return str.__str__(value)
