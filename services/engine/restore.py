"""One restore: reads tile after tile, checks every piece, fills blocks, opens layers.

Nothing that a store says is taken on trust: each piece must be the next one of a right owner, of this layout, with the
prompt's own token ids and a right checksum. A page that is missing or bad shortens the restore to what lies before it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from crc32c import crc32c

from services.engine.runtime.gate import LayerGate
from services.engine.runtime.layout import StateLayout
from services.engine.runtime.paged import PagedRuntime
from services.engine.runtime.runs import Run, slot_runs
from services.engine.staging import NUM_FILES, LentFile, Staging
from services.engine.store_calls import Piece, Skipped, StoreRead, StoreUnavailable
from services.engine.store_client import ReadQuery, StoreClient
from services.engine.tiles import Owner, Span, Tile, cut, spans

_NUM_AHEAD = NUM_FILES
_GENTLE_BYTES = 4 * 2**20
"""Read at once while others compute."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Means:
    """What restores work with.

    ``pause`` says how long to rest after so many seconds of work, so that others get on meanwhile; ``hold`` keeps work
    that goes on after its restore has ended.
    """

    runtime: PagedRuntime
    client: StoreClient
    executor: ThreadPoolExecutor
    staging: Staging | None
    pause: Callable[[float], float]
    hold: Callable[[Coroutine[Any, Any, None]], None]


class Restore:
    """Run it once. ``num_usable`` owners, from the first on, are still hoped for, and in place when ``run`` returns."""

    def __init__(self, means: Means, owners: Sequence[Owner], block_ids: Sequence[int], gate: LayerGate) -> None:
        """``block_ids`` are one sequence's; nobody else reads or writes those that the owners' wanted tokens lie in."""
        self.num_usable = len(owners)
        self.num_bytes = 0
        self._means = means
        self._owners = owners
        self._gate = gate
        size = means.runtime.block_tokens
        self._runs: list[tuple[Run, ...]] = [
            slot_runs(block_ids, owner.use_from, owner.use_to - owner.use_from, size) for owner in owners
        ]

    async def run(self, namespace: bytes, lease_id: str, timeout_s: float) -> None:
        """Fill the blocks. Raises StoreUnavailable or TimeoutError where nothing is usable.

        When it returns, raises or has been cancelled, no byte is written to the blocks any more.
        """
        loop = asyncio.get_running_loop()
        staging = self._means.staging
        limit, num_ahead = None if staging is None else staging.file_bytes, _NUM_AHEAD
        if limit is not None and self._means.pause(1.0):
            # The store fills a tile without a rest.
            limit, num_ahead = min(limit, _GENTLE_BYTES), 1
        tiles = cut(self._means.runtime.layout, self._owners, limit)
        begin = partial(self._begin, namespace, lease_id, timeout_s)
        waiting = deque(tiles)
        ahead: deque[asyncio.Task[_Read | None]] = deque()
        try:
            async with asyncio.timeout(timeout_s):
                while waiting or ahead:
                    # Under way while others are copied into place: a disk is fast only when it is asked ahead.
                    while waiting and len(ahead) < num_ahead:
                        ahead.append(asyncio.create_task(begin(waiting.popleft())))
                    read = await asyncio.shield(ahead[0])
                    ahead.popleft()
                    if read is not None:
                        await self._consume(read)
                    if self.num_usable == 0:
                        raise StoreUnavailable("the first page is missing or bad")
        except BaseException:
            self._gate.fail()
            self.num_usable = 0
            raise
        finally:
            for task in ahead:
                self._means.hold(self._give_up(task))
            # The executor is first in, first out: when this no-op has run, so has every write before it.
            await asyncio.shield(loop.run_in_executor(self._means.executor, lambda: None))

    async def _begin(self, namespace: bytes, lease_id: str, timeout_s: float, tile: Tile) -> _Read | None:
        """Send a tile's read; None when nothing of it is wanted any more."""
        last = min(tile.last_owner, self.num_usable)
        if last <= tile.first_owner:
            return None
        owners = self._owners[tile.first_owner : last]
        query = ReadQuery(
            namespace=namespace,
            lease_id=lease_id,
            page_keys=[owner.page_key for owner in owners if owner.page_key is not None],
            manifest_id=owners[-1].manifest_id,
            layers=tile.layers,
        )
        staging = self._means.staging
        lent = None if staging is None else await staging.take()
        tile = Tile(tile.layers, tile.first_owner, last)
        return _Read(self._means.client.read(query, timeout_s, lent), tile, lent)

    async def _consume(self, read: _Read) -> None:
        """Copy a tile into place as it comes."""
        filling = _Filling(self._means.runtime.layout, self._owners, read.tile)
        is_quiet = False
        try:
            started_s = time.monotonic()
            async for event in read.store_read:
                if isinstance(event, Skipped):
                    self._shorten(read.tile.first_owner + event.first_page)
                    filling.skip(self.num_usable)
                    continue
                await self._copy(filling.add(event))
                if filling.fault is not None:
                    _log.warning("disk tier: a store sent %s", filling.fault)
                    break
                # Of the last owners only: what lies before them came with an earlier tile.
                if read.tile.last_owner >= self.num_usable:
                    self._gate.open(filling.num_layers)
                await asyncio.sleep(self._means.pause(time.monotonic() - started_s))
                started_s = time.monotonic()
            else:
                is_quiet = True
        finally:
            if (owner := filling.missing_from) is not None:
                self._shorten(owner)
            if is_quiet:
                read.give_back(self._means.staging, is_quiet=True)
            else:
                self._means.hold(self._finish(read))

    async def _copy(self, jobs: Sequence[_Job]) -> None:
        wanted = [job for job in jobs if job.span.owner < self.num_usable]
        self.num_bytes += sum(len(piece.data) for job in wanted for piece in job.pieces)
        loop = asyncio.get_running_loop()
        # Not cancelled half-way: the thread must have let go of the blocks before they are freed.
        bad = await asyncio.shield(loop.run_in_executor(self._means.executor, self._write, wanted))
        if bad is not None:
            self._shorten(bad)

    def _shorten(self, num_owners: int) -> None:
        if num_owners < self.num_usable:
            self.num_usable = num_owners
            # Who computes with more has to begin again.
            self._gate.fail()

    def _write(self, jobs: Sequence[_Job]) -> int | None:
        """Check and copy, on the executor's thread; the first owner that is bad, behind which nothing is copied."""
        bad: int | None = None
        for job in jobs:
            if bad is not None and job.span.owner >= bad:
                continue
            if any(crc32c(piece.data) != piece.crc32c for piece in job.pieces):
                bad = job.span.owner
                continue
            owner = self._owners[job.span.owner]
            data = job.pieces[0].data if len(job.pieces) == 1 else b"".join(piece.data for piece in job.pieces)
            self._put(job.span, owner, memoryview(data))
        return bad

    def _put(self, span: Span, owner: Owner, data: memoryview) -> None:
        """Copy what is wanted of an owner's layer into place."""
        runtime, layout = self._means.runtime, self._means.runtime.layout
        wanted = slice(owner.use_from - owner.first_token, owner.use_to - owner.first_token)
        for channel, shape in enumerate(layout.channels):
            size = layout.span_bytes(channel, owner.num_tokens)
            rows = np.frombuffer(data[:size], dtype=np.uint8).reshape(shape.num_heads, owner.num_tokens, -1)
            runtime.write_rows(self._runs[span.owner], span.layer, channel, rows[:, wanted])
            data = data[size:]

    async def _give_up(self, ahead: asyncio.Task[_Read | None]) -> None:
        if ahead.cancel():
            with suppress(asyncio.CancelledError):
                await ahead
        if not ahead.cancelled() and ahead.exception() is None and (read := ahead.result()) is not None:
            await self._finish(read)

    async def _finish(self, read: _Read) -> None:
        if read.lent is None:
            read.store_read.cancel()
        else:
            read.give_back(self._means.staging, is_quiet=await read.store_read.drain())


@dataclass(frozen=True, slots=True)
class _Read:
    """A read under way and what was lent for it; ``tile`` is what it brings."""

    store_read: StoreRead
    tile: Tile
    lent: LentFile | None

    def give_back(self, staging: Staging | None, *, is_quiet: bool) -> None:
        if staging is not None and self.lent is not None:
            staging.give_back(self.lent, is_quiet=is_quiet)


@dataclass(frozen=True, slots=True)
class _Job:
    """A whole span, in pieces."""

    span: Span
    pieces: Sequence[Piece]


class _Filling:
    """Checks that the pieces of a tile come as they must; with the first one that does not, it stops."""

    def __init__(self, layout: StateLayout, owners: Sequence[Owner], tile: Tile) -> None:
        self._layout = layout
        self._owners = owners
        self._tile = tile
        self._expected = spans(tile)
        self._next = next(self._expected, None)
        self._end = tile.last_owner
        self._pieces: list[Piece] = []
        self._num_bytes = 0
        self.fault: str | None = None
        """What is wrong with a piece."""

    @property
    def missing_from(self) -> int | None:
        """The first owner of whose layers one is missing still; None when the tile is whole."""
        if self._next is None:
            return None
        return self._next.owner if self._next.layer == self._tile.layers[-1] else self._tile.first_owner

    @property
    def num_layers(self) -> int:
        """Leading layers that are whole, if those before the tile are."""
        return self._tile.layers.stop if self._next is None else self._next.layer

    def skip(self, first_owner: int) -> None:
        """Nothing of the owners from this one on will come any more."""
        self._end = min(self._end, first_owner)
        if self._next is not None and self._next.owner >= self._end:
            self._advance()

    def add(self, pieces: Sequence[Piece]) -> list[_Job]:
        """The spans that these complete, up to the first fault."""
        jobs: list[_Job] = []
        for piece in pieces:
            if self._next is None:
                self.fault = "a piece too many"
                break
            self.fault = self._fault(piece, self._next)
            if self.fault is not None:
                break
            self._pieces.append(piece)
            self._num_bytes += len(piece.data)
            if self._num_bytes == piece.total:
                jobs.append(_Job(self._next, self._pieces))
                self._advance()
        return jobs

    def _fault(self, piece: Piece, span: Span) -> str | None:
        owner = self._owners[span.owner]
        place = None if owner.page_key is None else span.owner - self._tile.first_owner
        if (piece.page, piece.layer, piece.channel, piece.offset) != (place, span.layer, 0, self._num_bytes):
            return "a piece out of order"
        if piece.total != self._layout.layer_bytes(owner.num_tokens):
            return "a piece of another layout"
        if (span.layer, piece.offset) == (0, 0) and piece.token_ids != owner.token_ids:
            return "a page of other tokens"
        if not 0 < len(piece.data) <= piece.total - self._num_bytes:
            return "a piece of a wrong length"
        return None

    def _advance(self) -> None:
        self._pieces, self._num_bytes = [], 0
        self._next = next((span for span in self._expected if span.owner < self._end), None)
