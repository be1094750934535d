"""Writes terminal states to the store, in the background and never in a request's way.

Two policies. ``turn``: each state as soon as its turn is over. ``evict``: when its blocks are about to go, oldest
first, and all that is resident when the engine drains; what a later turn has superseded by then is not written at all.
A state that waits to be written is pinned. The queue is bounded: what finds it full is dropped and counted.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from prometheus_client import Counter

from services.engine.node import Node
from services.engine.prefix_tree import PrefixTree
from services.engine.request import Request
from services.engine.runtime.paged import PagedRuntime
from services.engine.ssd_tier import SsdTier
from services.engine.store_calls import OutdatedWrite, SnapshotWrite, StoreUnavailable
from services.engine.store_client import Snapshot, StoreClient
from services.identity import PAGE_TOKENS

_WRITE_TIMEOUT_S = 120.0
_MAX_ATTEMPTS = 3
_MAX_CONVERSATIONS = 4096
_SHORT = 0.25
"""Share of free blocks below which states are written that are not yet evicted."""
_AT_ONCE = 2
_log = logging.getLogger(__name__)
_WRITES = Counter("fencepost_engine_snapshot_writes_total", "Terminal states offered to the store.", ["outcome"])


@dataclass(frozen=True, slots=True)
class Unsaved:
    """A terminal state: ``token_ids`` are cached behind the path to ``node``."""

    request: Request
    token_ids: bytes
    node: Node

    @property
    def conversation(self) -> tuple[str, str] | None:
        """Whose newest state it is; None for a request that belongs to none."""
        key = self.request.conversation_key
        return (self.request.cache_scope, key) if key else None


class SnapshotWriter:
    """Owned by the step loop's task, whose tree it pins nodes of; ``run`` must be running."""

    def __init__(
        self,
        tier: SsdTier,
        client: StoreClient,
        runtime: PagedRuntime,
        tree: PrefixTree,
        executor: ThreadPoolExecutor,
        *,
        on_turn: bool,
        max_pending: int,
        pause: Callable[[float], float] = lambda worked_s: 0.0,
    ) -> None:
        self.num_pending = 0
        """States queued and under way."""
        self.on_unpinned: Callable[[], None] = lambda: None
        """Called when blocks that were pinned may be evicted again: somebody may wait for them."""
        self._tier = tier
        self._client = client
        self._runtime = runtime
        self._tree = tree
        self._executor = executor
        self._on_turn = on_turn
        self._max_pending = max_pending
        self._pause = pause
        self._queue: asyncio.Queue[Unsaved] = asyncio.Queue()
        self._resident: OrderedDict[object, Unsaved] = OrderedDict()
        self._writing: Unsaved | None = None
        self._written = asyncio.Event()  # set between writes
        self._is_unwanted = False  # what is being written
        self._stored: OrderedDict[tuple[str, str], list[bytes]] = OrderedDict()  # manifests by conversation, by turn

    def offer(self, state: Unsaved) -> None:
        """A turn has ended with this state."""
        if len(state.token_ids) // 4 < self._tier.min_restore_tokens:
            return
        if self._on_turn:
            self._queue_up(state)
            return
        key = state.conversation or state.node
        self._resident[key] = state
        self._resident.move_to_end(key)
        if len(self._resident) > _MAX_CONVERSATIONS:
            self._resident.popitem(last=False)

    def press(self, num_free_blocks: int, num_blocks: int) -> None:
        """Blocks are running short, or not: under ``evict`` the oldest states are written before their blocks go."""
        while num_free_blocks < _SHORT * num_blocks and self._resident and self.num_pending < _AT_ONCE:
            self._queue_up(self._resident.popitem(last=False)[1])

    def forget(self, cache_scopes: Collection[str]) -> None:
        """Write nothing of these scopes that ended before now; an empty collection means all scopes."""
        self._resident = OrderedDict(
            (key, state)
            for key, state in self._resident.items()
            if cache_scopes and state.request.cache_scope not in cache_scopes
        )
        self._drop_queued(lambda state: not cache_scopes or state.request.cache_scope in cache_scopes)

    async def discard(self, conversation: tuple[str, str]) -> list[bytes]:
        """Write nothing more of a conversation that ended before now; the manifests that are stored for it.

        They are remembered until ``deleted``.
        """
        self._resident = OrderedDict((k, state) for k, state in self._resident.items() if k != conversation)
        self._drop_queued(lambda state: state.conversation == conversation)
        if self._writing is not None and self._writing.conversation == conversation:
            self._is_unwanted = True
            await self._written.wait()
        return list(dict.fromkeys(self._stored.get(conversation, ())))

    def deleted(self, conversation: tuple[str, str]) -> None:
        """What was stored for it is no more."""
        self._stored.pop(conversation, None)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            state = await self._queue.get()
            self._writing, self._is_unwanted = state, False
            self._written.clear()
            try:
                blocks = [node.block_id for node in self._tree.path(state.node)]
                await self._write(state, blocks)
            except Exception:  # noqa: BLE001 - a write may be lost, it may not end the engine
                _log.exception("a write failed")
            finally:
                self._writing = None
                self._written.set()
                self._done(state)
                self._queue.task_done()

    async def drain(self) -> None:
        """Write all that is resident and not written yet, newest first, and wait until it is stored."""
        while self._resident:
            self._queue_up(self._resident.popitem()[1], is_bounded=False)
        await self._queue.join()

    def _drop_queued(self, is_unwanted: Callable[[Unsaved], bool]) -> None:
        waiting = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        for state in waiting:
            if is_unwanted(state):
                self._done(state)
            else:
                self._queue.put_nowait(state)
            self._queue.task_done()

    def _queue_up(self, state: Unsaved, *, is_bounded: bool = True) -> None:
        if state.node.parent is None:
            _WRITES.labels("evicted").inc()
        elif is_bounded and self.num_pending >= self._max_pending:
            _WRITES.labels("queue_full").inc()
        else:
            self._tree.pin(state.node)
            self.num_pending += 1
            self._queue.put_nowait(state)

    def _done(self, state: Unsaved) -> None:
        self._tree.unpin(state.node)
        self.num_pending -= 1
        self.on_unpinned()

    async def _write(self, state: Unsaved, block_ids: Sequence[int]) -> None:
        """Only the pages that the store lacks, and the tail."""
        request, token_ids = state.request, state.token_ids
        namespace = self._tier.namespace(request.cache_scope)
        keys = self._tier.keys_of(request.cache_scope, token_ids)
        manifest_id = hashlib.blake2b(namespace + token_ids, digest_size=16).digest()
        stored = [] if state.conversation is None else self._stored.get(state.conversation, [])
        parent = stored[-1] if stored else None
        snapshot = Snapshot(
            namespace=namespace,
            manifest_id=manifest_id,
            parent_manifest_id=None if parent == manifest_id else parent,
            round=len(stored),
            token_ids=token_ids,
            page_keys=keys,
            resident_bytes=len(token_ids) // 4 * self._runtime.layout.bytes_per_token,
            tenant=request.tenant,
        )
        try:
            dropped = await self._send_all(snapshot, block_ids)
        except (StoreUnavailable, TimeoutError) as error:
            dropped = str(error)
        if dropped is not None:
            _WRITES.labels("dropped").inc()
            _log.warning("disk tier: a terminal state of %d tokens was not stored: %s", len(token_ids) // 4, dropped)
            return
        _WRITES.labels("stored").inc()
        if state.conversation is not None:
            self._stored.setdefault(state.conversation, stored).append(manifest_id)
            self._stored.move_to_end(state.conversation)
            if len(self._stored) > _MAX_CONVERSATIONS:
                self._stored.popitem(last=False)

    async def _send_all(self, snapshot: Snapshot, block_ids: Sequence[int]) -> str | None:
        """None when it is stored, or why not. Raises StoreUnavailable."""
        token_ids, keys = snapshot.token_ids, snapshot.page_keys
        for _ in range(_MAX_ATTEMPTS):
            with suppress(OutdatedWrite):
                async with self._client.write(snapshot, _WRITE_TIMEOUT_S) as write:
                    for page in write.needed_pages:
                        await self._send(write, keys[page], block_ids, token_ids, page * PAGE_TOKENS, PAGE_TOKENS)
                    first = len(keys) * PAGE_TOKENS
                    if (rest := len(token_ids) // 4 - first) > 0:
                        await self._send(write, None, block_ids, token_ids, first, rest)
                    return await write.commit()
        return "what it shares with others was deleted again and again"

    async def _send(
        self,
        write: SnapshotWrite,
        page_key: bytes | None,
        block_ids: Sequence[int],
        token_ids: bytes,
        first: int,
        count: int,
    ) -> None:
        ids = token_ids[first * 4 : (first + count) * 4]
        loop = asyncio.get_running_loop()
        for layer in range(self._runtime.layout.num_layers):
            if self._is_unwanted:
                raise StoreUnavailable("its conversation was deleted")
            started_s = time.monotonic()
            data = await loop.run_in_executor(self._executor, self._read_layer, block_ids, first, count, layer)
            await write.send(page_key, layer, data, ids)
            await asyncio.sleep(self._pause(time.monotonic() - started_s))

    def _read_layer(self, block_ids: Sequence[int], first: int, count: int, layer: int) -> bytes:
        """All channels of a layer, one behind the other."""
        channels = range(len(self._runtime.layout.channels))
        return b"".join(self._runtime.read_span(block_ids, first, count, layer, channel) for channel in channels)
