"""Engine and kvstore together, on real gRPC and a real database: what is stored comes back, or shortens a hit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from fencepost.engine.v1 import engine_pb2 as pb
from fencepost.kvstore.v1 import snapshot_pb2, snapshot_pb2_grpc

from services import rpc
from tests.contract.engine_client import Answer, EngineClient, run_engine, run_kvstore, write_tiny_engine_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[str]:
    async with run_kvstore(tmp_path / "kv") as address:
        yield address


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(3, 500), k=length)


async def cold(model: Path, ids: list[int], max_tokens: int) -> tuple[int, ...]:
    async with run_engine(model) as engine:
        return (await engine.generate(ids, max_tokens)).ids


async def stats(address: str) -> snapshot_pb2.StatsResponse:
    async with rpc.open_channel(address) as channel:
        return await snapshot_pb2_grpc.SnapshotServiceStub(channel).Stats(snapshot_pb2.StatsRequest())


@pytest.mark.parametrize("length", [33, 255, 256, 257, 300, 512, 700])
@pytest.mark.parametrize("block_tokens", [16, 64])
async def test_another_engine_continues_from_the_store(store: str, model: Path, length: int, block_tokens: int):
    ids = prompt(length, length)
    async with run_engine(model, store) as engine:
        first = await engine.generate(ids, 10)
        await engine.settled()
    more = [*ids, *first.ids, *prompt(1, 5)]
    async with run_engine(model, store, block_tokens=block_tokens) as engine:
        second = await engine.generate(more, 10)
        assert second.cached(pb.TIER_SSD) == length + 10 - 1
        assert second.admitted.cached == second.usage.cached
        assert (await engine.settled()).leases == 0
    assert second.ids == await cold(model, more, 10)
    assert (await stats(store)).leases == 0


async def test_the_store_survives_a_restart(tmp_path: Path, model: Path):
    ids = prompt(2, 400)
    async with run_kvstore(tmp_path / "kv") as store, run_engine(model, store) as engine:
        await engine.generate(ids, 1)
        await engine.settled()
    async with run_kvstore(tmp_path / "kv") as store, run_engine(model, store) as engine:
        assert (await engine.generate([*ids, 9], 1)).cached(pb.TIER_SSD) == 400


async def test_resident_state_is_extended_by_stored_state(store: str, model: Path):
    long, short = prompt(3, 900), prompt(3, 900)[:330]
    async with run_engine(model, store) as engine:
        await engine.generate(long, 1)
        await engine.settled()
    async with run_engine(model, store) as engine:
        await engine.generate(short, 1, persist=False)
        answer = await engine.generate([*long, 7], 6)
        by_tier = {t.tier: t.tokens for t in answer.usage.cached.by_tier}
        assert sum(by_tier.values()) == 900
        assert by_tier[pb.TIER_SSD] > 500
    assert answer.ids == await cold(model, [*long, 7], 6)


async def test_evicted_state_comes_back_from_the_store(store: str, model: Path):
    ids = prompt(4, 300)
    async with run_engine(model, store, vram_bytes=40 * 16 * 512) as engine:
        first = await engine.generate(ids, 4)
        await engine.generate(prompt(5, 500), 4)
        await engine.settled()
        again = await engine.generate([*ids, *first.ids, 8], 4)
        assert again.cached(pb.TIER_SSD) > 0
        assert again.cached() == 303
    assert again.ids == await cold(model, [*ids, *first.ids, 8], 4)


async def test_a_turn_writes_only_its_own_pages(store: str, model: Path):
    ids = prompt(6, 520)
    async with run_engine(model, store) as engine:
        first = await engine.generate(ids, 4)
        await engine.settled()
        before = await stats(store)
        await engine.generate([*ids, *first.ids, *prompt(7, 300)], 4)
        await engine.settled()
        after = await stats(store)
    assert (before.pages, after.pages) == (2, 3)
    assert (before.manifests, after.manifests) == (1, 2)
    assert after.bytes - before.bytes < 2 * 256 * 512


async def test_scopes_share_nothing_on_disk(store: str, model: Path):
    ids = prompt(8, 300)
    async with run_engine(model, store) as engine:
        await engine.generate(ids, 2, scope="one")
        await engine.settled()
    async with run_engine(model, store) as engine:
        assert (await engine.generate(ids, 2, scope="two")).cached() == 0
        assert (await engine.generate(ids, 2, scope="one")).cached(pb.TIER_SSD) > 0


async def test_what_may_not_be_persisted_is_not(store: str, model: Path):
    async with run_engine(model, store) as engine:
        await engine.generate(prompt(9, 300), 2, persist=False)
        await engine.settled()
    assert (await stats(store)).manifests == 0


async def test_without_its_store_an_engine_serves_from_its_own_memory(tmp_path: Path, model: Path):
    ids = prompt(10, 300)
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(run_kvstore(tmp_path / "kv"))
        async with run_engine(model, address) as engine:
            first = await engine.generate(ids, 3)
            await engine.settled()
            await stack.aclose()
            answer = await engine.generate([*ids, *first.ids, 4], 3)
            assert answer.cached(pb.TIER_VRAM) == 302
            assert (await engine.settled()).held_blocks == 0
    assert answer.ids == await cold(model, [*ids, *first.ids, 4], 3)


async def test_a_caller_that_leaves_during_a_restore_leaves_nothing_behind(store: str, model: Path):
    ids = prompt(11, 1800)
    async with run_engine(model, store) as engine:
        await engine.generate(ids, 1)
        await engine.settled()
    for delay_s in (0.0, 0.002, 0.01, 0.03):
        async with run_engine(model, store) as engine:
            call = engine.start([*ids, 5], 4)
            async for message in call:
                if message.WhichOneof("event") == "admitted":
                    break
            await asyncio.sleep(delay_s)
            call.cancel()
            load = await engine.settled()
            assert (load.held_blocks, load.leases) == (0, 0)
            answer = await engine.generate([*ids, 5], 4)
            assert answer.cached() == 1800
    assert (await stats(store)).leases == 0


async def test_many_conversations_share_the_store(store: str, model: Path):
    static = prompt(12, 512)
    prompts = [[*static, *prompt(seed, 60)] for seed in range(20, 28)]

    async def turn(engine: EngineClient, ids: list[int]) -> Answer:
        return await engine.generate(ids, 6, conversation_key=str(ids[-3:]))

    async with run_engine(model, store) as engine:
        first = [(await turn(engine, ids)).ids for ids in prompts]
        await engine.settled()
    assert (await stats(store)).pages == 2
    async with run_engine(model, store) as engine:
        more = [[*ids, *out, 3] for ids, out in zip(prompts, first, strict=True)]
        answers = await asyncio.gather(*(turn(engine, ids) for ids in more))
        assert [a.cached() for a in answers] == [512 + 60 + 6 - 1] * 8
        assert (await engine.settled()).held_blocks == 0
    async with run_engine(model) as engine:
        assert [a.ids for a in answers] == [(await turn(engine, ids)).ids for ids in more]


async def test_a_prefix_evicted_between_lookup_and_admission_is_restored_too(store: str, model: Path):
    long = prompt(13, 600)
    async with run_engine(model, store) as engine:
        await engine.generate(long, 1)
        await engine.settled()
    async with run_engine(model, store, vram_bytes=40 * 16 * 512, max_running=1) as engine:
        await engine.generate(long[:330], 1, persist=False)
        # Runs alone and grows over the blocks of that prefix, while the next request waits with its lookup done.
        holder = asyncio.create_task(engine.generate(prompt(14, 200), 330, scope="other", persist=False))
        await engine.load(lambda load: load.running == 1)
        waiting = asyncio.create_task(engine.generate([*long, 7], 8))
        await engine.load(lambda load: load.queued == 1)
        await holder
        answer = await waiting
        assert answer.cached() == 600
        assert answer.cached(pb.TIER_SSD) > 600 - 256
    assert answer.ids == await cold(model, [*long, 7], 8)
