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
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from services.identity import PAGE_TOKENS
from services.kvstore import metrics
from services.kvstore.background import Background
from services.kvstore.budget import Budget
from services.kvstore.catalog import Catalog, Change, shorten
from services.kvstore.database import Database
from services.kvstore.errors import DatabaseError, KvstoreError, NoSpaceError
from services.kvstore.eviction import Cuts, choose_cuts
from services.kvstore.garbage import Garbage
from services.kvstore.leases import LeaseTable, Pin, Pins
from services.kvstore.limits import Limits
from services.kvstore.matching import Match, TailQuery, match
from services.kvstore.recovery import Recovered, recover
from services.kvstore.rows import batch_of
from services.kvstore.state import LAYOUT_BYTES, Manifest, ManifestId, Namespace, Page, PageKey

_log = logging.getLogger(__name__)
_RETRY_S = 5.0
_REOPEN_BYTES = 16 * 2**20
"""Opening writes tables of what lies in the log."""


@dataclass(frozen=True, slots=True)
class Found:
    """The longest prefix that can be restored; ``lease_id`` is None when there is none."""

    match: Match
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
    wall_ms: Callable[[], float] = lambda: time.time() * 1_000,
) -> AsyncGenerator[Store]:
    """Open, recover, and close at the end. Raises DataDirectoryError.

    ``free_bytes`` tells what the disk has left; ``now_s`` is the clock of leases, ``wall_ms`` that of last uses.
    """
    database = await asyncio.to_thread(Database, directory, io_threads)
    try:
        recovered = await database.run(recover, database)
        free_bytes = free_bytes or (lambda: shutil.disk_usage(directory).free)
        limits = _within_disk(limits, database.chunk_file_bytes + free_bytes(), recovered.catalog.num_bytes)
        store = Store(database, recovered, limits, free_bytes, now_s, wall_ms)
        try:
            yield store
        finally:
            await store.close()
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
        wall_ms: Callable[[], float],
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
        self._wall_ms = wall_ms
        self._layouts_in_use: set[bytes] = set()
        self._reopening: asyncio.Task[None] | None = None
        metrics.CAP_BYTES.set(limits.cap_bytes)
        self._adopt(recovered)

    async def close(self) -> None:
        """Wait for all changes under way."""
        if self._reopening is not None:
            self._reopening.cancel()
        await self.background.settle()

    def match(
        self, namespace: Namespace, keys: Sequence[PageKey], tail: TailQuery | None, extra_positions: Sequence[int] = ()
    ) -> Found:
        """The longest prefix that can be restored, leased; see ``matching``."""
        self.use_layout(namespace)
        found = match(self.catalog, namespace, keys, tail, extra_positions)
        known = namespace if self.catalog.count_manifests(namespace) else None
        if found.is_empty:
            self.counters.add("misses", known)
            return Found(found, None)
        self.counters.add("hits", known)
        owner = None if found.partial is None else found.partial.owner
        read = [page.key for page in found.pages] + ([owner.key] if isinstance(owner, Page) else [])
        manifest = owner if isinstance(owner, Manifest) else found.boundary
        pin = Pin(namespace, tuple(read), manifest and manifest.manifest_id)
        self.catalog.touch(namespace, pin.page_keys, pin.manifest_id, self._wall_ms())
        lease_id = self.leases.acquire(pin, self._now_s(), self.limits.lease_s)
        self._publish()
        return Found(found, lease_id)

    def use_layout(self, namespace: Namespace) -> None:
        """Remember that somebody uses state of this layout."""
        self._layouts_in_use.add(namespace[:LAYOUT_BYTES])

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

    async def delete_layout(self, layout: bytes) -> Removed:
        """Drop everything of all namespaces of a layout."""
        return await self._delete(lambda found: found.namespace[:LAYOUT_BYTES] == layout)

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
        for change in changes:
            self.catalog.apply(change)
        self.budget.state_bytes = self.catalog.num_bytes
        garbage = [blob_id for change in changes for blob_id in change.garbage]
        self._publish()
        await self.garbage.discard(garbage)

    async def drop_damaged(
        self, namespace: Namespace, page: Page | None, manifest: Manifest | None, generation: int
    ) -> None:
        """Forget a damaged page or terminal state, unless it has been replaced since it was read. Never raises.

        Manifests that name a bad page keep the pages before it: those are still right. ``generation`` is the
        database's at the time of the read: what looked bad in one that was closed since may be whole.
        """
        try:
            await self.background.shielded(self._drop_damaged(namespace, page, manifest, generation))
        except KvstoreError as error:
            _log.warning("could not drop damaged state: %s", error)

    async def _delete(self, is_meant: _Meant) -> Removed:
        return await self.background.shielded(self._delete_now(is_meant))

    async def _delete_now(self, is_meant: _Meant) -> Removed:
        if self.database.failure is not None:
            await self._reopen()
        async with self.lock:
            for write in filter(is_meant, self.open_writes):
                write.is_revoked = True
            cuts: dict[Namespace, dict[ManifestId, Manifest | None]] = {}
            for entry in self.catalog.entries():
                if is_meant(entry.manifest):
                    cuts.setdefault(entry.manifest.namespace, {})[entry.manifest.manifest_id] = None
            return await self._cut(cuts) if cuts else Removed()

    async def _evict(self, num_bytes: int) -> None:
        async with self.lock:
            excess = self.budget.excess(num_bytes)
            if not excess:
                return
            self.leases.expire(self._now_s())
            # A little more than asked for, so that a full store doesn't evict at every chunk.
            cuts = self._choose(excess + self.limits.cap_bytes // 64) or self._choose(excess)
            if cuts is None:
                raise NoSpaceError("no room under the byte cap: the rest is in use", retry_after_s=_RETRY_S)
            await self._cut(cuts)
            for namespace, manifests in cuts.items():
                self.counters.add("evictions", namespace, len(manifests))

    def _choose(self, num_bytes: int) -> Cuts | None:
        in_use = self._layouts_in_use
        return choose_cuts(
            self.catalog, self.pins, num_bytes, self._wall_ms(), lambda namespace: namespace[:LAYOUT_BYTES] in in_use
        )

    async def _cut(self, cuts: Cuts) -> Removed:
        changes = [self.catalog.plan(namespace, manifests) for namespace, manifests in cuts.items()]
        before = self.catalog.num_bytes
        await self.write_changes(changes)
        num_manifests = sum(len(change.drop_manifests) for change in changes)
        num_pages = sum(len(change.drop_pages) for change in changes)
        return Removed(num_manifests, num_pages, before - self.catalog.num_bytes)

    async def _drop_damaged(
        self, namespace: Namespace, page: Page | None, manifest: Manifest | None, generation: int
    ) -> None:
        async with self.lock:
            if self.database.generation != generation:
                return
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
        """Bring the database back to writing. Raises NoSpaceError while it cannot be opened for want of space."""
        async with self.lock:
            if self.database.failure is None:
                return
            # Opening writes; until it can, the failed database still reads.
            if self._free_bytes() < _REOPEN_BYTES:
                raise NoSpaceError("the disk is full", retry_after_s=_RETRY_S)
            _log.warning("reopening the database: %s", self.database.failure)

            def reopen() -> Recovered:
                self.database.reopen()
                return recover(self.database)

            try:
                self._adopt(await self.database.run(reopen))
            except DatabaseError:
                # Now it does not even read: whoever comes next tries again, and so does this.
                if self._reopening is None or self._reopening.done():
                    self._reopening = asyncio.create_task(self._keep_reopening())
                raise

    async def _keep_reopening(self) -> None:
        while self.database.failure is not None:
            await asyncio.sleep(_RETRY_S)
            with suppress(KvstoreError):
                await self._reopen()

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


def _within_disk(limits: Limits, disk_bytes: int, used_bytes: int) -> Limits:
    """A cap that the disk can hold: above it nothing would ever be evicted, and nothing new be written.

    Never lower than what is stored: a disk that somebody else fills for a while costs no state.
    """
    room = max(used_bytes, (disk_bytes - limits.disk_reserve_bytes) * 9 // 10)
    if limits.cap_bytes <= room:
        return limits
    _log.warning("the disk has room for %d bytes, fewer than the cap of %d", room, limits.cap_bytes)
    return replace(limits, cap_bytes=room)
