"""Guesses that an output goes on as its prompt, or itself, went on before (prompt lookup decoding, Saxena 2023)."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from services.engine.node import TOKEN_BYTES

MAX_AGREEMENT = 16
"""Tokens before two places that are compared: which of two places agrees for longer still tells nothing."""
_MIN_AGREEMENT = 2
MAX_PLACES = 64
"""Places that are looked at for one guess."""


@dataclass(frozen=True, slots=True)
class Guess:
    """``token_ids`` stood behind a place that agrees with the end in ``num_agreed`` tokens, at most MAX_AGREEMENT."""

    token_ids: tuple[int, ...]
    num_agreed: int


class PromptLookup:
    """One sequence's tokens, by pairs. Costs O(1) for a token that is read and O(1) for a guess.

    Holds the last ``window`` to 2 · ``window`` tokens, some hundred bytes each.
    """

    def __init__(self, window: int = 32_768) -> None:
        self._window = window
        self._num_read = 0
        self._source: tuple[int, int] | None = None  # the place last guessed from, and the end it agreed with
        self._ids = array("i")
        self._earlier = array("i")  # by place: the last one before with the same pair of tokens; 0: none
        self._latest: dict[int, int] = {}  # by pair: its last place, which is that of its second token

    def read(self, token_ids: bytes | bytearray) -> None:
        """Take in what is new of a sequence's tokens, int32 little-endian, of which none but the end changes."""
        new = array("i", bytes(token_ids[self._num_read * TOKEN_BYTES :]))
        self._num_read += len(new)
        if len(self._ids) + len(new) > 2 * self._window:
            new = (self._ids + new)[-self._window :]
            self._ids, self._earlier, self._latest, self._source = array("i"), array("i"), {}, None
        for token_id in new:
            self._append(token_id)

    def guess(self, num_tokens: int) -> Guess | None:
        """``num_tokens`` tokens to come; None where the last two have not stood together before.

        Of the last ``MAX_PLACES`` places where they have, those tokens follow that stand behind the one that agrees
        for longest, the latest of several; or behind the place last guessed from, where no other agrees for longer:
        what is copied goes on, however often its lines occur. At the end the guess goes round: its own tokens follow.
        """
        place, num_agreed = self._best_place()
        if num_agreed < _MIN_AGREEMENT:
            return None
        end = len(self._ids) - 1
        self._source = place, end
        following = self._ids[place + 1 : place + 1 + num_tokens]
        return Guess(tuple(following[i % (end - place)] for i in range(num_tokens)), num_agreed)

    def _append(self, token_id: int) -> None:
        place = len(self._ids)
        self._ids.append(token_id)
        if place:
            pair = self._ids[place - 1] << 32 | token_id
            self._earlier.append(self._latest.get(pair, 0))
            self._latest[pair] = place
        else:
            self._earlier.append(0)

    def _best_place(self) -> tuple[int, int]:
        """The place and for how long it agrees."""
        if not self._ids:
            return 0, 0
        end = len(self._ids) - 1
        best, agreed = 0, 0
        if self._source is not None:
            place = self._source[0] + end - self._source[1]
            if (length := self._agreement(place)) > agreed:
                best, agreed = place, length
        place = self._earlier[end]
        for _ in range(MAX_PLACES):
            if not place or agreed == MAX_AGREEMENT:
                break
            if (length := self._agreement(place)) > agreed:
                best, agreed = place, length
            place = self._earlier[place]
        return best, agreed

    def _agreement(self, place: int) -> int:
        """How many tokens up to a place equal those up to the end."""
        ids, end = self._ids, len(self._ids) - 1
        limit = min(MAX_AGREEMENT, place + 1)
        return next((i for i in range(limit) if ids[place - i] != ids[end - i]), limit)
