"""The store without a server: failing disks and cancelled callers."""

from __future__ import annotations

import asyncio
import random
import resource
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from crc32c import crc32c
from samples import NAMESPACE, name

from services.kvstore.errors import DatabaseError, NoSpaceError
from services.kvstore.incoming import Header, IncomingChunk
from services.kvstore.limits import Limits
from services.kvstore.reading import Order, ReadQuery, Skipped, read
from services.kvstore.state import ManifestId, Owner, PageKey
from services.kvstore.store import Store, open_store
from services.kvstore.writing import WriteSession

LIMITS = Limits(cap_bytes=2**30)
IDS = bytes(4 * 256)


def header(letter: str) -> Header:
    return Header(
        namespace=NAMESPACE,
        manifest_id=ManifestId(name(letter)),
        parent_id=None,
        round=0,
        is_head=True,
        token_count=256,
        resident_bytes=0,
        page_keys=(PageKey(name(f"page {letter}")),),
        tail_token_ids=b"",
        has_boundary=False,
        tenant="t",
        page_tokens=256,
    )


async def send(store: Store, letter: str, num_bytes: int) -> WriteSession:
    """Everything but the commit."""
    session = WriteSession(store, header(letter))
    data = random.Random(letter).randbytes(num_bytes)
    for offset in range(0, num_bytes, 2**20):
        part = data[offset : offset + 2**20]
        ids = IDS if offset == 0 else None
        key = PageKey(name(f"page {letter}"))
        await session.add(IncomingChunk(Owner.PAGE, key, 0, 0, offset, num_bytes, crc32c(part), part, ids))
    return session


async def content(store: Store, letter: str) -> bytes:
    query = ReadQuery(NAMESPACE, (PageKey(name(f"page {letter}")),), None, Order.PAGE_MAJOR)
    parts = [event async for event in read(store, query) if not isinstance(event, Skipped)]
    return b"".join(chunk.data or b"" for chunks in parts for chunk in chunks)


@contextmanager
def largest_file(num_bytes: int) -> Generator[None]:
    """Writing beyond this size fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_failed_flush_stops_writes_until_the_database_is_reopened(tmp_path: Path) -> None:
    free_bytes = [2**40]
    limits = Limits(cap_bytes=2**30, disk_reserve_bytes=2**20)
    async with open_store(tmp_path / "kv", limits, free_bytes=lambda: free_bytes[0]) as store:
        first = await send(store, "a", 1_000)
        assert (await first.commit()).dropped_reason is None
        old = await send(store, "old", 5 * 2**20)
        bad = await send(store, "b", 3 * 2**20)
        with largest_file(2**20), pytest.raises(DatabaseError):
            await bad.commit()
        bad.close()
        await store.background.settle()
        assert store.database.failure is not None
        assert await content(store, "a") == random.Random("a").randbytes(1_000)
        free_bytes[0] = 0
        full = await send(store, "c", 1_000)
        with pytest.raises(NoSpaceError):
            await full.commit()
        full.close()
        free_bytes[0] = 2**40
        again = await send(store, "b", 3 * 2**20)
        assert (await again.commit()).dropped_reason is None
        # The chunks that were only in memory went with the failed database.
        with pytest.raises(DatabaseError, match="reopened"):
            await old.commit()
        old.close()
        for letter, size in (("a", 1_000), ("b", 3 * 2**20)):
            assert await content(store, letter) == random.Random(letter).randbytes(size)
        await store.background.settle()
        store.catalog.check_integrity()
        assert store.budget.reserved_bytes == 0
        assert store.pins.is_empty


@pytest.mark.parametrize("steps", range(0, 40, 3))
async def test_commit_whose_caller_is_cancelled_is_whole_or_nothing(tmp_path: Path, steps: int) -> None:
    async with open_store(tmp_path / "kv", LIMITS) as store:
        session = await send(store, "a", 5_000)
        commit = asyncio.create_task(session.commit())
        for _ in range(steps):
            await asyncio.sleep(0.0001)
        commit.cancel()
        with suppress(asyncio.CancelledError):
            await commit
        session.close()
        await store.background.settle()
        store.catalog.check_integrity()
        stored = await content(store, "a")
        assert stored in (b"", random.Random("a").randbytes(5_000))
        assert store.budget.reserved_bytes == 0
        assert not store.open_writes
        assert store.pins.is_empty
        before = store.budget.used_bytes
    async with open_store(tmp_path / "kv", LIMITS) as store:
        assert store.budget.used_bytes == before
        assert await content(store, "a") == stored


async def test_reader_that_leaves_early_holds_nothing(tmp_path: Path) -> None:
    async with open_store(tmp_path / "kv", LIMITS) as store:
        session = await send(store, "a", 9 * 2**20)
        await session.commit()
        query = ReadQuery(NAMESPACE, (PageKey(name("page a")),), None, Order.PAGE_MAJOR)
        events = read(store, query)
        assert not isinstance(await anext(events), Skipped)
        assert not store.pins.is_empty
        await events.aclose()
        assert store.pins.is_empty


async def test_deleted_page_read_under_way_is_missing_not_wrong(tmp_path: Path) -> None:
    async with open_store(tmp_path / "kv", LIMITS) as store:
        session = await send(store, "a", 20 * 2**20)
        await session.commit()
        whole = random.Random("a").randbytes(20 * 2**20)
        query = ReadQuery(NAMESPACE, (PageKey(name("page a")),), None, Order.PAGE_MAJOR)
        got = b""
        async for event in read(store, query):
            if not isinstance(event, Skipped):
                got += b"".join(chunk.data or b"" for chunk in event)
                await store.delete_namespace(NAMESPACE)
            else:
                assert (event.first_page, event.reason) == (0, "missing")
        assert whole.startswith(got)
        assert len(got) < len(whole)
        assert store.counters.get("verify_failures", None) == 0


async def test_cap_larger_than_the_disk_is_lowered_and_never_below_what_is_stored(tmp_path: Path) -> None:
    limits = Limits(cap_bytes=2**40, disk_reserve_bytes=10 * 2**20)
    async with open_store(tmp_path / "kv", limits, free_bytes=lambda: 110 * 2**20) as store:
        assert store.limits.cap_bytes == store.budget.cap_bytes == 90 * 2**20
        session = await send(store, "a", 5 * 2**20)
        await session.commit()
        used = store.budget.used_bytes
    async with open_store(tmp_path / "kv", limits, free_bytes=lambda: 0) as store:
        assert store.budget.cap_bytes == used
    async with open_store(tmp_path / "kv", Limits(cap_bytes=2**20), free_bytes=lambda: 2**40) as store:
        assert store.budget.cap_bytes == 2**20
