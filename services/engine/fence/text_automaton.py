"""Text until a terminator: which tokens may come next, one cached row per state.

An automaton over bytes for the terminator and the forbidden texts (Aho & Corasick 1975). Nearly every token is legal
nearly everywhere, so a state's row is that of all text, corrected for the few tokens with which a text could complete:
those that contain one, and those that go on where the state stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from services.engine.fence import utf8
from services.engine.fence.tokens import FenceTokens, Row


@dataclass(frozen=True, slots=True)
class Place:
    """Where a text stands. ``matched`` is the automaton's state, ``char`` that of the character begun."""

    matched: int = 0
    char: int = utf8.START


BEGINNING = Place()


@dataclass(frozen=True, slots=True)
class Step:
    """What a token's text leads to."""

    place: Place
    surplus: bytes | None = None
    """What follows the terminator; None where that has not come."""
    num_chars: int = 0
    """How many more characters the text certainly has (less than none, where some may be the terminator's)."""
    stop: bytes | None = None
    """What ended it, where that is not the terminator."""


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """The tokens that stay inside the text or end exactly with it, and those that go on behind the terminator."""

    row: Row
    crossing: tuple[tuple[int, Step], ...]
    steps: dict[int, Step]
    """Of tokens that differ from what they are at the beginning of a text."""


class TextAutomaton:
    """Immutable but for its caches. Rows are shared: callers copy before they write."""

    def __init__(
        self,
        tokens: FenceTokens,
        base_rows: Sequence[Row],
        *,
        end: bytes,
        stops_at_end: bool,
        stops: Sequence[bytes] = (),
        forbidden: Sequence[bytes] = (),
        counts_chars: bool = False,
    ) -> None:
        """``base_rows``: what is legal by character state; only one where texts need not be UTF-8.

        ``stops_at_end``: the first ``end`` ends the text; else ``is_at_end`` says where it may be ended.
        ``stops``: others, the first of which always ends it.
        """
        self._tokens = tokens
        self._base_rows = base_rows
        self._checks_utf8 = len(base_rows) > 1
        self._end = end
        self._stops_at_end = stops_at_end and end != b""
        self._counts_chars = counts_chars
        self._end_chars = len(end.decode(errors="replace"))
        self._build(end, stops, forbidden)
        # Where the terminator contains a forbidden text and both end together, the terminator counts.
        watched = [text for text in ([end] if self._stops_at_end else []) + [*stops, *forbidden] if text]
        self._containing = sorted({token_id for text in watched for token_id in tokens.containing(text)})
        self._rows: dict[Place, PlaceRow] = {}

    def is_at_end(self, place: Place) -> bool:
        """Whether the text ends with ``end`` here."""
        return place.char == utf8.START and self._is_end[place.matched]

    @property
    def end_chars(self) -> int:
        """Length of ``end``."""
        return self._end_chars

    def pending_chars(self, place: Place) -> int:
        """How many of the last characters may be the terminator's."""
        return self._pending[place.matched]

    def walk(self, place: Place, text: bytes) -> Step | None:
        """Behind a token's text, or any; None where that is illegal."""
        next_states, kinds = self._next, self._kinds
        matched, char = place.matched, place.char
        for position, byte in enumerate(text):
            matched = next_states[matched][byte]
            if self._checks_utf8:
                char = utf8.NEXT[char][byte]
                if char == utf8.INVALID:
                    return None
            kind = kinds[matched]
            if kind == _ENDED and self._stops_at_end:
                taken = text[: position + 1]
                return Step(Place(0, utf8.START), text[position + 1 :], _num_chars(taken) - self._end_chars)
            if kind == _STOPPED:
                stop = self._stops[matched] or b""
                return Step(BEGINNING, text[position + 1 :], _num_chars(text[: position + 1]) - _num_chars(stop), stop)
            if kind == _FORBIDDEN:
                return None
        return Step(Place(matched, char), None, _num_chars(text) - self._pending[matched] if self._counts_chars else 0)

    def at(self, place: Place) -> PlaceRow:
        """What is legal at ``place``, without a look at lengths."""
        found = self._rows.get(place)
        if found is None:
            found = self._rows[place] = self._compute(place)
        return found

    def row_within(self, place: Place, num_chars: int) -> Row:
        """The row at ``place`` without the tokens whose ``Step.num_chars`` is more; those that end it have been
        counted, too."""
        found = self.at(place)
        costs = self._base_costs
        if found.steps:
            costs = costs.copy()
            for token_id, step in found.steps.items():
                costs[token_id] = step.num_chars
        return found.row & self._tokens.row_of(costs <= num_chars)

    @cached_property
    def _base_costs(self) -> NDArray[np.int32]:
        """``Step.num_chars`` of each id from the beginning of a text."""
        costs = self._tokens.num_chars.copy()
        for length in range(1, len(self._end) + 1):
            beginning = self._end[:length]
            ids = self._tokens.with_suffix(beginning)
            costs[ids] = self._tokens.num_chars[ids] - _num_chars(beginning)
        return costs

    def _compute(self, place: Place) -> PlaceRow:
        row = self._base_rows[place.char].copy()
        flags = row.view(np.uint8)
        crossing: list[tuple[int, Step]] = []
        steps: dict[int, Step] = {}
        for token_id in {*self._containing, *self._going_on(place.matched)}:
            bit, word = np.uint8(1 << (token_id & 7)), token_id >> 3
            if not flags[word] & bit:
                continue
            step = self.walk(place, self._tokens.texts[token_id])
            if step is None or step.surplus:
                flags[word] &= ~bit
            if step is not None:
                steps[token_id] = step
                if step.surplus:
                    crossing.append((token_id, step))
        return PlaceRow(row, tuple(crossing), steps)

    def _going_on(self, state: int) -> list[int]:
        """The tokens with which a text begun before them completes."""
        found: list[int] = []
        open_prefixes = [(state, b"")]
        while open_prefixes:
            state, prefix = open_prefixes.pop()
            for byte in range(256):
                after = self._next[state][byte]
                # Invariant: a state no deeper than the bytes read is the one that those bytes alone lead to.
                if self._depths[after] <= len(prefix) + 1:
                    continue
                longer = prefix + bytes([byte])
                kind = self._kinds[after]
                completes = kind in (_FORBIDDEN, _STOPPED) or (kind == _ENDED and self._stops_at_end)
                if completes or self._counts_chars:
                    found.extend(self._tokens.with_prefix(longer))
                if not completes and self._tokens.has_longer(longer):
                    open_prefixes.append((after, longer))
        return found

    def _build(self, end: bytes, stops: Sequence[bytes], forbidden: Sequence[bytes]) -> None:
        children: list[dict[int, int]] = [{}]
        spelt = [b""]
        for text in (end, *stops, *forbidden):
            state = 0
            for position, byte in enumerate(text):
                if byte not in children[state]:
                    children[state][byte] = len(children)
                    children.append({})
                    spelt.append(text[: position + 1])
                state = children[state][byte]
        self._depths = [len(text) for text in spelt]
        self._is_end = [text.endswith(end) for text in spelt]
        self._stops = [next((stop for stop in stops if text.endswith(stop)), None) for text in spelt]
        self._kinds = [
            _ENDED
            if end and text.endswith(end) and (stop is None or self._stops_at_end)
            else _STOPPED
            if stop is not None
            else _FORBIDDEN
            if any(text.endswith(one) for one in forbidden if one)
            else _OPEN
            for text, stop in zip(spelt, self._stops, strict=True)
        ]
        self._pending = [_num_chars(_overlap(text, end)) for text in spelt]
        by_text = {text: state for state, text in enumerate(spelt)}
        self._next: list[list[int]] = [[0] * 256 for _ in spelt]
        for state in sorted(range(len(spelt)), key=self._depths.__getitem__):
            if state:
                self._next[state] = list(self._next[_longest_suffix(spelt[state], by_text)])
            for byte, child in children[state].items():
                self._next[state][byte] = child


_OPEN, _ENDED, _FORBIDDEN, _STOPPED = 0, 1, 2, 3
_CONTINUATIONS = bytes(range(0x80, 0xC0))


def _longest_suffix(text: bytes, by_text: dict[bytes, int]) -> int:
    return next(by_text[text[start:]] for start in range(1, len(text) + 1) if text[start:] in by_text)


def _overlap(text: bytes, end: bytes) -> bytes:
    """The longest ending of ``text`` that is a beginning of ``end``."""
    return next(text[start:] for start in range(len(text) + 1) if end.startswith(text[start:]))


def _num_chars(text: bytes) -> int:
    return len(text.translate(None, _CONTINUATIONS))
