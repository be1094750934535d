"""The order in which cached blocks are given up.

What may go next are the leaves of the prefix tree that nobody pins. They go in this order:

1. what is nobody's any more: released conversations and abandoned branches, least recently used first;
2. all others. Where it is known well enough what a block's branch waits for, its value is the rate of its return times
   the cost of computing it again (blocks have equal bytes). The least valuable of these stands against the least
   recently used of the rest, valued by a guess of that rate, and the lesser goes. So where no wait is known, this is
   plain LRU;
3. what a waiting request would hit, least recently used first. Nothing is kept for certain: somebody else may need it.

Values change with time, and not all in one direction. They are taken anew every quarter of a second, and not for each
block: with n leaves, w of them in known waits, placing or finding one takes O(log n), and the first in a quarter of a
second O(w log w) besides.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from services.engine.node import Node
from services.engine.owner import Owner
from services.engine.wait_times import unknown_return_rate

TICK_S = 0.25
_Entry = tuple[float, float, int, Node]
"""Value, time of last use, number of the placing."""


@dataclass(slots=True)
class _Group:
    """An owner's leaves and, for this tick, the rate of its return."""

    leaves: set[Node] = field(default_factory=set[Node])
    rate: float = 0.0


class Belt:
    """Leaves in order. A heap's entry is stale once its leaf has been placed again or taken off."""

    def __init__(self, *, is_lru: bool = False) -> None:
        """``is_lru``: least recently used first, whatever else is known."""
        self._is_lru = is_lru
        self._placed: dict[Node, tuple[int, Owner]] = {}
        self._groups: dict[Owner, _Group] = {}
        self._number = itertools.count(1)
        self._released: list[_Entry] = []
        self._used: list[_Entry] = []
        self._valued: list[_Entry] = []
        self._protected: list[_Entry] = []
        self._waiting: set[Owner] = set()  # owners of leaves, in a known wait
        self._tick_s = -math.inf

    def __contains__(self, node: Node) -> bool:
        return node in self._placed

    def __len__(self) -> int:
        return len(self._placed)

    def place(self, leaf: Node) -> None:
        """Put a leaf on the belt, or to the place that is right for it now."""
        self.take_off(leaf)
        owner, number = leaf.owner, next(self._number)
        self._placed[leaf] = number, owner
        self._groups.setdefault(owner, _Group()).leaves.add(leaf)
        if self._is_lru:
            self._push(self._used, 0.0, leaf, number)
            return
        if owner.wait is not None and owner not in self._waiting:
            self._waiting.add(owner)
            self._groups[owner].rate = owner.wait.return_rate(self._tick_s)
        if leaf.num_protections:
            self._push(self._protected, 0.0, leaf, number)
        elif owner.is_over:
            self._push(self._released, 0.0, leaf, number)
        elif owner.wait is None:
            self._push(self._used, 0.0, leaf, number)
        else:
            value = self._groups[owner].rate * leaf.recompute_cost
            self._push(self._valued, value, leaf, number)

    def take_off(self, node: Node) -> None:
        """It may not go now; nothing happens if it is not on the belt."""
        placed = self._placed.pop(node, None)
        if placed is None:
            return
        owner = placed[1]
        leaves = self._groups[owner].leaves
        leaves.discard(node)
        if not leaves:
            del self._groups[owner]
            self._waiting.discard(owner)

    def leaves_of(self, owner: Owner) -> list[Node]:
        """All on the belt that are this owner's alone."""
        group = self._groups.get(owner)
        return [] if group is None else list(group.leaves)

    def changed(self, owner: Owner) -> None:
        """What it waits for has changed, or it is over."""
        self._waiting.discard(owner)
        for leaf in self.leaves_of(owner):
            self.place(leaf)

    def first(self, now_s: float) -> Node | None:
        """The leaf that goes next; it stays on the belt."""
        self._advance(now_s)
        for heap in (self._released, self._used, self._valued, self._protected):
            while heap and not self._is_current(heap[0]):
                heapq.heappop(heap)
        if self._released:
            return self._released[0][-1]
        used, valued = self._used[:1], self._valued[:1]
        if used and valued:
            leaf, last_used_s = used[0][-1], used[0][1]
            value = unknown_return_rate(max(0.0, self._tick_s - last_used_s)) * leaf.recompute_cost
            return min((value, last_used_s, 0, leaf), valued[0])[-1]
        rest = used or valued or self._protected[:1]
        return rest[0][-1] if rest else None

    def _advance(self, now_s: float) -> None:
        """Take the values of this tick, unless they are."""
        tick_s = math.floor(now_s / TICK_S) * TICK_S
        if tick_s == self._tick_s:
            return
        self._tick_s = tick_s
        self._valued = []
        for owner in self._waiting:
            assert owner.wait is not None
            group = self._groups[owner]
            group.rate = owner.wait.return_rate(tick_s)
            self._valued += [
                (group.rate * leaf.recompute_cost, leaf.last_used_s, self._placed[leaf][0], leaf)
                for leaf in group.leaves
                if not leaf.num_protections
            ]
        heapq.heapify(self._valued)

    def _is_current(self, entry: _Entry) -> bool:
        *_, number, leaf = entry
        placed = self._placed.get(leaf)
        return placed is not None and placed[0] == number

    def _push(self, heap: list[_Entry], value: float, leaf: Node, number: int) -> None:
        heapq.heappush(heap, (value, leaf.last_used_s, number, leaf))
        if len(heap) > 4 * len(self._placed) + 1024:
            heap[:] = self._current(heap)
            heapq.heapify(heap)

    def _current(self, heap: Iterable[_Entry]) -> list[_Entry]:
        return [entry for entry in heap if self._is_current(entry)]
