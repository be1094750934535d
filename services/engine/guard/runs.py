"""Repeated tokens and repeated patterns: for each period, for how long every token has equalled the one so far before.

The output's suffix of length run[p] + p has period p. Its fundamental period is the smallest one: where a smaller
period q has run[q] >= p, the two overlap by p + q tokens, so p is no more than a multiple (Fine and Wilf 1965).
"""

from __future__ import annotations

import numpy as np

from services.engine.guard.lexicon import Lexicon
from services.engine.guard.rules import RunRules

_SPAN = 2048
"""Tokens between two moves of the window."""

_NEVER = 2**31 - 1


class RunTracker:
    """One output's. A push is two vector operations over the periods; memory is fixed.

    Instead of the run lengths, which all grow by one, it keeps where each is ``due``: the number of tokens at which it
    reaches what a pattern of words needs. Until the first of these nothing has to be looked at.
    """

    def __init__(self, rules: RunRules, lexicon: Lexicon, factor: int = 1) -> None:
        """``factor`` multiplies what a pattern needs."""
        self._rules, self._lexicon, self._factor = rules, lexicon, factor
        num_periods = rules.max_period
        self._needed = np.array([self._needs(p, 1.0) for p in range(1, num_periods + 1)], dtype=np.int32)
        # Latest token first, from _head on, so that index p - 1 is p tokens back.
        self._latest = np.full(_SPAN + num_periods, -1, dtype=np.int32)
        self._head = _SPAN
        self._due = self._needed.copy()
        self._differs = np.empty(num_periods, dtype=np.bool_)
        self._num_tokens = 0
        self._next_look = int(self._due.min())
        self.period: int | None = None
        """Fundamental period of the loop that the output is in. Its next token would be the one so far back."""

    def clone(self) -> RunTracker:
        """An independent copy."""
        other = object.__new__(RunTracker)
        other._rules, other._lexicon, other._factor = self._rules, self._lexicon, self._factor
        other._needed = self._needed  # never written
        other._latest = self._latest.copy()
        other._head = self._head
        other._due = self._due.copy()
        other._differs = np.empty_like(self._differs)
        other._num_tokens = self._num_tokens
        other._next_look = self._next_look
        other.period = self.period
        return other

    def push(self, token_id: int) -> None:
        """Add a token."""
        head, latest, differs = self._head, self._latest, self._differs
        num_periods = len(differs)
        self._num_tokens = num_tokens = self._num_tokens + 1
        np.not_equal(latest[head : head + num_periods], token_id, out=differs)
        np.add(self._needed, num_tokens, out=self._due, where=differs)
        if head == 0:
            latest[_SPAN:] = latest[:num_periods]
            head = _SPAN
        self._head = head = head - 1
        latest[head] = token_id
        if num_tokens >= self._next_look:
            self._look()

    def token_back(self, distance: int) -> int:
        """The token ``distance`` tokens back, 1 for the latest; at most ``max_period``."""
        return int(self._latest[self._head + distance - 1])

    def _look(self) -> None:
        """Find the loop, if there is one, and when to look next.

        Invariant: what is due and no fundamental period stays so until it is broken, since all its tokens then equal
        those that the smaller period wants; so it need not be waited for.
        """
        num_tokens, due = self._num_tokens, self._due
        runs = self._needed - due + num_tokens
        periods = np.arange(1, len(due) + 1, dtype=np.int32)
        smaller = np.concatenate(([0], np.maximum.accumulate(runs)[:-1]))
        is_due = due <= num_tokens
        waits = [int(due[~is_due].min(initial=_NEVER))]
        self.period = None
        for index in np.flatnonzero(is_due & (smaller < periods)):
            period = int(index) + 1
            words = self._lexicon.share_of_words(self._latest[self._head : self._head + period])
            wait = self._needs(period, words) - int(runs[index])
            if wait <= 0:
                self.period = period
                break
            waits.append(num_tokens + wait)
        self._next_look = num_tokens + 1 if self.period is not None else min(waits)

    def _needs(self, period: int, words: float) -> int:
        return self._factor * self._rules.needed(period, words)
