"""From block tables to runs: half-open ranges of consecutive pool slots.

The allocator prefers long stretches of neighbouring blocks; a run of them is a plain view of a
head-major pool, so attention and span copies work on runs instead of gathering.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Run: TypeAlias = tuple[int, int]
"""Slots [first, stop) of a pool; never empty."""


def slot_runs(block_ids: Sequence[int], first_token: int, num_tokens: int, block_tokens: int) -> tuple[Run, ...]:
    """The runs that hold positions [first_token, first_token + num_tokens), in token order.

    Raises ValueError if the range is negative or the table does not cover it.
    """
    stop_token = first_token + num_tokens
    if first_token < 0 or num_tokens < 0 or stop_token > len(block_ids) * block_tokens:
        raise ValueError(
            f"tokens [{first_token}, {stop_token}) are outside a table of {len(block_ids)} blocks of {block_tokens}"
        )
    if num_tokens == 0:
        return ()
    first_index = first_token // block_tokens
    stop_index = -(-stop_token // block_tokens)
    blocks = np.asarray(block_ids[first_index:stop_index], dtype=np.int64)
    breaks = (np.flatnonzero(np.diff(blocks) != 1) + 1).tolist()
    skipped = first_token - first_index * block_tokens
    unused = stop_index * block_tokens - stop_token
    edges = [0, *breaks, len(blocks)]
    last_run = len(edges) - 2
    return tuple(
        (
            int(blocks[edges[i]]) * block_tokens + (skipped if i == 0 else 0),
            (int(blocks[edges[i + 1] - 1]) + 1) * block_tokens - (unused if i == last_run else 0),
        )
        for i in range(last_run + 1)
    )


def slots_of(runs: Sequence[Run]) -> npt.NDArray[np.int64]:
    """Every slot of the runs, in order."""
    return np.concatenate([np.arange(first, stop, dtype=np.int64) for first, stop in runs])
