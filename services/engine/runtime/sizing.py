"""How much memory of a device is left for state: what others, weights and the largest step leave of a share of it.

The largest step is computed once, on pools of a few blocks that its rows read again and again. What it took stays with
torch's allocator, so that the device's own count of free memory has it all: weights, what kernels keep, the peak of the
step, and what other processes use.
"""

from __future__ import annotations

import numpy as np

from services.engine.runtime.batch import Batch, Row
from services.engine.runtime.cuda import memory_bytes
from services.engine.runtime.loader import LoadedModel
from services.engine.runtime.paged import PagedRuntime

_NUM_BLOCKS = 4


def measured_state_bytes(
    model: LoadedModel, *, utilisation: float, step_tokens: int, max_running: int, block_tokens: int
) -> int:
    """What the largest step leaves for state on the model's CUDA device, where nothing but its weights is kept yet."""
    batch, num_blocks = largest_step(
        step_tokens=step_tokens,
        max_running=max_running,
        context_tokens=model.context_tokens,
        block_tokens=block_tokens,
    )
    logits = PagedRuntime(model, num_blocks=num_blocks, block_tokens=block_tokens).forward(batch)
    logits.log_softmax(-1)
    return state_bytes(*memory_bytes(model.device), utilisation)


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
