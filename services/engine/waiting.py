"""The waiting requests of one class, their order and their ageing. Pure.

First come those whose request was admitted before: preempted ones, and further choices. Of the others, the one that
finds most of its prompt cached is next, so that cached state is used before it is evicted.

Bound: a request that was overtaken by ``max_overtaken`` later ones, or has waited ``patience_s`` seconds, is overdue.
Overdue requests go first, in order of arrival, and nobody passes the first of them, even while it does not fit. So no
request is overtaken more than ``max_overtaken`` times, and by nobody once it has waited ``patience_s``.
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
    max_overtaken: int = 64


DEFAULT_POLICY = AdmissionPolicy()


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that was not admitted yet. ``path`` and ``saved_tokens`` say what it finds cached, as known lately."""

    sequence: Sequence
    arrival: int
    num_overtaken: int = 0
    path: list[Node] = field(default_factory=list[Node])
    saved_tokens: int = 0


class WaitingQueue:
    """Owned by the step loop's task."""

    def __init__(self, policy: AdmissionPolicy, renew: Callable[[Waiting], None]) -> None:
        """``renew`` brings ``path`` and ``saved_tokens`` up to date."""
        self._policy = policy
        self._renew = renew
        self._returning: deque[Sequence] = deque()
        self._waiting: dict[Sequence, Waiting] = {}  # in order of arrival
        self._arrivals = count()
        self._renew_from = 0

    def __len__(self) -> int:
        return len(self._returning) + len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        """All, in the order in which they would be admitted if all fitted and nothing aged."""
        yield from self._returning
        yield from (entry.sequence for entry in sorted(self._waiting.values(), key=self._rank))

    def add(self, sequence: Sequence) -> None:
        """Queue a new one."""
        self._waiting[sequence] = Waiting(sequence, next(self._arrivals))

    def put_back(self, sequences: Iterable[Sequence]) -> None:
        """Queue those whose request was admitted before, ahead of all others."""
        self._returning.extendleft(reversed(list(sequences)))

    def remove(self, sequence: Sequence) -> None:
        """Somebody leaves: admitted, or ended while it waited."""
        if self._waiting.pop(sequence, None) is None:
            self._returning.remove(sequence)

    def overtake(self, sequence: Sequence) -> None:
        """Note that ``sequence`` is admitted ahead of all that came earlier."""
        if sequence in self._waiting:
            for earlier in self._waiting.values():
                if earlier.sequence is sequence:
                    break
                earlier.num_overtaken += 1

    def entry(self, sequence: Sequence) -> Waiting | None:
        """Of one that was not admitted yet."""
        return self._waiting.get(sequence)

    def renew_some(self, number: int) -> None:
        """Bring the matches of some up to date, in turn."""
        first = self._renew_from if self._renew_from < len(self._waiting) else 0
        for entry in islice(self._waiting.values(), first, first + number):
            self._renew(entry)
        self._renew_from = first + number

    def candidates(self, number: int, now_s: float, may_enter: Callable[[Waiting], bool]) -> list[Sequence]:
        """Whom to try, in order; none behind one whom nobody may pass.

        At most ``number``, whose matches are exact; the choice among all is by what was known lately. O(waiting).
        """
        if self._returning:
            return [self._returning[0]]
        overdue = next((entry for entry in self._waiting.values() if self._is_overdue(entry, now_s)), None)
        if overdue is not None:
            return [overdue.sequence]
        allowed = (entry for entry in self._waiting.values() if may_enter(entry))
        if not self._policy.is_by_prefix:
            return [entry.sequence for entry in islice(allowed, 1)]
        best = heapq.nsmallest(number, allowed, self._rank)
        for entry in best:
            self._renew(entry)
        return [entry.sequence for entry in sorted(best, key=self._rank)]

    def _is_overdue(self, entry: Waiting, now_s: float) -> bool:
        waited_s = now_s - entry.sequence.times.arrived_s
        return entry.num_overtaken >= self._policy.max_overtaken or waited_s >= self._policy.patience_s

    def _rank(self, entry: Waiting) -> tuple[int, int]:
        return (-entry.saved_tokens if self._policy.is_by_prefix else 0, entry.arrival)
