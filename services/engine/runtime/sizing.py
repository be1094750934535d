"""How much memory of a device is left for state: what others, weights and the largest step leave of a share of it.

The largest step is computed once, on pools of a few blocks that its rows read again and again. What it took stays with
torch's allocator, so that the device's own count of free memory has it all: weights, what kernels keep, the peak of the
step, and what other processes use.
"""

from __future__ import annotations

import numpy as np

from services.engine.runtime.batch import Batch, Row

_NUM_BLOCKS = 4


def state_bytes(total_bytes: int, free_bytes: int, utilisation: float) -> int:
    """What pools may take of a device of ``total_bytes``, of which ``free_bytes`` are left behind the largest step.

    Not negative. ``utilisation`` in (0, 1] is the share of the device that may be taken by all together.
    """
    return max(0, int(total_bytes * utilisation) - (total_bytes - free_bytes))


def largest_step(*, step_tokens: int, max_running: int, context_tokens: int, block_tokens: int) -> tuple[Batch, int]:
    """A batch that takes as much memory as any step, and the blocks of the pools that it is computed on.

    As many tokens as a step has, at the end of the context and all sampled from: one prompt's, and beside it as many
    decoding rows as run. Nothing but its size means anything: the rows write the same slots.
    """
    num_blocks = -(-context_tokens // block_tokens)
    table = [i % _NUM_BLOCKS for i in range(num_blocks)]
    prompt = min(max(1, step_tokens - (max_running - 1)), context_tokens)
    rows = tuple(
        Row(np.zeros(count, dtype=np.int32), context_tokens - count, table, count)
        for count in [prompt] + [1] * (max_running - 1)
    )
    return Batch(rows), min(num_blocks, _NUM_BLOCKS)
