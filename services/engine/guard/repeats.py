"""Repeated tokens and repeated patterns: for each period, for how long every token has equalled the one so far before.

The output's suffix of length run[p] + p has period p. Its fundamental period is the smallest one: where a smaller
period q has run[q] >= p, the two overlap by p + q tokens, so p is no more than a multiple (Fine and Wilf 1965).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from services.engine.guard.lexicon import Lexicon
from services.engine.guard.rules import RepeatRules

_SPAN = 2048
"""Tokens between two moves of the window."""

_NEVER = 2**31 - 1


class RepeatTracker:
    """One output's. A push is two vector operations over the periods; memory is fixed.

    Instead of the run lengths, which all grow by one, it keeps the number of tokens at which each began. From these
    follows when the first can reach what prose needs; until then nothing has to be looked at.
    """

    def __init__(self, rules: RepeatRules, lexicon: Lexicon, factor: int = 1) -> None:
        """``factor`` multiplies what a pattern needs."""
        self._rules, self._lexicon, self._factor = rules, lexicon, factor
        self._needed = _needs_of_prose(rules, factor)
        num_periods = rules.max_period
        # Latest token first, from _head on, so that index p - 1 is p tokens back.
        self._latest = np.full(_SPAN + num_periods, -1, dtype=np.int32)
        self._head = _SPAN
        self._began = np.zeros(num_periods, dtype=np.int32)
        self._differs = np.empty(num_periods, dtype=np.bool_)
        # Scalars that need no conversion: half the time of a vector operation.
        self._token = np.empty((), dtype=np.int32)
        self._now = np.empty((), dtype=np.int32)
        self._num_tokens = 0
        self._next_look = int(self._needed.min())
        self.period: int | None = None
        """Fundamental period of the loop that the output is in. Its next token would be the one so far back."""

    def clone(self) -> RepeatTracker:
        """An independent copy."""
        other = object.__new__(RepeatTracker)
        other._rules, other._lexicon, other._factor = self._rules, self._lexicon, self._factor
        other._needed = self._needed  # never written
        other._latest, other._head = self._latest.copy(), self._head
        other._began, other._differs = self._began.copy(), self._differs.copy()
        other._token, other._now = self._token.copy(), self._now.copy()
        other._num_tokens, other._next_look, other.period = self._num_tokens, self._next_look, self.period
        return other

    def push(self, token_id: int) -> None:
        """Add a token."""
        head, latest, differs, period = self._head, self._latest, self._differs, self.period
        num_periods = len(differs)
        self._num_tokens = num_tokens = self._num_tokens + 1
        self._token[()] = token_id
        self._now[()] = num_tokens
        np.not_equal(latest[head : head + num_periods], self._token, out=differs)
        np.copyto(self._began, self._now, where=differs)
        if head == 0:
            latest[_SPAN:] = latest[:num_periods]
            head = _SPAN
        self._head = head = head - 1
        latest[head] = token_id
        if num_tokens >= self._next_look or (period is not None and differs[period - 1]):
            self._look()

    def token_back(self, distance: int) -> int:
        """The token ``distance`` tokens back, 1 for the latest; at most ``max_period``."""
        return int(self._latest[self._head + distance - 1])

    def _look(self) -> None:
        """Find the loop, if there is one, and when to look next.

        Invariant: a period that has run long enough for prose and is not fundamental breaks with the smaller one, since
        from there on both want the same tokens; so it need not be waited for. Nor need those above a loop's period.
        """
        num_tokens = self._num_tokens
        runs = num_tokens - self._began
        periods = np.arange(1, len(runs) + 1, dtype=np.int32)
        longest_of_smaller = np.concatenate(([0], np.maximum.accumulate(runs)[:-1]))
        waits = self._needed - runs
        is_due = waits <= 0
        next_look = num_tokens + int(waits[~is_due].min(initial=_NEVER - num_tokens))
        self.period = None
        for index in np.flatnonzero(is_due & (longest_of_smaller < periods)):
            period = int(index) + 1
            shares = self._lexicon.shares(self._latest[self._head : self._head + period])
            wait = self._factor * self._rules.needed(period, *shares) - int(runs[index])
            if wait <= 0:
                self.period = period
                break
            next_look = min(next_look, num_tokens + wait)
        self._next_look = next_look


@cache
def _needs_of_prose(rules: RepeatRules, factor: int) -> npt.NDArray[np.int32]:
    """By period - 1: what prose needs, which is the least that any needs. Not to be written."""
    needed = [factor * rules.needed(period, words=1.0, markup=0.0) for period in range(1, rules.max_period + 1)]
    return np.array(needed, dtype=np.int32)
