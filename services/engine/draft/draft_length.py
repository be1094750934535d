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
MAX_FORCED = 63
"""Tokens known to follow that are computed in one step: as good as a prompt's."""
_TOKEN_COST = 0.06
"""What one more token takes of the time of a step with a single one: such a step is bound by reading the weights."""
_KEPT_PER_GUESS = 0.95
_KEPT_PER_SKIP = 0.995


class GuessRecord:
    """What became of guesses of one kind."""

    def __init__(self, first_right: float, first_wrong: float) -> None:
        """As if so many guesses, each over 0, had been right and wrong before the first."""
        self._first_right, self._first_wrong = first_right, first_wrong
        self._right = self._wrong = 0.0

    @property
    def chance(self) -> float:
        """That the next guess is right, over 0 and under 1."""
        right, wrong = self._right + self._first_right, self._wrong + self._first_wrong
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
class Draft:
    """What a sequence may go on with: each token is right with a ``chance`` if all before it are."""

    token_ids: tuple[int, ...] = ()
    chance: float = 0.0


def draft_lengths(drafts: Sequence[Draft], num_tokens: int, limit: int) -> list[int]:
    """How many tokens of each draft to compute in a step that samples one token per draft anyway.

    ``num_tokens`` are computed in it anyway; at most ``limit`` are added. The likeliest come first, and each raises
    what the next one must be worth.
    """
    lengths = [0] * len(drafts)
    expected, cost = float(len(drafts)), 1 + _TOKEN_COST * num_tokens
    candidates = [(-draft.chance, place) for place, draft in enumerate(drafts) if draft.token_ids]
    heapq.heapify(candidates)
    while candidates and limit > 0 and -candidates[0][0] > _TOKEN_COST * expected / cost:
        worth, place = -candidates[0][0], candidates[0][1]
        lengths[place] += 1
        limit -= 1
        expected, cost = expected + worth, cost + _TOKEN_COST
        if lengths[place] < len(drafts[place].token_ids):
            heapq.heapreplace(candidates, (-worth * drafts[place].chance, place))
        else:
            heapq.heappop(candidates)
    return lengths
