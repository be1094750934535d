"""A full disk costs what would be new, and nothing that is there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from fencepost.engine.v1 import engine_pb2 as pb
from fencepost.kvstore.v1 import snapshot_pb2

from tests.contract.engine_client import run_engine, write_tiny_engine_model
from tests.contract.kvstore_client import Client, State, state
from tests.integration.processes import StartFailed, kvstore_process
from tests.integration.small_disk import MIB, SmallDisk, get, large_state, put, small_disk, write

NO_SPACE = grpc.StatusCode.RESOURCE_EXHAUSTED
RECORDS = {b"%d" % number: random.Random(number).randbytes(50_000) for number in range(4)}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as mounted:
        yield mounted


async def commit_some(client: Client, num_states: int) -> list[State]:
    """Store some states, and then the records: rows that are in RocksDB's log alone, so that opening writes them."""
    states: list[State] = [large_state(seed) for seed in range(num_states)]
    for written in states:
        assert await write(client, written) is True
    for key, value in RECORDS.items():
        assert await put(client, key, value) is grpc.StatusCode.OK
    return states


async def check(client: Client, states: Iterable[State], records: Mapping[bytes, bytes] = RECORDS) -> None:
    """Every byte of what was committed can be read."""
    for written in states:
        assert await client.full_hit(written)
    for key, value in records.items():
        assert await get(client, key) == value


async def begin(client: Client, seed: int) -> grpc.aio.StreamStreamCall[object, object]:
    """A Write of which everything is sent but the commit."""
    written = large_state(seed, mib=4)
    call, needed = await client.begin(written)
    for chunk in written.chunks(needed):
        await call.write(snapshot_pb2.WriteRequest(chunk=chunk))
    # Time to take it in. Later it would be refused by a look at the disk, not by the disk, which is as right.
    await asyncio.sleep(0.2)
    return call


async def commit(client: Client, call: grpc.aio.StreamStreamCall[object, object]) -> grpc.StatusCode:
    with suppress(grpc.aio.AioRpcError, AttributeError):
        await client.finish(call, iter(()))
    return await call.code()


# Nothing; enough for small rows, not for opening a database that has a log; enough for small states.
@pytest.mark.parametrize("left_bytes", [0, 65_536, MIB])
async def test_a_full_disk_costs_nothing_that_is_committed(disk: SmallDisk, tmp_path: Path, left_bytes: int) -> None:
    address, data_dir = f"unix:{tmp_path}/kv", disk.path / "data"
    async with kvstore_process(address, data_dir) as (process, client):
        states, records = await commit_some(client, 3), dict(RECORDS)
        call = await begin(client, 10)
        disk.fill(left_bytes)
        assert await commit(client, call) is NO_SPACE
        await check(client, states)
        assert await write(client, large_state(4)) is NO_SPACE
        for number in range(3):
            disk.fill(left_bytes)
            small = state(300, 100 + number)
            outcome = await write(client, small)
            assert outcome in (True, NO_SPACE)
            states += [small] if outcome is True else []
            key = b"when full %d" % number
            outcome = await put(client, key, key)
            assert outcome in (grpc.StatusCode.OK, NO_SPACE)
            records |= {key: key} if outcome is grpc.StatusCode.OK else {}
            await check(client, states, records)
        disk.make_space()
        for seed in (3, 4):
            states.append(large_state(seed))
            assert await write(client, states[-1]) is True
        assert await put(client, b"key", b"value") is grpc.StatusCode.OK
        records[b"key"] = b"value"
        await check(client, states, records)
        before = await client.stats()
        assert process.returncode is None
    async with kvstore_process(address, data_dir) as (_, client):
        after = await client.stats()
        assert (after.bytes, after.pages, after.manifests) == (before.bytes, before.pages, before.manifests)
        assert after.verify_failures == 0
        await check(client, states, records)
        deleted = await client.delete(tenant="tenant")
        assert (deleted.bytes, (await client.stats()).bytes) == (after.bytes, 0)


async def test_reads_while_a_full_disk_gets_space_lose_nothing(disk: SmallDisk, tmp_path: Path) -> None:
    async with kvstore_process(f"unix:{tmp_path}/kv", disk.path / "data") as (_, client):
        states = await commit_some(client, 3)
        call = await begin(client, 10)
        disk.fill(leave=65_536)
        assert await commit(client, call) is NO_SPACE
        disk.fill(leave=65_536)
        await put(client, b"when full", b"")
        disk.make_space()
        reads = [client.read(written) for written in states * 8]
        _, is_stored, _ = await asyncio.gather(
            asyncio.gather(*reads[:12]), write(client, state(300, 100)), asyncio.gather(*reads[12:])
        )
        assert is_stored is True
        await check(client, states)


async def test_a_start_on_a_full_disk_loses_nothing(disk: SmallDisk, tmp_path: Path) -> None:
    address, data_dir = f"unix:{tmp_path}/kv", disk.path / "data"
    async with kvstore_process(address, data_dir) as (_, client):
        states = await commit_some(client, 2)
        disk.fill()
    said = ""
    try:
        async with kvstore_process(address, data_dir) as (_, client):
            await check(client, states)
    except StartFailed as failed:
        said = str(failed).splitlines()[-1]
    # RocksDB may need space to open.
    assert not said or "No space left" in said
    disk.make_space()
    async with kvstore_process(address, data_dir) as (_, client):
        await check(client, states)
        assert await write(client, large_state(2)) is True


async def test_the_reserve_is_left_free(disk: SmallDisk, tmp_path: Path) -> None:
    reserve = 16 * MIB
    arguments = ("--disk-reserve-bytes", str(reserve), "--ssd-bytes", "1GiB")
    async with kvstore_process(f"unix:{tmp_path}/kv", disk.path / "data", *arguments) as (process, client):
        states = await commit_some(client, 6)
        # Somebody else takes the rest of the disk.
        disk.fill(reserve + 8 * MIB)
        while (outcome := await write(client, large_state(len(states)))) is True:
            states.append(large_state(len(states)))
        assert outcome is NO_SPACE
        # The rest of it is for what the database writes beside the state.
        assert disk.free_bytes > reserve // 2
        assert await put(client, b"key", b"value") in (grpc.StatusCode.OK, NO_SPACE)
        await check(client, states)
        deleted = await client.delete(namespace=states[0].namespace)
        assert deleted.manifests == len(states)
        await check(client, ())
        assert process.returncode is None


def size_of(directory: Path) -> int:
    """Bytes of all files; one that is deleted meanwhile has none."""
    num_bytes = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):
            num_bytes += path.stat().st_size if path.is_file() else 0
    return num_bytes


async def test_the_cap_holds_on_disk_and_across_restarts(tmp_path: Path) -> None:
    address, data_dir, cap = f"unix:{tmp_path}/kv", tmp_path / "data", 32 * MIB
    largest = 0
    for round_ in range(4):
        async with kvstore_process(address, data_dir, "--ssd-bytes", str(cap)) as (_, client):
            assert (await client.stats()).bytes <= cap
            for number in range(4):
                written = large_state(4 * round_ + number, mib=8)
                assert await write(client, written) is True
                found = await client.stats()
                assert found.bytes <= cap
                assert found.cap_bytes == cap
                assert await client.full_hit(written)
                largest = max(largest, size_of(data_dir))
    assert largest < 2 * cap


async def test_an_engine_goes_on_while_its_store_is_full(disk: SmallDisk, tmp_path: Path) -> None:
    model = write_tiny_engine_model(tmp_path / "tiny")
    rng = random.Random(1)
    known, new, later = (rng.choices(range(3, 500), k=length) for length in (600, 700, 800))
    address = f"unix:{tmp_path}/kv"
    async with run_engine(model) as cold, kvstore_process(address, disk.path / "data") as (_, client):
        async with run_engine(model, address) as engine:
            await engine.generate(known, 1)
            await engine.settled()
        disk.fill()
        async with run_engine(model, address) as engine:
            answer = await engine.generate([*known, 7], 8)
            assert answer.cached(pb.TIER_SSD) == len(known)
            assert answer.ids == (await cold.generate([*known, 7], 8)).ids
            assert (await engine.generate(new, 8)).ids == (await cold.generate(new, 8)).ids
            await engine.settled()
            assert (await client.stats()).manifests == 1
            disk.make_space()
            await engine.generate(later, 1)
            await engine.settled()
            assert (await client.stats()).manifests == 2
        async with run_engine(model, address) as engine:
            answer = await engine.generate([*later, 7], 8)
            assert answer.cached(pb.TIER_SSD) == len(later)
            assert answer.ids == (await cold.generate([*later, 7], 8)).ids
