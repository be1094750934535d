"""Memory for the pools of state."""

import mmap
from contextlib import suppress

import numpy as np
import torch


def allocate_pools(
    count: int, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> list[torch.Tensor]:
    """``count`` zeroed tensors of one shape.

    On CPU they lie in one stretch of large pages that are taken from the system now: the first request to reach a block
    would otherwise pay for them, which is slower than filling it.
    """
    if device.type != "cpu":
        # One allocation, of which nothing is lost to rounding.
        return list(torch.zeros((count, *shape), dtype=dtype, device=device).unbind())
    num_items = int(np.prod(shape))
    item_bytes = torch.empty((), dtype=dtype).element_size()
    memory = mmap.mmap(-1, count * num_items * item_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # What a system lacks of these costs speed alone.
    with suppress(AttributeError, OSError, ValueError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    np.frombuffer(memory, dtype=np.uint8)[:: mmap.PAGESIZE] = 0
    return [
        torch.frombuffer(memory, dtype=dtype, count=num_items, offset=i * num_items * item_bytes).view(shape)
        for i in range(count)
    ]
