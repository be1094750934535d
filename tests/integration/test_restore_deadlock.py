"""Restores that together fill the device's memory, while each request needs more for its whole prompt, all finish."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fencepost.engine.v1 import engine_pb2 as pb

from services import rpc
from tests.contract.engine_client import Answer, EngineClient, run_engine, run_kvstore, write_tiny_engine_model
from tests.contract.kvstore_client import Client

IS_SOAK = bool(os.environ.get("FENCEPOST_SOAK"))
BLOCK_TOKENS = 16
STATE_TOKENS = 500
SUFFIX_TOKENS = 180
# More than a block, so that running requests need memory that they do not have at their admission.
OUTPUT_TOKENS = 40
TOKENS = STATE_TOKENS + SUFFIX_TOKENS + OUTPUT_TOKENS
ONE = -(-TOKENS // BLOCK_TOKENS)
"""Blocks that one request fills up to its last token."""
STATE = -(-STATE_TOKENS // BLOCK_TOKENS)
"""Blocks that one restore fills."""

# From "just one fits" over "both restores fit, to the block, and nothing else" to "all fit".
NEAR_TWO_STATES = [2 * STATE + extra for extra in (-1, 0, 1, 8)]
POOLS_OF_TWO = [ONE, ONE + 1, ONE + 4, *NEAR_TWO_STATES, 2 * ONE - 1, 2 * ONE]
POOLS_OF_FOUR = [ONE, 2 * STATE, 2 * ONE - 1, 3 * STATE, 4 * STATE, 4 * STATE + 5, 4 * ONE]
# Pool, who leaves, and after how many messages.
LEAVING = list(itertools.product((ONE, 2 * STATE, 2 * ONE), (0, 1, 3), (0, 1, 2)))


@dataclass(frozen=True)
class Turn:
    """A prompt that goes on from a stored state, and its cold answer."""

    ids: list[int]
    answer: tuple[int, ...]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
async def address(tmp_path: Path) -> AsyncGenerator[str]:
    """Of a store whose leases do not expire during a test."""
    async with run_kvstore(tmp_path / "kv", lease_s=600) as address:
        yield address


async def stored_turns(model: Path, address: str, count: int) -> list[Turn]:
    """Conversations that share nothing, whose states only the store has."""
    rng = random.Random(count)
    prompts = [rng.choices(range(3, 500), k=STATE_TOKENS + SUFFIX_TOKENS) for _ in range(count)]
    async with run_engine(model, address) as engine:
        for ids in prompts:
            await engine.generate(ids[:STATE_TOKENS], 1)
        await engine.settled()
    async with run_engine(model) as engine:
        return [Turn(ids, (await engine.generate(ids, OUTPUT_TOKENS)).ids) for ids in prompts]


def check(turn: Turn, answer: Answer) -> None:
    assert answer.ids == turn.answer
    assert answer.cached() == STATE_TOKENS
    assert answer.cached(pb.TIER_SSD) == STATE_TOKENS
    assert answer.usage.cached.recomputed_tokens == SUFFIX_TOKENS


async def check_nothing_is_held(engine: EngineClient, address: str, num_blocks: int) -> None:
    load = await engine.settled()
    assert (load.held_blocks, load.leases) == (0, 0)
    assert load.free_blocks + load.cached_blocks == load.total_blocks == num_blocks
    async with rpc.open_channel(address) as channel, asyncio.timeout(20):
        while (await Client(channel).stats()).leases:  # noqa: ASYNC110 - the store tells nobody
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("count", "num_blocks"), [*((2, pool) for pool in POOLS_OF_TWO), *((4, pool) for pool in POOLS_OF_FOUR)]
)
async def test_restores_that_fill_the_pool_all_finish(model: Path, address: str, count: int, num_blocks: int) -> None:
    turns = await stored_turns(model, address, count)
    async with run_engine(model, address, vram_bytes=num_blocks * BLOCK_TOKENS * 512) as engine:
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*(engine.generate(turn.ids, OUTPUT_TOKENS, persist=False) for turn in turns))
        for turn, answer in zip(turns, answers, strict=True):
            check(turn, answer)
        await check_nothing_is_held(engine, address, num_blocks)


@pytest.mark.parametrize(("num_blocks", "victim", "read_first"), LEAVING if IS_SOAK else LEAVING[::4])
async def test_one_that_leaves_makes_room_for_the_others(
    model: Path, address: str, num_blocks: int, victim: int, read_first: int
) -> None:
    """The one that leaves waits, is being restored or computes: after none, one or two messages."""
    turns = await stored_turns(model, address, 4)
    async with run_engine(model, address, vram_bytes=num_blocks * BLOCK_TOKENS * 512) as engine:

        async def leave(turn: Turn) -> None:
            call = engine.start(turn.ids, OUTPUT_TOKENS, persist=False)
            messages = aiter(call)
            for _ in range(read_first):
                await anext(messages)
            await asyncio.sleep(0)
            call.cancel()

        async def stay(turn: Turn) -> None:
            check(turn, await engine.generate(turn.ids, OUTPUT_TOKENS, persist=False))

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            for number, turn in enumerate(turns):
                tasks.create_task(leave(turn) if number == victim else stay(turn))
        await check_nothing_is_held(engine, address, num_blocks)
        # What the one left behind is right, too.
        answer = await engine.generate(turns[victim].ids, OUTPUT_TOKENS, persist=False)
        assert answer.ids == turns[victim].answer
