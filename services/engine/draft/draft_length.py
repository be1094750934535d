"""How many guessed tokens are worth computing.

A guess is of use if all before it are right too, so with the chance p of each the i-th counts p^i of a token. It is
worth its cost while that is more than a token costs the step anyway. The chance is learned from what became of earlier
guesses: where an output is no copy, guessing all but ends, and is tried again as the memory of it fades.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

MAX_DRAFT = 15
"""Guesses of one sequence in one step: with the known token before them they fill a tile of the linear layers."""
_TOKEN_COST = 0.06
"""What one more token takes of the time of a step with a single one: such a step is bound by reading the weights."""
_FIRST_RIGHT, _FIRST_WRONG = 0.9, 0.6
"""As if so many guesses had been seen before the first."""
_KEPT_PER_GUESS = 0.95
_KEPT_PER_SKIP = 0.98


class GuessRecord:
    """What became of one sequence's guesses."""

    def __init__(self) -> None:
        self._right = self._wrong = 0.0

    @property
    def chance(self) -> float:
        """That the next guess is right, over 0 and under 1."""
        right, wrong = self._right + _FIRST_RIGHT, self._wrong + _FIRST_WRONG
        return right / (right + wrong)

    def verified(self, num_drafted: int, num_accepted: int) -> None:
        """A draft was computed; what stands behind its first wrong token tells nothing."""
        num_wrong = int(num_accepted < num_drafted)
        self._fade(_KEPT_PER_GUESS ** (num_accepted + num_wrong))
        self._right += num_accepted
        self._wrong += num_wrong

    def skipped(self) -> None:
        """There was a guess, which was not worth its cost."""
        self._fade(_KEPT_PER_SKIP)

    def _fade(self, kept: float) -> None:
        self._right *= kept
        self._wrong *= kept


@dataclass(frozen=True, slots=True)
class Wish:
    """A sequence's ``num_tokens`` guesses, each right with a ``chance``."""

    num_tokens: int
    chance: float


def draft_lengths(wishes: Sequence[Wish], num_tokens: int, limit: int) -> list[int]:
    """How many of each wish's tokens to compute in a step that samples one token per wish anyway.

    ``num_tokens`` are computed in it anyway; at most ``limit`` are added. The likeliest come first, and each raises
    what the next one must be worth.
    """
    lengths = [0] * len(wishes)
    expected, cost = float(len(wishes)), 1 + _TOKEN_COST * num_tokens
    candidates = [(-wish.chance, place) for place, wish in enumerate(wishes) if wish.num_tokens]
    heapq.heapify(candidates)
    while candidates and limit > 0 and -candidates[0][0] > _TOKEN_COST * expected / cost:
        worth, place = -candidates[0][0], candidates[0][1]
        lengths[place] += 1
        limit -= 1
        expected, cost = expected + worth, cost + _TOKEN_COST
        if lengths[place] < wishes[place].num_tokens:
            heapq.heapreplace(candidates, (-worth * wishes[place].chance, place))
        else:
            heapq.heappop(candidates)
    return lengths
