"""Write: one terminal state from header to result.

header → pin what is there, say what is needed → chunks, checked and written without WAL → commit: flush the chunks,
then write and sync the rows that name them. Until that sync nothing is visible, and a Write that ends before it leaves
only blobs that nobody names, which are deleted here or at the next start.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from services.identity import PAGE_TOKENS
from services.kvstore.errors import DatabaseError, FormatDiffersError, KvstoreError, TooManyWritersError
from services.kvstore.format import CHUNK_OVERHEAD_BYTES, chunk_key, encode_chunk, manifest_bytes, page_bytes
from services.kvstore.incoming import Accepted, Header, Incoming, IncomingChunk, Received
from services.kvstore.leases import Pin
from services.kvstore.state import Manifest, ManifestId, Page
from services.kvstore.store import OpenWrite, Store

_HOP_BYTES = 4 * 2**20
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a Write; ``dropped_reason`` is None when it is stored and durable.

    ``may_repeat``: dropped because others have deleted meanwhile what it counted on.
    """

    stored_bytes: int
    deduplicated_pages: int
    dropped_reason: str | None
    may_repeat: bool = False


class WriteSession:
    """One Write. Call ``add`` for every chunk, ``commit`` once, and ``close`` in any case."""

    def __init__(self, store: Store, header: Header) -> None:
        """Take a writer's slot. Raises TooManyWritersError, or what ``Header.check`` raises."""
        header.check(PAGE_TOKENS)
        if len(store.open_writes) >= store.limits.max_writers:
            raise TooManyWritersError(f"{len(store.open_writes)} Writes are open", retry_after_s=1.0)
        store.use_layout(header.namespace)
        keys = header.page_keys
        misplaced = store.catalog.first_misplaced(header.namespace, keys)
        if misplaced is not None:
            raise FormatDiffersError(f"page {misplaced}: stored behind another page than the one before it here")
        missing = {key: i for i, key in enumerate(keys) if store.catalog.page(header.namespace, key) is None}
        self.needed = list(missing.values())
        self._store = store
        self._header = header
        self._incoming = Incoming(header, missing)
        self._pin = Pin(header.namespace, tuple(key for key in keys if key not in missing))
        self._generation = store.database.generation
        self._pending: list[Accepted] = []
        self._pending_bytes = 0
        self._reserved_bytes = 0
        self._running: asyncio.Task[Any] | None = None
        self._is_stored = False
        self._slot = OpenWrite(header.namespace, header.manifest_id, header.tenant)
        store.pins.pin(self._pin)
        store.open_writes.add(self._slot)

    async def add(self, chunk: IncomingChunk) -> None:
        """Check a chunk and, with others, write it. Raises InvalidRequestError, NoSpaceError or DatabaseError."""
        accepted = self._incoming.accept(chunk)
        self._pending.append(accepted)
        self._pending_bytes += len(accepted.data)
        if self._pending_bytes >= _HOP_BYTES:
            await self._write_pending()

    async def commit(self) -> Outcome:
        """Make everything durable and visible. Raises InvalidRequestError where bytes are missing."""
        received = self._incoming.finish()
        missing = [i for i in self.needed if all(page.key != self._header.page_keys[i] for page in received.pages)]
        if missing:
            return self._dropped(f"page {missing[0]} is neither present nor sent")
        await self._write_pending()
        manifest = self._manifest(received)
        # The small rows count too.
        await self._reserve(sum(map(page_bytes, received.pages)) + manifest_bytes(manifest) - self._reserved_bytes)
        return await self._run(self._commit(received.pages, manifest))

    def close(self) -> None:
        """Release what is held; delete what was written, unless it is stored. Returns at once."""
        if not self._is_stored:
            self._store.background.spawn(self._clean())

    async def _write_pending(self) -> None:
        rows, self._pending, self._pending_bytes = self._pending, [], 0
        num_bytes = sum(len(row.data) + len(row.token_ids) + CHUNK_OVERHEAD_BYTES for row in rows)
        await self._reserve(num_bytes)

        def write() -> None:
            self._store.database.put_chunks(
                [
                    (chunk_key(row.blob_id, row.span), encode_chunk(row.head, row.token_ids, row.data, row.crc32c))
                    for row in rows
                ]
            )

        await self._run(self._store.database.run(write))

    async def _reserve(self, num_bytes: int) -> None:
        await self._store.reserve(num_bytes)
        if self._reserved_bytes == 0:
            # Reserving may have reopened the database; nothing was written before.
            self._generation = self._store.database.generation
        self._reserved_bytes += num_bytes
        self._check_generation()

    async def _commit(self, pages: Sequence[Page], manifest: Manifest) -> Outcome:
        store, header = self._store, self._header
        await store.database.run(store.database.flush_pages)
        async with store.lock:
            self._check_generation()
            if self._slot.is_revoked:
                return self._dropped("deleted while it was written")
            sent = {page.key: page for page in pages}
            for index, key in enumerate(header.page_keys):
                stored = store.catalog.page(header.namespace, key)
                if stored is None and key not in sent:
                    return Outcome(0, 0, f"page {index} was deleted while this was written", may_repeat=True)
                if stored is not None and key in sent:
                    _check_equal(index, sent[key], stored)
            if (misplaced := store.catalog.first_misplaced(header.namespace, header.page_keys)) is not None:
                return self._dropped(f"page {misplaced} has meanwhile been stored behind another page")
            new = [page for page in pages if store.catalog.page(header.namespace, page.key) is None]
            changed: dict[ManifestId, Manifest | None] = {manifest.manifest_id: manifest}
            if header.is_head and header.parent_id not in (None, header.manifest_id):
                parent = store.catalog.manifest(header.namespace, header.parent_id)
                if parent is not None and parent.is_head:
                    changed[parent.manifest_id] = replace(parent, is_head=False)
            await store.write_changes([store.catalog.plan(header.namespace, changed, new)])
            self._is_stored = True
            self._release()
            twice = [page for page in pages if page not in new]
            await store.garbage.discard([page.blob.blob_id for page in twice])
        stored_bytes = manifest_bytes(manifest) + sum(map(page_bytes, new))
        return Outcome(stored_bytes, len(header.page_keys) - len(new), None)

    def _manifest(self, received: Received) -> Manifest:
        header = self._header
        return Manifest(
            namespace=header.namespace,
            manifest_id=header.manifest_id,
            parent_id=header.parent_id,
            round=header.round,
            is_head=header.is_head,
            token_count=header.token_count,
            resident_bytes=header.resident_bytes,
            created_ms=time.time_ns() // 10**6,
            tenant=header.tenant,
            page_keys=header.page_keys,
            tail_token_ids=header.tail_token_ids,
            tail=received.tail,
            boundary=received.boundary,
        )

    def _dropped(self, reason: str) -> Outcome:
        return Outcome(0, 0, reason)

    def _check_generation(self) -> None:
        if self._generation != self._store.database.generation:
            raise DatabaseError("the database was reopened and lost what this Write had sent", retry_after_s=1.0)

    async def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        task = self._store.background.spawn(work)
        self._running = task
        return await asyncio.shield(task)

    async def _clean(self) -> None:
        try:
            if self._running is not None:
                # A commit may still succeed after its caller was cancelled; what it raises its caller has seen.
                with suppress(KvstoreError):
                    await self._running
            if not self._is_stored:
                known = self._header.namespace if self._store.catalog.count_manifests(self._header.namespace) else None
                self._store.counters.add("dropped_writes", known)
                self._store.counters.add("orphan_pages", known, self._incoming.num_pages)
                await self._store.garbage.discard(self._incoming.blob_ids)
        finally:
            self._release()

    def _release(self) -> None:
        if self._slot in self._store.open_writes:
            self._store.open_writes.discard(self._slot)
            self._store.pins.unpin(self._pin)
            self._store.unreserve(self._reserved_bytes)


def _check_equal(index: int, sent: Page, stored: Page) -> None:
    if sent.token_ids != stored.token_ids or sent.blob.totals() != stored.blob.totals():
        raise FormatDiffersError(f"page {index}: other ids or sizes are stored under its key")
