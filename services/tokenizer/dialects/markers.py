"""Finds markers in text that arrives in pieces, without ever letting half of one through.

The answer does not depend on how the text is cut: it is the leftmost match, and of several that start there the
longest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase

_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)


@dataclass(frozen=True, slots=True)
class Split:
    """``before + (marker or "") + after`` is the whole text."""

    before: str
    """Certainly no part of a marker."""
    marker: str | None
    """As spelt in the text; None where no marker is certain yet."""
    after: str
    """What follows the marker; without one, the held suffix that may still become a marker."""


class Markers:
    """A fixed set of markers; immutable, so parsers share it."""

    def __init__(self, markers: Iterable[str], *, ignore_case: bool = False) -> None:
        """``ignore_case`` concerns ASCII letters only. No marker is empty."""
        self._ignore_case = ignore_case
        spelt = {self._fold(marker) for marker in markers}
        self._markers = tuple(sorted(spelt, key=lambda marker: (-len(marker), marker)))
        self._pattern = re.compile("|".join(map(re.escape, self._markers)))
        self._longest = len(self._markers[0])
        self._first_chars = frozenset(marker[0] for marker in self._markers)

    def with_more(self, markers: Iterable[str]) -> Markers:
        """These and others."""
        return Markers([*self._markers, *markers], ignore_case=self._ignore_case)

    def split(self, text: str, *, is_final: bool = False) -> Split:
        """Cut ``text`` at its first marker. ``is_final`` says that nothing follows, so that nothing is held.

        Cost: linear in ``text``. The held suffix is shorter than the longest marker, unless a marker in it waits
        for a longer one that starts earlier or at the same place.
        """
        folded = self._fold(text)
        match = self._pattern.search(folded)
        if not is_final:
            held_from = self._held_from(folded)
            if held_from < len(text) and (match is None or held_from <= match.start()):
                return Split(text[:held_from], None, text[held_from:])
        if match is None:
            return Split(text, None, "")
        return Split(text[: match.start()], text[match.start() : match.end()], text[match.end() :])

    def _held_from(self, folded: str) -> int:
        """Where the longest suffix starts that is the beginning, and not the whole, of a marker."""
        for start in range(max(0, len(folded) - self._longest + 1), len(folded)):
            if folded[start] not in self._first_chars:
                continue
            suffix = folded[start:]
            if any(len(marker) > len(suffix) and marker.startswith(suffix) for marker in self._markers):
                return start
        return len(folded)

    def _fold(self, text: str) -> str:
        return text.translate(_LOWER) if self._ignore_case else text
