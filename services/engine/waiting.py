"""The waiting requests of one class, their order and their ageing. Pure.

First come those whose request was admitted before: preempted ones, and further choices. Of the others, the one that
finds most of its prompt cached is next, so that cached state is used before it is evicted.

Bound: a request that has waited ``patience_s`` is overdue. Once ``max_passes`` others were admitted in a row while one
was overdue, the first come of the overdue is next, and nobody passes it, even while it does not fit. So where d waiting
requests came before it, an overdue one is admitted after at most (d + 1) · (max_passes + 1) admissions, its own
included. With 0 passes this is the order of arrival, which under overload computes again what it has just evicted.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice

from services.engine.prefix_tree import Node
from services.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """How waiting requests are chosen.

    ``is_by_prefix``: the longest cached prefix first, else in order of arrival. ``is_gated``: new sessions wait while
    those that were active lately need the memory.
    """

    is_by_prefix: bool = True
    is_gated: bool = True
    patience_s: float = 60.0
    max_passes: int = 4


DEFAULT_POLICY = AdmissionPolicy()


@dataclass(slots=True, eq=False)
class Waiting:
    """``path`` and ``saved_tokens`` say what it finds cached, as known lately."""

    sequence: Sequence
    arrival: int
    path: list[Node] = field(default_factory=list[Node])
    saved_tokens: int = 0


class WaitingQueue:
    """Owned by the step loop's task."""

    def __init__(self, policy: AdmissionPolicy, renew: Callable[[Waiting], None]) -> None:
        """``renew`` brings ``path`` and ``saved_tokens`` up to date."""
        self._policy = policy
        self._renew = renew
        self._returning: deque[Waiting] = deque()
        self._waiting: dict[Sequence, Waiting] = {}  # in order of arrival
        self._arrivals = count()
        self._num_passes = 0
        self._renew_from = 0

    def __len__(self) -> int:
        return len(self._returning) + len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        """All, in the order in which they would be admitted if all fitted and nothing aged."""
        yield from (entry.sequence for entry in self._returning)
        yield from (entry.sequence for entry in sorted(self._waiting.values(), key=self._rank))

    def add(self, sequence: Sequence) -> None:
        """Queue a new one."""
        self._waiting[sequence] = Waiting(sequence, next(self._arrivals))

    def put_back(self, sequences: Iterable[Sequence]) -> None:
        """Queue those whose request was admitted before, ahead of all others."""
        entries = [Waiting(sequence, next(self._arrivals)) for sequence in sequences]
        self._returning.extendleft(reversed(entries))

    def remove(self, sequence: Sequence) -> None:
        """Somebody leaves: admitted, or ended while it waited."""
        if self._waiting.pop(sequence, None) is None:
            self._returning.remove(self.entry(sequence))

    def admit(self, sequence: Sequence, now_s: float) -> None:
        """One leaves by being admitted."""
        if sequence in self._waiting:
            overdue = self._overdue(now_s)
            is_pass = overdue is not None and overdue.sequence is not sequence
            self._num_passes = self._num_passes + 1 if is_pass else 0
        self.remove(sequence)

    def entry(self, sequence: Sequence) -> Waiting:
        """What is known of one that waits."""
        if (entry := self._waiting.get(sequence)) is not None:
            return entry
        return next(entry for entry in self._returning if entry.sequence is sequence)

    def renew_some(self, number: int) -> None:
        """Bring the matches of some up to date, in turn."""
        first = self._renew_from if self._renew_from < len(self._waiting) else 0
        for entry in islice(self._waiting.values(), first, first + number):
            self._renew(entry)
        self._renew_from = first + number

    def candidates(self, number: int, now_s: float, may_enter: Callable[[Waiting], bool]) -> list[Waiting]:
        """Whom to try, in order; none behind one whom nobody may pass.

        At most ``number``, whose matches are exact; the choice among all is by what was known lately. O(waiting).
        """
        overdue = self._overdue(now_s)
        if self._returning:
            best = [self._returning[0]]
        elif overdue is not None and self._num_passes >= self._policy.max_passes:
            best = [overdue]
        else:
            allowed = (entry for entry in self._waiting.values() if entry is overdue or may_enter(entry))
            best = heapq.nsmallest(number if self._policy.is_by_prefix else 1, allowed, self._rank)
        for entry in best:
            self._renew(entry)
        return sorted(best, key=self._rank)

    def _overdue(self, now_s: float) -> Waiting | None:
        """The first that came of those that are overdue; arrivals are in order of time but for their lookups."""
        entries = self._waiting.values()
        patience_s = self._policy.patience_s
        return next((e for e in entries if now_s - e.sequence.times.arrived_s >= patience_s), None)

    def _rank(self, entry: Waiting) -> tuple[int, int]:
        return (-entry.saved_tokens if self._policy.is_by_prefix else 0, entry.arrival)
