"""Copies of state between the pools and host memory, on threads beside the one that computes.

On CPU the pools are host memory. Elsewhere copies go through pinned buffers and a lane of their own (a CUDA side
stream), so that a restore moves while a step computes: a write returns once its bytes have left the caller's memory,
and a forward waits on the device, layer by layer, for the writes that were asked for before it. `LayerGate` says when
they were asked for, the lane's marks when they are done.
"""

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from services.engine.runtime.runs import Run

Pools = Sequence[Sequence[torch.Tensor]]
"""By layer and channel, each [heads, slots, head_dim]."""

_NUM_BUFFERS = 4
"""One is filled while others are on their way."""


class StateCopies(Protocol):
    """How state gets into pools and out of them. Any thread may read and write.

    Invariant: what a thread has computed is settled before others may read its slots or write to them.
    """

    def read(self, layer: int, channel: int, runs: Sequence[Run]) -> bytes:
        """The runs' slots, C-order [heads, tokens, bytes of a head]."""
        ...

    def write(self, layer: int, channel: int, runs: Sequence[Run], rows: npt.NDArray[np.uint8]) -> None:
        """Fill the runs' slots from ``rows`` [heads, tokens, bytes of a head], which the caller may reuse then."""
        ...

    def await_layer(self, layer: int) -> None:
        """What the calling thread computes from now on sees what was written to the layer before."""
        ...

    def settle(self) -> None:
        """Return when all that the calling thread has asked the device to compute is done."""
        ...


class HostCopies:
    """Of pools in host memory, where everything is done when a call returns."""

    def __init__(self, pools: Pools) -> None:
        # Views as bytes, once: making them costs more than a copy of one block.
        self._bytes = [[pool.view(torch.uint8).numpy() for pool in layer] for layer in pools]

    def read(self, layer: int, channel: int, runs: Sequence[Run]) -> bytes:
        pool = self._bytes[layer][channel]
        parts = [pool[:, first:stop] for first, stop in runs]
        return np.concatenate(parts, axis=1).tobytes() if len(parts) > 1 else parts[0].tobytes()

    def write(self, layer: int, channel: int, runs: Sequence[Run], rows: npt.NDArray[np.uint8]) -> None:
        # Not torch's copy: on another thread it would start a second team of OpenMP threads, which fight the forward's
        # for the cores.
        pool, offset = self._bytes[layer][channel], 0
        for first, stop in runs:
            pool[:, first:stop] = rows[:, offset : offset + stop - first]
            offset += stop - first

    def await_layer(self, layer: int) -> None:
        pass

    def settle(self) -> None:
        pass


class Mark(Protocol):
    """A point in a lane's work, moved by `record`."""

    def record(self) -> None:
        """Here: behind all that the lane was asked for."""
        ...

    def wait(self) -> None:
        """Return when the lane has come here."""
        ...

    def hold_compute(self) -> None:
        """What the calling thread computes from now on begins when the lane has come here; returns at once."""
        ...


class Lane(Protocol):
    """A device's copies, one behind the other, beside what is computed."""

    def opened(self) -> AbstractContextManager[object]:
        """What is asked for inside goes into the lane."""
        ...

    def new_mark(self) -> Mark:
        """One that nobody waits for yet."""
        ...

    def new_buffer(self, num_bytes: int) -> torch.Tensor:
        """Host memory, uint8, that the device reaches by itself."""
        ...

    def settle_compute(self) -> None:
        """Return when all that the calling thread has asked the device to compute is done."""
        ...


class _Buffer:
    """Pinned memory that grows to the largest copy, and the end of its last use."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._memory: torch.Tensor | None = None
        self.used = lane.new_mark()

    def take(self, num_bytes: int) -> torch.Tensor:
        """Its first bytes, which nothing is copied from or to any more."""
        self.used.wait()
        if self._memory is None or len(self._memory) < num_bytes:
            self._memory = self._lane.new_buffer(num_bytes)
        return self._memory[:num_bytes]


class StagedCopies:
    """Of pools in a device's memory, through buffers and a lane."""

    def __init__(self, pools: Pools, lane: Lane) -> None:
        self._lane = lane
        self._bytes = [[pool.view(torch.uint8) for pool in layer] for layer in pools]
        self._written = [lane.new_mark() for _ in pools]
        self._buffers = [_Buffer(lane) for _ in range(_NUM_BUFFERS)]
        self._next = 0
        self._lock = threading.Lock()

    def read(self, layer: int, channel: int, runs: Sequence[Run]) -> bytes:
        pool = self._bytes[layer][channel]
        with self._lock:
            buffer = self._next_buffer()
            parts = _parts(buffer.take(_num_bytes(pool, runs)), pool, runs)
            with self._lane.opened():
                for (first, stop), part in zip(runs, parts, strict=True):
                    # Made one stretch on the device first: torch copies anything else by way of pageable memory.
                    part.copy_(pool.narrow(1, first, stop - first).contiguous(), non_blocking=True)
                buffer.used.record()
            buffer.used.wait()
            arrays = [part.numpy() for part in parts]
            return np.concatenate(arrays, axis=1).tobytes() if len(arrays) > 1 else arrays[0].tobytes()

    def write(self, layer: int, channel: int, runs: Sequence[Run], rows: npt.NDArray[np.uint8]) -> None:
        pool, offset = self._bytes[layer][channel], 0
        with self._lock:
            buffer = self._next_buffer()
            parts = _parts(buffer.take(_num_bytes(pool, runs)), pool, runs)
            with self._lane.opened():
                for (first, stop), part in zip(runs, parts, strict=True):
                    part.numpy()[...] = rows[:, offset : offset + stop - first]
                    pool.narrow(1, first, stop - first).copy_(part.to(pool.device, non_blocking=True))
                    offset += stop - first
                buffer.used.record()
                self._written[layer].record()

    def await_layer(self, layer: int) -> None:
        self._written[layer].hold_compute()

    def settle(self) -> None:
        self._lane.settle_compute()

    def _next_buffer(self) -> _Buffer:
        self._next = (self._next + 1) % _NUM_BUFFERS
        return self._buffers[self._next]


def _num_bytes(pool: torch.Tensor, runs: Sequence[Run]) -> int:
    return pool.shape[0] * sum(stop - first for first, stop in runs) * pool.shape[2]


def _parts(memory: torch.Tensor, pool: torch.Tensor, runs: Sequence[Run]) -> list[torch.Tensor]:
    """The memory cut for the runs, each part [heads, slots, bytes of a head]."""
    heads, _, width = pool.shape
    parts: list[torch.Tensor] = []
    offset = 0
    for first, stop in runs:
        num_bytes = heads * (stop - first) * width
        parts.append(memory[offset : offset + num_bytes].view(heads, stop - first, width))
        offset += num_bytes
    return parts
