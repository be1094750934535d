from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kvstore.errors import NoSpaceError, RecordExistsError
from services.kvstore.limits import Limits
from services.kvstore.record_format import Kind, record_prefix
from services.kvstore.records import RecordStore
from services.kvstore.store import open_store


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@asynccontextmanager
async def opened(directory: Path, clock: Clock, **limits: int) -> AsyncGenerator[RecordStore]:
    async with open_store(directory, Limits(**({"cap_bytes": 2**30} | limits)), io_threads=2) as store:
        records = RecordStore(store, clock)
        await records.recount()
        yield records


async def test_expired_record_is_gone_before_and_after_the_sweep(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path / "kv", clock) as records:
        await records.put(Kind.RESPONSE, "t", b"short", b"v", 10, if_absent=False)
        await records.put(Kind.RESPONSE, "t", b"long", b"v", 1_000, if_absent=False)
        clock.now_ms += 10
        assert await records.get(Kind.RESPONSE, "t", b"short") is None
        assert [r.key for r in (await records.scan(Kind.RESPONSE, "t", b"", 0, None)).records] == [b"long"]
        assert records.num_records == 2
        assert await records.sweep() == 1
        assert records.num_records == 1
        found = await records.get(Kind.RESPONSE, "t", b"long")
        assert found is not None
        assert found.remaining_ms == 990


async def test_expired_record_does_not_count_as_taken(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path / "kv", clock) as records:
        await records.put(Kind.REPLAY, "t", b"k", b"old", 10, if_absent=True)
        with pytest.raises(RecordExistsError):
            await records.put(Kind.REPLAY, "t", b"k", b"new", 10, if_absent=True)
        clock.now_ms += 10
        await records.put(Kind.REPLAY, "t", b"k", b"new", 10, if_absent=True)
        found = await records.get(Kind.REPLAY, "t", b"k")
        assert found is not None
        assert found.value == b"new"


async def test_default_time_to_live_depends_on_the_kind(tmp_path: Path) -> None:
    async with opened(tmp_path / "kv", Clock()) as records:
        for kind, days in ((Kind.RESPONSE, 30), (Kind.REPLAY, 7)):
            await records.put(kind, "t", b"k", b"v", None, if_absent=False)
            found = await records.get(kind, "t", b"k")
            assert found is not None
            assert found.remaining_ms == days * 86_400_000


async def test_no_tenant_sees_another_whatever_the_names(tmp_path: Path) -> None:
    async with opened(tmp_path / "kv", Clock()) as records:
        await records.put(Kind.RESPONSE, "ab", b"c", b"ab's", None, if_absent=False)
        await records.put(Kind.RESPONSE, "a", b"bc", b"a's", None, if_absent=False)
        assert [r.value for r in (await records.scan(Kind.RESPONSE, "a", b"", 0, None)).records] == [b"a's"]
        assert await records.get(Kind.RESPONSE, "abc", b"c") is None
        assert await records.get(Kind.REPLAY, "a", b"bc") is None
        deleted, num_bytes = await records.delete_tenant("a")
        assert (deleted, num_bytes > 0) == (1, True)
        assert await records.get(Kind.RESPONSE, "ab", b"c") is not None
    assert not record_prefix(Kind.RESPONSE, "ab").startswith(record_prefix(Kind.RESPONSE, "a"))


async def test_records_obey_the_byte_cap(tmp_path: Path) -> None:
    async with opened(tmp_path / "kv", Clock(), cap_bytes=2_000) as records:
        await records.put(Kind.RESPONSE, "t", b"a", bytes(1_000), None, if_absent=False)
        with pytest.raises(NoSpaceError):
            await records.put(Kind.RESPONSE, "t", b"b", bytes(1_000), None, if_absent=False)
        await records.delete(Kind.RESPONSE, "t", b"a")
        await records.put(Kind.RESPONSE, "t", b"b", bytes(1_000), None, if_absent=False)


async def test_counts_survive_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path / "kv", Clock()) as records:
        for i in range(20):
            await records.put(Kind.RESPONSE, "t", bytes([i % 15]), bytes(i), None, if_absent=False)
        before = records.num_records, records.num_bytes
    async with opened(tmp_path / "kv", Clock()) as records:
        assert (records.num_records, records.num_bytes) == before


_KEYS = st.sampled_from([b"a", b"ab", b"b", b"\xff", b"\x00"])
_TENANTS = st.sampled_from(["t", "t2"])
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), _TENANTS, _KEYS, st.binary(max_size=4), st.integers(1, 30), st.booleans()),
        st.tuples(st.just("delete"), _TENANTS, _KEYS),
        st.tuples(st.just("wait"), st.integers(1, 20)),
        st.tuples(st.just("sweep")),
        st.tuples(st.just("reopen")),
    ),
    max_size=15,
)


@settings(max_examples=12, deadline=None)
@given(_STEPS)
def test_records_behave_like_a_dict(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_follow(Path(directory) / "kv", steps))


async def _follow(directory: Path, steps: list[tuple[object, ...]]) -> None:
    clock = Clock()
    model: dict[tuple[str, bytes], tuple[bytes, int]] = {}
    runs: list[list[tuple[object, ...]]] = [[]]
    for step in steps:
        runs.append([]) if step[0] == "reopen" else runs[-1].append(step)
    for run in runs:
        async with opened(directory, clock) as records:
            for step in run:
                await _step(records, clock, model, step)
                alive = {place: value for place, (value, expires) in model.items() if expires > clock.now_ms}
                for tenant in ("t", "t2"):
                    listing = await records.scan(Kind.RESPONSE, tenant, b"", 0, None)
                    expected = sorted((key, value) for (owner, key), value in alive.items() if owner == tenant)
                    assert [(record.key, record.value) for record in listing.records] == expected
            await records.sweep()
            assert records.num_records == len([1 for _, expires in model.values() if expires > clock.now_ms])


async def _step(
    records: RecordStore, clock: Clock, model: dict[tuple[str, bytes], tuple[bytes, int]], step: tuple[object, ...]
) -> None:
    match step:
        case ("put", str(tenant), bytes(key), bytes(value), int(ttl_ms), bool(if_absent)):
            taken = (tenant, key) in model and model[tenant, key][1] > clock.now_ms
            try:
                await records.put(Kind.RESPONSE, tenant, key, value, ttl_ms, if_absent=if_absent)
                assert not (if_absent and taken)
                model[tenant, key] = (value, clock.now_ms + ttl_ms)
            except RecordExistsError:
                assert if_absent
                assert taken
        case ("delete", str(tenant), bytes(key)):
            await records.delete(Kind.RESPONSE, tenant, key)
            model.pop((tenant, key), None)
        case ("wait", int(ms)):
            clock.now_ms += ms
        case _:
            await records.sweep()
