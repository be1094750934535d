"""Which device blocks are free, and which free ones to take.

Blocks lie side by side in the pools, so a sequence whose blocks have consecutive ids is one run: one plain view for
attention. The pool therefore prefers the block behind a sequence's last one, then a place in the longest free run that
leaves those before it room to grow. Any choice is correct.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_GROWTH_BLOCKS = 64
"""Left free behind what lies before a new place, where there is enough: answers grow, and conversations go on."""


class BlockPool:
    """Free and taken block ids, 0 to ``num_blocks`` − 1. Owned by the step loop's task."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._is_free = np.ones(num_blocks, dtype=np.bool_)
        self.num_free = num_blocks

    def take(self, count: int, *, after: int | None = None) -> list[int]:
        """Take ``count`` blocks, continuing behind block ``after`` where those are free.

        The caller has made room: ``count`` ≤ ``num_free``.
        """
        assert count <= self.num_free, "take() without room"
        taken: list[int] = []
        if after is not None:
            taken = self._take_run(after + 1, count)
        while len(taken) < count:
            taken += self._take_run(self._place(count - len(taken)), count - len(taken))
        return taken

    def put(self, block_ids: Iterable[int]) -> None:
        """Give blocks back; their contents are no longer of use to anyone."""
        for block_id in block_ids:
            assert not self._is_free[block_id], "block put twice"
            self._is_free[block_id] = True
            self.num_free += 1

    def is_free(self, block_id: int) -> bool:
        """Whether nobody has taken this block."""
        return bool(self._is_free[block_id])

    def _take_run(self, start: int, count: int) -> list[int]:
        taken: list[int] = []
        for block_id in range(start, min(start + count, self.num_blocks)):
            if not self._is_free[block_id]:
                break
            self._is_free[block_id] = False
            taken.append(block_id)
        self.num_free -= len(taken)
        return taken

    def _place(self, count: int) -> int:
        """Where in the longest free run to put ``count`` blocks that continue nothing."""
        edges = np.flatnonzero(np.diff(np.concatenate(([0], self._is_free.view(np.int8), [0]))))
        starts, lengths = edges[::2], edges[1::2] - edges[::2]
        longest = np.argmax(lengths)
        start, spare = int(starts[longest]), int(lengths[longest]) - count
        return start + min(max(spare, 0) // 2, _GROWTH_BLOCKS) if start else 0


def num_runs(block_ids: list[int]) -> int:
    """Stretches of consecutive ids in a block table."""
    return sum(1 for i, block_id in enumerate(block_ids) if i == 0 or block_id != block_ids[i - 1] + 1)
