"""Annotate and Release on real gRPC: what a client says of its conversations decides what is kept of them."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import grpc.aio
import pytest
from fencepost.engine.v1 import engine_pb2 as pb

from services import rpc
from tests.contract.engine_client import EngineClient, run_engine, run_kvstore, write_tiny_engine_model
from tests.contract.slow_store import run_slow_store

BLOCK_BYTES = 16 * 512
SYSTEM = random.Random(0).choices(range(3, 500), k=64)
SMALL = 32 * BLOCK_BYTES
"""Room for three conversations of 9 blocks each behind the system prompt, and for one block to grow."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine_model(tmp_path_factory.mktemp("model") / "tiny")


def prompt(seed: int, length: int = 200) -> list[int]:
    return [*SYSTEM, *random.Random(seed).choices(range(3, 500), k=length - len(SYSTEM))]


async def turn(engine: EngineClient, ids: list[int], key: str) -> list[int]:
    """A turn; the next prompt without what the client adds."""
    answer = await engine.generate(ids, 4, conversation_key=key)
    return [*ids, *answer.ids]


async def cached(engine: EngineClient, ids: list[int], tier: int = 0, key: str = "probe") -> int:
    return (await engine.generate([*ids, 7], 1, conversation_key=key)).cached(tier)


async def annotate(engine: EngineClient, key: str, *classes: str) -> None:
    await engine.stub.Annotate(pb.AnnotateRequest(cache_scope="scope", conversation_key=key, wait_classes=classes))


async def release(engine: EngineClient, key: str, *, delete: bool = False) -> None:
    await engine.stub.Release(pb.ReleaseRequest(cache_scope="scope", conversation_key=key, delete=delete))


async def test_without_hints_the_least_recently_used_conversation_goes(model: Path):
    async with run_engine(model, vram_bytes=SMALL) as engine:
        first = await turn(engine, prompt(1), "first")
        second = await turn(engine, prompt(2), "second")
        await turn(engine, prompt(3, 290), "third")
        assert await cached(engine, second) == 203
        assert await cached(engine, first) < 203


async def test_a_released_conversation_goes_before_older_ones(model: Path):
    async with run_engine(model, vram_bytes=SMALL) as engine:
        first = await turn(engine, prompt(1), "first")
        second = await turn(engine, prompt(2), "second")
        await release(engine, "second")
        await turn(engine, prompt(3, 290), "third")
        assert await cached(engine, first) == 203
        assert await cached(engine, second) < 203


async def test_a_released_conversation_is_resumed_days_later(model: Path):
    async with run_engine(model) as engine:
        ids = await turn(engine, prompt(1), "first")
        await release(engine, "first")
        assert await cached(engine, ids, key="first") == 203


async def test_who_waits_for_a_tool_that_is_quick_keeps_its_blocks(model: Path):
    async with run_engine(model, vram_bytes=SMALL) as engine:
        agent = prompt(1, 150)
        for _ in range(9):
            agent = await turn(engine, agent, "agent")
            await annotate(engine, "agent", "quick")
            agent.append(9)
        agent.pop()
        other = await turn(engine, prompt(2), "other")
        await turn(engine, prompt(3, 290), "third")
        # The last block holds two tokens. It is worth the least, and goes with what is not expected back.
        assert await cached(engine, agent, key="agent") == 192, "all whole blocks, though the other one was used later"
        assert await cached(engine, other) < 203


async def test_deleting_a_conversation_leaves_what_others_share(model: Path):
    async with run_engine(model) as engine:
        first, second = await turn(engine, prompt(1), "first"), await turn(engine, prompt(2), "second")
        before = (await engine.settled()).cached_blocks
        await release(engine, "first", delete=True)
        after = (await engine.settled()).cached_blocks
        assert before - after == 9
        assert await cached(engine, first) == len(SYSTEM)
        assert await cached(engine, second) == 203


@pytest.mark.parametrize("waits_for_writes", [True, False])
async def test_deleting_a_conversation_removes_what_was_stored_of_it(
    model: Path, tmp_path: Path, waits_for_writes: bool
):
    async with run_kvstore(tmp_path) as address:
        async with run_engine(model, address) as engine:
            shared = prompt(0, 300)
            first, second = [*shared, *prompt(1, 400)[64:]], [*shared, *prompt(2, 400)[64:]]
            for _ in range(3):
                first = [*await turn(engine, first, "first"), 5, 6, 7]
            await turn(engine, second, "second")
            if waits_for_writes:
                await engine.settled()
            await release(engine, "first", delete=True)
            await engine.settled()
        async with run_engine(model, address) as engine:
            assert await cached(engine, first, pb.TIER_SSD) == 300, "what the other one shares"
        async with run_engine(model, address) as engine:
            assert await cached(engine, second, pb.TIER_SSD) == len(second)


async def test_a_state_is_stored_though_what_it_shares_is_deleted_while_it_is_written(model: Path, tmp_path: Path):
    async with run_kvstore(tmp_path) as address, run_slow_store(address) as (store, passed_on):
        async with run_engine(model, passed_on) as engine:
            shared = prompt(0, 300)
            await turn(engine, shared, "first")
            await engine.settled()
            store.before_commits.append(partial(release, engine, "first", delete=True))
            second = [*shared, *prompt(2, 400)[64:]]
            await turn(engine, second, "second")
            await engine.settled()
            assert not store.before_commits
        async with run_engine(model, address) as engine:
            assert await cached(engine, second, pb.TIER_SSD) == len(second)


async def test_a_delete_that_the_store_does_not_answer_says_so_each_time(model: Path, tmp_path: Path):
    async with AsyncExitStack() as store:
        address = await store.enter_async_context(run_kvstore(tmp_path))
        async with run_engine(model, address) as engine:
            ids = await turn(engine, prompt(1), "first")
            await engine.settled()
            await store.aclose()
            for _ in range(2):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await release(engine, "first", delete=True)
                assert rpc.failure_of(caught.value).reason == "STORE_UNAVAILABLE"
            assert await cached(engine, ids) == 0, "what was on the device is gone all the same"


async def test_deleting_what_was_never_stored_needs_no_store(model: Path):
    async with run_engine(model, "127.0.0.1:1") as engine:
        ids = await turn(engine, prompt(1), "first")
        await engine.settled()
        await release(engine, "first", delete=True)
        assert await cached(engine, ids) == 0
