"""The store of state: what is there, who protects it, what goes when space is short, and every change to it.

The event loop owns the catalog, the pins and the budget. A change takes the lock, is written and synced on a database
thread, and becomes visible when that has succeeded. Changes run to their end even when the caller is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from services.identity import PAGE_TOKENS
from services.kvstore import metrics
from services.kvstore.background import Background
from services.kvstore.budget import Budget
from services.kvstore.catalog import Catalog, Change, shorten
from services.kvstore.database import Database
from services.kvstore.errors import KvstoreError, NoSpaceError
from services.kvstore.eviction import choose_victims
from services.kvstore.garbage import Garbage
from services.kvstore.leases import LeaseTable, Pin, Pins
from services.kvstore.limits import Limits
from services.kvstore.recovery import Recovered, recover
from services.kvstore.rows import batch_of
from services.kvstore.state import TOKEN_BYTES, Manifest, ManifestId, Namespace, Page, PageKey

_log = logging.getLogger(__name__)
_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class TailQuery:
    """The prompt's int32-LE ids behind its first ``first_page`` pages."""

    first_page: int
    token_ids: bytes

    def ids_from(self, num_pages: int, end_tokens: Sequence[int] = ()) -> bytes | None:
        """Ids behind ``num_pages`` pages, up to the first of ``end_tokens``; None when they were not given."""
        if num_pages < self.first_page:
            return None
        first_token = num_pages * PAGE_TOKENS
        ends = [token - first_token for token in end_tokens if token >= first_token]
        start = (num_pages - self.first_page) * PAGE_TOKENS * TOKEN_BYTES
        return self.token_ids[start : start + TOKEN_BYTES * min(ends, default=len(self.token_ids))]


@dataclass(frozen=True, slots=True)
class Found:
    """The longest restorable prefix; ``lease_id`` is None when there is none."""

    pages: Sequence[Page]
    boundary: Manifest | None
    lease_id: str | None


@dataclass(frozen=True, slots=True)
class Removed:
    """What a deletion took away."""

    manifests: int = 0
    pages: int = 0
    num_bytes: int = 0


@dataclass(slots=True, eq=False)
class OpenWrite:
    """A Write in progress. One whose state is deleted meanwhile is revoked: it will be dropped at its commit."""

    namespace: Namespace
    manifest_id: ManifestId
    tenant: str
    is_revoked: bool = False


_Meant = Callable[[Manifest | OpenWrite], bool]


@asynccontextmanager
async def open_store(
    directory: Path,
    limits: Limits,
    *,
    io_threads: int = 4,
    free_bytes: Callable[[], int] | None = None,
    now_s: Callable[[], float] = time.monotonic,
) -> AsyncGenerator[Store]:
    """Open, recover, and close at the end. Raises DataDirectoryError.

    ``free_bytes`` tells what the disk has left; ``now_s`` is the clock of leases.
    """
    database = await asyncio.to_thread(Database, directory, io_threads)
    try:
        recovered = await database.run(recover, database)
        store = Store(database, recovered, limits, free_bytes or (lambda: shutil.disk_usage(directory).free), now_s)
        try:
            yield store
        finally:
            await store.background.settle()
    finally:
        await asyncio.to_thread(database.close)


class Store:
    """Pages and manifests; see the module. ``reading`` and ``writing`` hold the two streams."""

    def __init__(
        self,
        database: Database,
        recovered: Recovered,
        limits: Limits,
        free_bytes: Callable[[], int],
        now_s: Callable[[], float],
    ) -> None:
        self.database = database
        self.limits = limits
        self.catalog = Catalog()
        self.pins = Pins()
        self.leases = LeaseTable(self.pins)
        self.counters = metrics.Counters()
        self.budget = Budget(limits.cap_bytes)
        self.lock = asyncio.Lock()
        self.background = Background()
        self.garbage = Garbage(database, self.background, limits.cap_bytes)
        self.open_writes: set[OpenWrite] = set()
        self._free_bytes = free_bytes
        self._now_s = now_s
        metrics.CAP_BYTES.set(limits.cap_bytes)
        self._adopt(recovered)

    def match(
        self, namespace: Namespace, keys: Sequence[PageKey], tail: TailQuery | None, extra_positions: Sequence[int] = ()
    ) -> Found:
        """The longest prefix that can be restored, leased.

        A tail is compared by ids alone, so it never reaches over an extra (``extra_positions``, tokens of the prompt).
        """
        pages = self.catalog.leading_pages(namespace, keys)
        last = pages[-1].key if pages else None
        ids = None if tail is None else tail.ids_from(len(pages), extra_positions)
        boundary = None if ids is None else self.catalog.best_boundary(namespace, last, len(pages), ids)
        known = namespace if self.catalog.count_manifests(namespace) else None
        if not pages and boundary is None:
            self.counters.add("misses", known)
            return Found((), None, None)
        self.counters.add("hits", known)
        pin = Pin(namespace, tuple(page.key for page in pages), boundary and boundary.manifest_id)
        self.touch(pin)
        lease_id = self.leases.acquire(pin, self._now_s(), self.limits.lease_s)
        self._publish()
        return Found(pages, boundary, lease_id)

    def touch(self, pin: Pin) -> None:
        """Mark as used: the manifest, or without one the latest that names the last page."""
        if pin.manifest_id is not None:
            self.catalog.touch_manifest(pin.namespace, pin.manifest_id)
        elif pin.page_keys:
            self.catalog.touch_page(pin.namespace, pin.page_keys[-1])

    def extend_lease(self, lease_id: str, duration_s: float) -> float:
        """Seconds the lease now has; 0 when it is not there."""
        return self.leases.extend(lease_id, self._now_s(), duration_s)

    def release_lease(self, lease_id: str) -> None:
        """Give a lease back; an unknown one is fine."""
        self.leases.release(lease_id)
        self._publish()

    def expire_leases(self) -> None:
        """Release the leases whose time is up."""
        self.leases.expire(self._now_s())
        self._publish()

    async def delete_manifest(self, namespace: Namespace, manifest_id: ManifestId) -> Removed:
        """Drop one manifest and the pages no other one names, pinned or not."""
        wanted = (namespace, manifest_id)
        return await self._delete(lambda found: (found.namespace, found.manifest_id) == wanted)

    async def delete_namespace(self, namespace: Namespace) -> Removed:
        """Drop everything of a namespace."""
        return await self._delete(lambda found: found.namespace == namespace)

    async def delete_tenant(self, tenant: str) -> Removed:
        """Drop every manifest of a tenant."""
        return await self._delete(lambda found: found.tenant == tenant)

    async def reserve(self, num_bytes: int) -> None:
        """Promise space under the cap, evicting if need be; given back by ``unreserve``.

        Raises NoSpaceError when the disk is low or not enough may be evicted (then nothing is), DatabaseError when
        RocksDB cannot be brought back to writing.
        """
        if self._free_bytes() - num_bytes < self.limits.disk_reserve_bytes:
            raise NoSpaceError("the disk is down to its reserve", retry_after_s=_RETRY_S)
        if self.database.failure is not None:
            await self.background.shielded(self._reopen())
        if self.budget.excess(num_bytes):
            await self.background.shielded(self._evict(num_bytes))
        if self.budget.excess(num_bytes):
            raise NoSpaceError("another writer took the space", retry_after_s=_RETRY_S)
        self.budget.reserved_bytes += num_bytes

    def unreserve(self, num_bytes: int) -> None:
        """Give a promise back."""
        self.budget.reserved_bytes -= num_bytes

    async def write_changes(self, changes: Sequence[Change]) -> None:
        """Make changes durable, then visible, then forget what they left behind. The caller holds the lock."""
        await self.database.run(self.database.write_durably, batch_of(changes))
        before = self.catalog.num_bytes
        for change in changes:
            self.catalog.apply(change)
        self.budget.state_bytes = self.catalog.num_bytes
        garbage = [blob_id for change in changes for blob_id in change.garbage]
        self._publish()
        await self.garbage.discard(garbage, max(0, before - self.catalog.num_bytes))

    async def drop_damaged(self, namespace: Namespace, page: Page | None, manifest: Manifest | None) -> None:
        """Forget a damaged page or terminal state, unless it has been replaced since it was read. Never raises.

        Manifests that name a bad page keep the pages before it: those are still right.
        """
        try:
            await self.background.shielded(self._drop_damaged(namespace, page, manifest))
        except KvstoreError as error:
            _log.warning("could not drop damaged state: %s", error)

    async def _delete(self, is_meant: _Meant) -> Removed:
        return await self.background.shielded(self._delete_now(is_meant))

    async def _delete_now(self, is_meant: _Meant) -> Removed:
        async with self.lock:
            for write in filter(is_meant, self.open_writes):
                write.is_revoked = True
            victims = [entry.manifest for entry in self.catalog.entries() if is_meant(entry.manifest)]
            return await self._drop(victims) if victims else Removed()

    async def _evict(self, num_bytes: int) -> None:
        async with self.lock:
            excess = self.budget.excess(num_bytes)
            if not excess:
                return
            self.leases.expire(self._now_s())
            # A little more than asked for, so that a full store doesn't evict at every chunk.
            victims = choose_victims(self.catalog, self.pins, excess + self.limits.cap_bytes // 64)
            if victims is None:
                victims = choose_victims(self.catalog, self.pins, excess)
            if victims is None:
                raise NoSpaceError("no room under the byte cap: the rest is in use", retry_after_s=_RETRY_S)
            await self._drop(victims)
            for victim in victims:
                self.counters.add("evictions", victim.namespace)

    async def _drop(self, victims: Sequence[Manifest]) -> Removed:
        by_namespace: dict[Namespace, dict[ManifestId, Manifest | None]] = {}
        for victim in victims:
            by_namespace.setdefault(victim.namespace, {})[victim.manifest_id] = None
        changes = [self.catalog.plan(namespace, dropped) for namespace, dropped in by_namespace.items()]
        before = self.catalog.num_bytes
        await self.write_changes(changes)
        num_pages = sum(len(change.drop_pages) for change in changes)
        return Removed(len(victims), num_pages, before - self.catalog.num_bytes)

    async def _drop_damaged(self, namespace: Namespace, page: Page | None, manifest: Manifest | None) -> None:
        async with self.lock:
            left: dict[ManifestId, Manifest | None] = {}
            if page is not None and self.catalog.page(namespace, page.key) == page:
                for found in self.catalog.manifests_of_page(namespace, page.key):
                    left[found.manifest_id] = shorten(found, found.page_keys.index(page.key), PAGE_TOKENS)
            if manifest is not None and self.catalog.manifest(namespace, manifest.manifest_id) == manifest:
                left[manifest.manifest_id] = shorten(manifest, len(manifest.page_keys), PAGE_TOKENS)
            if left:
                self.counters.add("verify_failures", namespace)
                await self.write_changes([self.catalog.plan(namespace, left)])

    async def _reopen(self) -> None:
        async with self.lock:
            if self.database.failure is None:
                return
            _log.warning("reopening the database: %s", self.database.failure)

            def reopen() -> Recovered:
                self.database.reopen()
                return recover(self.database)

            self._adopt(await self.database.run(reopen))

    def _adopt(self, recovered: Recovered) -> None:
        self.catalog = recovered.catalog
        self.budget.state_bytes = self.catalog.num_bytes
        self.counters.add("orphan_pages", None, recovered.num_orphans)
        self.counters.add("verify_failures", None, recovered.num_damaged)
        self._publish()
        _log.info(
            "%d manifests, %d pages, %d bytes; collected %d orphans, repaired %d rows",
            self.catalog.count_manifests(None),
            self.catalog.count_pages(None),
            self.catalog.num_bytes,
            recovered.num_orphans,
            recovered.num_damaged,
        )

    def _publish(self) -> None:
        metrics.BYTES.set(self.budget.used_bytes)
        metrics.PAGES.set(self.catalog.count_pages(None))
        metrics.MANIFESTS.set(self.catalog.count_manifests(None))
        metrics.LEASES.set(self.leases.count(None))
