"""The disk tier as the engine uses it: look up before admission, restore into blocks, write after each turn.

Restored and written state passes through threads of its own and never through the step loop's; blocks that are being
read are pinned by the caller, blocks that are being filled belong to one sequence. A failure shortens a hit or drops a
write; it never fails a request.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

import numpy as np
from prometheus_client import Counter

from services.engine.request import Request
from services.engine.runtime.layout import StateLayout
from services.engine.runtime.paged import PagedRuntime
from services.engine.store_client import Piece, Snapshot, SnapshotWrite, StoreClient, StoreUnavailable
from services.identity import PAGE_TOKENS, page_key_secret, page_keys, state_namespace

_WRITE_TIMEOUT_S = 120.0
_PAGE_FORMAT = 1
_NUMERICS = "paged-1"
_MAX_CONVERSATIONS = 4096
_log = logging.getLogger(__name__)
_RESTORES = Counter("fencepost_engine_restores_total", "Restores by outcome.", ["outcome"])
_RESTORED_TOKENS = Counter("fencepost_engine_restored_tokens_total", "Tokens whose state was read from the store.")
_WRITES = Counter("fencepost_engine_snapshot_writes_total", "Terminal states offered to the store.", ["outcome"])


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """What makes state interchangeable, beside the scope."""

    model_type: str
    weights_fingerprint: str
    tokenizer_fingerprint: str
    weight_format: str


@dataclass(frozen=True, slots=True)
class StoredHit:
    """A leased prefix of a prompt: all its pages from the first one on, and a tail behind them.

    Which of them are read is decided when a restore begins: what was resident at the lookup may be gone by then.
    """

    lease_id: str
    num_tokens: int
    page_keys: tuple[bytes, ...]
    manifest_id: bytes | None
    tail_tokens: int


class SsdTier:
    """One engine's use of one store. Methods run on the loop; bytes are copied in ``executor``."""

    def __init__(
        self,
        client: StoreClient,
        runtime: PagedRuntime,
        identity: ModelIdentity,
        executor: ThreadPoolExecutor,
        *,
        min_restore_tokens: int,
        restore_timeout_s: float,
    ) -> None:
        self.num_leases = 0
        self._client = client
        self._runtime = runtime
        self._identity = identity
        self._executor = executor
        self._min_restore_tokens = min_restore_tokens
        self._restore_timeout_s = restore_timeout_s
        self._releases: set[asyncio.Task[None]] = set()
        self._heads: OrderedDict[tuple[str, str], tuple[bytes, int]] = OrderedDict()

    def namespace(self, cache_scope: str) -> bytes:
        """Inside which state is interchangeable."""
        return state_namespace(
            cache_scope=cache_scope,
            model=self._identity.model_type,
            weights_fingerprint=self._identity.weights_fingerprint,
            weight_format=self._identity.weight_format,
            kv_dtype=self._runtime.layout.dtype,
            page_format=_PAGE_FORMAT,
            numerics=_NUMERICS,
        )

    async def lookup(self, request: Request, resident_tokens: int) -> StoredHit | None:
        """What the store has beyond ``resident_tokens``, leased; None when that is not worth a read."""
        reusable = request.num_tokens - 1
        if reusable - resident_tokens < self._min_restore_tokens:
            return None
        ids = request.token_ids[: reusable * 4]
        keys = page_keys(self._secret(request.cache_scope), ids)
        first_page = min(resident_tokens // PAGE_TOKENS, len(keys))
        try:
            found = await self._client.match(
                self.namespace(request.cache_scope), keys, first_page, ids[first_page * PAGE_TOKENS * 4 :]
            )
        except StoreUnavailable as error:
            _log.warning("disk tier: no lookup: %s", error)
            return None
        if not found.lease_id:
            return None
        self.num_leases += 1
        whole = found.pages_present * PAGE_TOKENS
        tail_tokens = len(found.tail_token_ids) // 4
        tail_page = (found.boundary_tokens - tail_tokens) // PAGE_TOKENS
        at = tail_page * PAGE_TOKENS * 4
        has_tail = found.boundary_tokens > whole and ids[at : at + tail_tokens * 4] == found.tail_token_ids
        num_pages = tail_page if has_tail else found.pages_present
        hit = StoredHit(
            lease_id=found.lease_id,
            num_tokens=found.boundary_tokens if has_tail else whole,
            page_keys=tuple(keys[:num_pages]),
            manifest_id=found.manifest_id if has_tail else None,
            tail_tokens=tail_tokens if has_tail else 0,
        )
        if hit.num_tokens - resident_tokens < self._min_restore_tokens or num_pages > found.pages_present:
            await self.release(hit)
            return None
        return hit

    async def release(self, hit: StoredHit) -> None:
        """Give the lease back."""
        self.num_leases -= 1
        await self._client.release(hit.lease_id)

    def release_soon(self, hit: StoredHit) -> None:
        """Give the lease back in the background."""
        task = asyncio.create_task(self.release(hit))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    def is_worth_writing(self, num_tokens: int) -> bool:
        """Whether a state this long could be worth a restore."""
        return num_tokens >= self._min_restore_tokens

    def dropped(self) -> None:
        """Count a terminal state that found the queue full."""
        _WRITES.labels("queue_full").inc()

    async def restore(self, request: Request, hit: StoredHit, block_ids: Sequence[int], resident_tokens: int) -> int:
        """Fill blocks behind ``resident_tokens``; how many leading tokens are then in place.

        Blocks below ``resident_tokens`` are shared and are not written. Every piece is compared with the prompt's ids
        and the layout before it is written. Releases the lease on every path.
        """
        filling = _Filling(self._runtime.layout, request.token_ids, hit, resident_tokens)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._restore_timeout_s):
                pieces = self._client.read(
                    self.namespace(request.cache_scope),
                    hit.lease_id,
                    filling.wanted_keys,
                    hit.manifest_id,
                    self._restore_timeout_s,
                )
                async with aclosing(pieces):
                    async for piece in pieces:
                        for span in filling.add(piece):
                            write = partial(self._runtime.write_span, block_ids, *span)
                            # Not cancelled half-way: the thread must have let go of the blocks before they are freed.
                            await asyncio.shield(loop.run_in_executor(self._executor, write))
                        filling.written()
        except (StoreUnavailable, TimeoutError, ValueError) as error:
            _log.warning("disk tier: a restore ended at %d of %d tokens: %s", filling.num_tokens, hit.num_tokens, error)
        finally:
            # Waits for the write in flight, if we were cancelled during it.
            await asyncio.shield(self._settle(hit))
        _RESTORES.labels("whole" if filling.num_tokens == hit.num_tokens else "short").inc()
        _RESTORED_TOKENS.inc(max(0, filling.num_tokens - resident_tokens))
        return filling.num_tokens

    async def persist(self, request: Request, token_ids: bytes, block_ids: Sequence[int]) -> None:
        """Write a terminal state of ``token_ids``: only the pages that the store lacks, and the tail."""
        namespace = self.namespace(request.cache_scope)
        keys = page_keys(self._secret(request.cache_scope), token_ids)
        manifest_id = hashlib.blake2b(namespace + token_ids, digest_size=16).digest()
        conversation = (request.cache_scope, request.conversation_key)
        parent, round_ = self._heads.get(conversation, (None, -1)) if request.conversation_key else (None, -1)
        snapshot = Snapshot(
            namespace=namespace,
            manifest_id=manifest_id,
            parent_manifest_id=None if parent == manifest_id else parent,
            round=round_ + 1,
            token_ids=token_ids,
            page_keys=keys,
            resident_bytes=len(token_ids) // 4 * self._runtime.layout.bytes_per_token,
            tenant=request.tenant,
        )
        try:
            async with self._client.write(snapshot, _WRITE_TIMEOUT_S) as write:
                for page in write.needed_pages:
                    await self._send(write, keys[page], block_ids, token_ids, page * PAGE_TOKENS, PAGE_TOKENS)
                first = len(keys) * PAGE_TOKENS
                if (rest := len(token_ids) // 4 - first) > 0:
                    await self._send(write, None, block_ids, token_ids, first, rest)
                dropped = await write.commit()
        except (StoreUnavailable, TimeoutError) as error:
            dropped = str(error)
        if dropped is not None:
            _WRITES.labels("dropped").inc()
            _log.warning("disk tier: a terminal state of %d tokens was not stored: %s", len(token_ids) // 4, dropped)
            return
        _WRITES.labels("stored").inc()
        if request.conversation_key:
            self._heads[conversation] = (manifest_id, round_ + 1)
            self._heads.move_to_end(conversation)
            if len(self._heads) > _MAX_CONVERSATIONS:
                self._heads.popitem(last=False)

    async def _send(
        self,
        write: SnapshotWrite,
        page_key: bytes | None,
        block_ids: Sequence[int],
        token_ids: bytes,
        first: int,
        count: int,
    ) -> None:
        layout = self._runtime.layout
        ids = token_ids[first * 4 : (first + count) * 4]
        loop = asyncio.get_running_loop()
        for layer in range(layout.num_layers):
            for channel in range(len(layout.channels)):
                read = partial(self._runtime.read_span, block_ids, first, count, layer, channel)
                data = await loop.run_in_executor(self._executor, read)
                await write.send(page_key, layer, channel, data, ids)

    async def _settle(self, hit: StoredHit) -> None:
        # The executor is first in, first out: when this no-op has run, so has every write submitted before it.
        await asyncio.get_running_loop().run_in_executor(self._executor, lambda: None)
        await self.release(hit)

    def _secret(self, cache_scope: str) -> bytes:
        return page_key_secret(cache_scope, self._identity.tokenizer_fingerprint)


_Span = tuple[int, int, int, int, bytes]
"""first token, tokens, layer, channel, bytes: the arguments of ``write_span`` behind the block table."""


class _Filling:
    """Progress of one restore: whole (layer, channel) spans, in order, each checked against prompt and layout."""

    def __init__(self, layout: StateLayout, token_ids: bytes, hit: StoredHit, resident_tokens: int) -> None:
        self._layout = layout
        self._token_ids = token_ids
        self._hit = hit
        self._resident_tokens = resident_tokens
        self._first_page = min(resident_tokens // PAGE_TOKENS, len(hit.page_keys))
        self.wanted_keys = hit.page_keys[self._first_page :]
        """Pages to read: from the one in which the resident tokens end."""
        self._pending = b""
        self._position = (0, 0, 0)  # owner (pages, then the tail), layer, channel: what must come next
        self.num_tokens = resident_tokens
        self._complete_tokens = resident_tokens

    def add(self, piece: Piece) -> list[_Span]:
        """Check a piece; the span that it completes, cut to what lies behind the resident tokens.

        Raises ValueError for anything but the next piece of a right page.
        """
        hit, layout = self._hit, self._layout
        owner = len(self.wanted_keys) if piece.page is None else piece.page
        first = (self._first_page + owner) * PAGE_TOKENS
        count = hit.tail_tokens if piece.page is None else PAGE_TOKENS
        if (owner, piece.layer, piece.channel) != self._position or piece.offset != len(self._pending):
            raise ValueError("a piece out of order")
        if piece.total != layout.span_bytes(piece.channel, count):
            raise ValueError("a piece of another layout")
        is_first = self._position[1:] == (0, 0) and piece.offset == 0
        if is_first and piece.token_ids != self._token_ids[first * 4 : (first + count) * 4]:
            raise ValueError("a page of other tokens")
        self._pending += piece.data
        if len(self._pending) > piece.total:
            raise ValueError("a piece that is too long")
        if len(self._pending) < piece.total:
            return []
        data, self._pending = self._pending, b""
        self._advance(owner, piece.layer, piece.channel, first + count)
        skipped = min(count, max(0, self._resident_tokens - first))
        if skipped:
            heads = layout.channels[piece.channel].num_heads
            rows = np.frombuffer(data, dtype=np.uint8).reshape(heads, count, -1)
            data = rows[:, skipped:].tobytes()
        return [(first + skipped, count - skipped, piece.layer, piece.channel, data)] if count > skipped else []

    def written(self) -> None:
        """What ``add`` returned is in place."""
        self.num_tokens = max(self.num_tokens, self._complete_tokens)

    def _advance(self, owner: int, layer: int, channel: int, end: int) -> None:
        channel += 1
        if channel == len(self._layout.channels):
            layer, channel = layer + 1, 0
        if layer == self._layout.num_layers:
            owner, layer = owner + 1, 0
            self._complete_tokens = end
        self._position = (owner, layer, channel)
