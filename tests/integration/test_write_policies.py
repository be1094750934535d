"""When states are written, and what a flush leaves behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from fencepost.engine.v1 import engine_pb2 as pb
from fencepost.kvstore.v1 import snapshot_pb2, snapshot_pb2_grpc

from services import rpc
from tests.contract.engine_client import EngineClient, run_engine, run_kvstore, write_tiny_engine_model

TOKEN_BYTES = 512


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[str]:
    async with run_kvstore(tmp_path / "kv") as address:
        yield address


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(3, 500), k=length)


async def stats(address: str) -> snapshot_pb2.StatsResponse:
    async with rpc.open_channel(address) as channel:
        return await snapshot_pb2_grpc.SnapshotServiceStub(channel).Stats(snapshot_pb2.StatsRequest())


async def flush(engine: EngineClient, **fields: Any) -> pb.FlushResponse:
    return await engine.stub.Flush(pb.FlushRequest(**fields))


async def conversation(engine: EngineClient, seed: int, turns: int) -> list[int]:
    """Prompt of the turn that would follow."""
    ids = prompt(seed, 200)
    for turn in range(turns):
        answer = await engine.generate(ids, 5, conversation_key=f"conversation {seed}")
        ids = [*ids, *answer.ids, *prompt(100 * seed + turn, 40)]
    return ids


async def test_by_turn_every_state_is_stored_when_its_turn_ends(store: str, model: Path):
    async with run_engine(model, store) as engine:
        await conversation(engine, 1, 3)
        await engine.settled()
        assert (await stats(store)).manifests == 3


async def test_by_eviction_a_drain_stores_the_last_state_of_each_conversation(store: str, model: Path):
    async with run_engine(model, store, write_policy="evict") as engine:
        following = [await conversation(engine, seed, 3) for seed in (1, 2, 3)]
        assert (await engine.settled()).pending_writes == 0
        assert (await stats(store)).manifests == 0
    assert (await stats(store)).manifests == 3
    async with run_engine(model, store) as engine:
        for ids in following:
            assert (await engine.generate(ids, 1)).cached(pb.TIER_SSD) == len(ids) - 40 - 1


async def test_by_eviction_states_are_stored_before_their_blocks_go(store: str, model: Path):
    # Room for about seven conversations of the twelve.
    async with run_engine(model, store, write_policy="evict", vram_bytes=128 * 16 * TOKEN_BYTES) as engine:
        following: list[list[int]] = []
        for seed in range(1, 13):
            following.append(await conversation(engine, seed, 2))
            await engine.settled()
        assert 5 <= (await stats(store)).manifests < 2 * 12
        back = [await engine.generate(ids, 1, persist=False) for ids in following]
    assert [answer.cached() for answer in back] == [len(ids) - 40 - 1 for ids in following]
    assert sum(answer.cached(pb.TIER_SSD) > 0 for answer in back) >= 5


async def test_a_full_queue_drops_states_and_delays_nobody(store: str, model: Path):
    async with run_engine(model, store, max_pending_writes=1) as engine:
        answers = await asyncio.gather(*(engine.generate(prompt(seed, 150), 4) for seed in range(8)))
        await engine.settled()
        assert all(len(answer.ids) == 4 for answer in answers)
        assert 1 <= (await stats(store)).manifests < 8


@pytest.mark.parametrize("tiers", [[], [pb.TIER_VRAM, pb.TIER_SSD]])
async def test_after_a_flush_no_tier_serves_what_it_removed(store: str, model: Path, tiers: list[pb.Tier.ValueType]):
    ids = prompt(4, 600)
    async with run_engine(model, store) as engine:
        for scope in ("one", "two"):
            await engine.generate(ids, 2, scope)
        await engine.settled()
        held = (await stats(store)).bytes
        flushed = await flush(engine, cache_scopes=["one"], tiers=tiers)
        assert flushed.blocks == 38
        assert flushed.stored_bytes == held // 2
        assert (await engine.generate([*ids, 3], 1, "one", persist=False)).cached() == 0
        assert (await engine.generate([*ids, 3], 1, "two", persist=False)).cached(pb.TIER_VRAM) == 600
        assert (await stats(store)).bytes == held - held // 2


async def test_a_flush_of_one_tier_leaves_the_other(store: str, model: Path):
    ids = prompt(5, 600)
    async with run_engine(model, store) as engine:
        await engine.generate(ids, 2)
        await engine.settled()
        await flush(engine, cache_scopes=["scope"], tiers=[pb.TIER_VRAM])
        assert (await engine.generate([*ids, 3], 1, persist=False)).cached(pb.TIER_SSD) == 600
        assert (await flush(engine, cache_scopes=["scope"], tiers=[pb.TIER_SSD])).blocks == 0
        assert (await engine.generate([*ids, 4], 1, persist=False)).cached(pb.TIER_VRAM) == 600


async def test_a_flush_of_everything_spares_other_models(store: str, model: Path, tmp_path: Path):
    other = write_tiny_engine_model(tmp_path / "other", num_hidden_layers=3)
    ids = prompt(6, 300)
    for each in (model, other):
        async with run_engine(each, store) as engine:
            for scope in ("one", "two"):
                await engine.generate(ids, 2, scope)
            await engine.settled()
    async with run_engine(model, store) as engine:
        await flush(engine)
        assert (await stats(store)).manifests == 2
        assert (await engine.generate(ids, 2, "two", persist=False)).cached() == 0
    async with run_engine(other, store) as engine:
        assert (await engine.generate(ids, 2, "two", persist=False)).cached(pb.TIER_SSD) == 299


async def test_what_runs_during_a_flush_is_neither_reused_nor_stored(store: str, model: Path):
    ids = prompt(7, 300)
    async with run_engine(model, store) as engine:
        running = asyncio.create_task(engine.generate(ids, 300))
        await engine.load(lambda load: load.running == 1)
        await flush(engine)
        answer = await running
        assert len(answer.ids) == 300
        await engine.settled()
        assert (await stats(store)).manifests == 0
        assert (await engine.generate(ids, 1, persist=False)).cached() == 0
        load = await engine.settled()
        assert load.free_blocks + load.cached_blocks == load.total_blocks


async def test_a_flush_that_cannot_reach_the_store_says_so(tmp_path: Path, model: Path):
    async with run_kvstore(tmp_path / "kv") as store, run_engine(model, store) as engine:
        with pytest.raises(grpc.aio.AioRpcError, match="32 bytes"):
            await flush(engine, namespaces=[b"short"])
    async with run_engine(model, "127.0.0.1:9") as engine:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await flush(engine, cache_scopes=["scope"])
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_evicted_state_that_was_not_stored_is_named(model: Path):
    ids = prompt(8, 400)
    async with run_engine(model, vram_bytes=40 * 16 * TOKEN_BYTES) as engine:
        await engine.generate(ids, 2)
        await engine.generate(prompt(9, 500), 2)
        again = await engine.generate([*ids, 5], 2)
        assert again.usage.cached.miss.reason == pb.MISS_REASON_EVICTED
        assert again.usage.cached.miss.at_token == again.cached()
        assert (await engine.generate(prompt(10, 300), 2)).usage.cached.miss.reason == pb.MISS_REASON_COLD
