"""Keeps the C allocator from giving memory back to the system between two reads.

Every chunk passes through a buffer of its size. By default glibc gives such buffers back when they are freed and takes
new ones for the next chunks, which the system clears page by page: half the cost of a warm read.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 256 * 2**20
_LARGEST_BYTES = 32 * 2**20
"""The most that glibc accepts."""


def keep_freed_memory() -> None:
    """For the whole process; without glibc it does nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
