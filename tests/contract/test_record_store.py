"""The tokenizer's records in a real kvstore."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fencepost.kvstore.v1 import record_pb2, record_pb2_grpc
from prometheus_client import REGISTRY

from services import rpc
from services.kvstore.config import Config
from services.kvstore.server import build
from services.tokenizer.history import record_store
from services.tokenizer.history.memory import MAX_SIBLINGS
from services.tokenizer.history.record import record_id
from services.tokenizer.history.record_format import MAX_RECORD_BYTES, encode_record
from services.tokenizer.history.record_store import Patience, RecordStore, connect
from tests.unit.tokenizer.transcript_records import call, place, record

HURRIED = Patience(first_delay_s=0.01, longest_delay_s=0.05, pause_s=0.05, absent_s=0.05, close_s=0.05)
TIMEOUT_S = 10.0
RECORD = record(call())
_REPLAY = record_pb2.RECORD_KIND_REPLAY


@asynccontextmanager
async def kvstore_at(data_dir: Path, port: int = 0) -> AsyncGenerator[int]:
    """A real server on a real database; its port."""
    server = rpc.new_server()
    async with build(Config(data_dir=data_dir, disk_reserve_bytes=0), server):
        port = rpc.bind(server, f"127.0.0.1:{port}")
        await server.start()
        yield port
        await server.stop(None)


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    async with kvstore_at(tmp_path / "kv") as found:
        yield found


@pytest.fixture
async def store(port: int) -> AsyncIterator[RecordStore]:
    async with client(port) as found:
        yield found


def client(port: int, ttl_s: float = 60.0, patience: Patience = HURRIED) -> Any:
    return connect(f"127.0.0.1:{port}", ttl_s, patience)


async def find(store: RecordStore, name: str = "a", tenant: str = "tenant", call_id: str | None = None) -> list[bytes]:
    return [encode_record(one) for one in await store.find(tenant, place(name), TIMEOUT_S, call_id)]


def count(call: str, outcome: str) -> float:
    labels = {"call": call, "outcome": outcome}
    return REGISTRY.get_sample_value("fencepost_tokenizer_record_calls_total", labels) or 0.0


async def put_raw(port: int, key: bytes, value: bytes) -> None:
    async with rpc.open_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = record_pb2_grpc.RecordServiceStub(channel)
        await stub.Put(record_pb2.PutRequest(kind=_REPLAY, tenant="tenant", key=key, value=value))


async def test_another_replica_reads_what_one_wrote(port: int, store: RecordStore) -> None:
    assert await store.store("tenant", place(), RECORD, TIMEOUT_S)
    async with client(port) as replica:
        assert await find(replica) == [encode_record(RECORD)]
        stored_id = await replica.id_of_call("tenant", "call_1", TIMEOUT_S)
        assert stored_id == record_id(place(), RECORD)
        found = await replica.get("tenant", stored_id, TIMEOUT_S)
        assert encode_record(found) == encode_record(RECORD)


async def test_tenants_and_places_do_not_mix(store: RecordStore) -> None:
    assert await store.store("tenant", place(), RECORD, TIMEOUT_S)
    assert await find(store, "b") == []
    assert await find(store, tenant="other") == []
    assert await store.id_of_call("other", "call_1", TIMEOUT_S) is None
    assert await store.get("other", record_id(place(), RECORD), TIMEOUT_S) is None


async def test_record_survives_a_restart_of_the_kvstore(tmp_path: Path) -> None:
    async with kvstore_at(tmp_path / "kv") as port, client(port) as store:
        assert await store.store("tenant", place(), RECORD, TIMEOUT_S)
    async with kvstore_at(tmp_path / "kv") as port, client(port) as store:
        assert await find(store) == [encode_record(RECORD)]


async def test_record_expires(port: int) -> None:
    async with client(port, ttl_s=0.05) as store:
        assert await store.store("tenant", place(), RECORD, TIMEOUT_S)
        await asyncio.sleep(0.06)
        assert await find(store) == []
        assert await store.id_of_call("tenant", "call_1", TIMEOUT_S) is None


async def test_deleted_record_is_gone(store: RecordStore) -> None:
    await store.store("tenant", place(), RECORD, TIMEOUT_S)
    assert await store.delete("tenant", record_id(place(), RECORD), TIMEOUT_S)
    assert await find(store) == []


async def test_sample_that_lives_longest_comes_first(port: int) -> None:
    samples = [record(call(f"[{i}]", f"call_{i}"), text=f"t{i}") for i in range(3)]
    for minutes, sample in enumerate(samples, 1):
        async with client(port, ttl_s=60 * minutes) as store:
            await store.store("tenant", place(), sample, TIMEOUT_S)
    async with client(port) as store:
        assert await find(store) == [encode_record(sample) for sample in reversed(samples)]


async def test_of_a_crowded_place_the_record_of_the_call_is_among_those_found(store: RecordStore) -> None:
    samples = [record(call(f"[{i}]", f"call_{i}"), text=f"t{i}") for i in range(MAX_SIBLINGS + 2)]
    for sample in samples:
        await store.store("tenant", place(), sample, TIMEOUT_S)
    for sample in samples:
        found = await find(store, call_id=sample.calls[0].call_id)
        assert found[0] == encode_record(sample)
    await store.store("tenant", place("b"), record(call(call_id="elsewhere")), TIMEOUT_S)
    assert len(await find(store, call_id="elsewhere")) == MAX_SIBLINGS
    assert len(await find(store, call_id="x" * 1_000)) == MAX_SIBLINGS


async def test_pool_thread_reads_while_the_loop_runs(store: RecordStore) -> None:
    await store.store("tenant", place(), RECORD, TIMEOUT_S)
    found = await asyncio.to_thread(store.fetch_blocking, "tenant", place(), TIMEOUT_S)
    assert [encode_record(one) for one in found] == [encode_record(RECORD)]
    assert await asyncio.to_thread(store.fetch_blocking, "tenant", place("b"), TIMEOUT_S) == ()


@pytest.mark.parametrize("absent_s", [0.0, 100.0])
async def test_place_known_to_be_empty_is_not_asked_about_again_for_a_while(port: int, absent_s: float) -> None:
    async with client(port, patience=replace(HURRIED, absent_s=absent_s)) as store:
        assert await find(store) == []
        await put_raw(port, record_id(place(), RECORD), encode_record(RECORD))
        assert await find(store) == ([] if absent_s else [encode_record(RECORD)])


async def test_own_record_ends_the_knowledge_that_there_is_none(port: int) -> None:
    async with client(port, patience=replace(HURRIED, absent_s=100)) as store:
        assert await find(store) == []
        await store.store("tenant", place(), RECORD, TIMEOUT_S)
        assert await find(store) == [encode_record(RECORD)]


async def test_damaged_values_are_records_that_are_not_there(port: int, store: RecordStore) -> None:
    stored_id = record_id(place(), RECORD)
    await put_raw(port, stored_id, b"damaged")
    await put_raw(port, b"call:call_1", b"short")
    before = count("find", "malformed")
    assert await find(store) == []
    assert await store.get("tenant", stored_id, TIMEOUT_S) is None
    assert await store.id_of_call("tenant", "call_1", TIMEOUT_S) is None
    assert count("find", "malformed") == before + 2


async def test_record_is_stored_later_when_the_kvstore_comes_back(tmp_path: Path) -> None:
    async with kvstore_at(tmp_path / "kv") as port:
        pass
    async with client(port) as store:
        assert not await store.store("tenant", place(), RECORD, wait_s=0.02)
        async with kvstore_at(tmp_path / "kv", port):
            async with asyncio.timeout(TIMEOUT_S):
                while not await find(store):  # noqa: ASYNC110 - the store tells nobody
                    await asyncio.sleep(0.02)
            assert await find(store) == [encode_record(RECORD)]


async def test_without_a_kvstore_nothing_fails_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with kvstore_at(tmp_path / "kv") as port:
        pass
    stored_id, lost = record_id(place(), RECORD), count("put", "lost")
    async with client(port, patience=replace(HURRIED, pause_s=100)) as store:
        with caplog.at_level(logging.WARNING, "services.tokenizer.history.record_store"):
            assert await find(store) == []
            before = count("find", "skipped")
            assert await find(store) == []
            assert count("find", "skipped") == before + 1
            assert await asyncio.to_thread(store.fetch_blocking, "tenant", place(), TIMEOUT_S) == ()
            assert await store.get("tenant", stored_id, TIMEOUT_S) is None
            assert await store.id_of_call("tenant", "call_1", TIMEOUT_S) is None
            assert not await store.delete("tenant", stored_id, TIMEOUT_S)
            assert not await store.store("tenant", place(), RECORD, wait_s=0)
        assert len(caplog.records) == 1
    assert count("put", "lost") == lost + 1


async def test_silent_kvstore_costs_one_timeout() -> None:
    failed = count("find", "failed")
    # It listens, and never accepts.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with client(silent.getsockname()[1], patience=replace(HURRIED, pause_s=100)) as store:
            assert await asyncio.to_thread(store.fetch_blocking, "tenant", place(), 0.05) == ()
            assert await asyncio.to_thread(store.fetch_blocking, "tenant", place("b"), 0.05) == ()
    assert count("find", "failed") == failed + 1


async def test_write_is_given_up_in_the_end(tmp_path: Path) -> None:
    async with kvstore_at(tmp_path / "kv") as port:
        pass
    async with client(port, patience=replace(HURRIED, give_up_s=0.05)) as store:
        assert not await store.store("tenant", place(), RECORD, TIMEOUT_S)


async def test_refused_write_is_not_tried_again(store: RecordStore) -> None:
    lost = count("put", "lost")
    assert not await store.store("t" * 2_000, place(), RECORD, TIMEOUT_S)
    assert count("put", "lost") == lost + 1
    assert await find(store) == []


async def test_backlog_is_bounded_in_records_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with kvstore_at(tmp_path / "kv") as port:
        pass
    monkeypatch.setattr(record_store, "MAX_BACKLOG_RECORDS", 2)
    dropped, too_long = count("put", "dropped"), count("put", "too_long")
    async with client(port) as store:
        for name in "abc":
            await store.store("tenant", place(name), RECORD, 0)
        assert count("put", "dropped") == dropped + 1
        await store.store("tenant", place(), record(text="x" * MAX_RECORD_BYTES), 0)
        assert count("put", "too_long") == too_long + 1
    monkeypatch.setattr(record_store, "MAX_BACKLOG_BYTES", 10)
    async with client(port) as store:
        await store.store("tenant", place(), RECORD, 0)
        assert count("put", "dropped") == dropped + 2


async def test_deleting_ends_a_write_that_waits(tmp_path: Path) -> None:
    async with kvstore_at(tmp_path / "kv") as port:
        pass
    async with client(port) as store:
        waiting = asyncio.create_task(store.store("tenant", place(), RECORD, TIMEOUT_S))
        await asyncio.sleep(0)
        await store.delete("tenant", record_id(place(), RECORD), TIMEOUT_S)
        assert await waiting is False


async def test_leaving_caller_leaves_the_write_running(store: RecordStore) -> None:
    caller = asyncio.create_task(store.store("tenant", place(), RECORD, TIMEOUT_S))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    async with asyncio.timeout(TIMEOUT_S):
        while not await find(store):  # noqa: ASYNC110 - the store tells nobody
            await asyncio.sleep(0.02)


async def test_thread_that_asks_after_the_end_gets_nothing(port: int) -> None:
    def run() -> RecordStore:
        async def make() -> RecordStore:
            async with client(port) as store:
                return store

        return asyncio.run(make())

    store = await asyncio.to_thread(run)
    assert await asyncio.to_thread(store.fetch_blocking, "tenant", place(), TIMEOUT_S) == ()
