"""Restores that are cancelled anywhere, thousands of times, leave nothing behind: no block, lease, task or memory."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fencepost.engine.v1 import engine_pb2 as pb

from services import rpc
from tests.contract.engine_client import EngineClient, run_engine, run_kvstore, write_tiny_engine_model
from tests.contract.kvstore_client import Client

IS_SOAK = bool(os.environ.get("FENCEPOST_SOAK"))
NUM_CYCLES = 10_000 if IS_SOAK else 60
NUM_ROUNDS = 10
# Two requests at a time.
NUM_CALLERS = 2
STATE_TOKENS = 1_000
SETTINGS = {"step_tokens": 64, "restore_timeout_s": 600}
# Room for one of the prompts, not for the states of two: whoever comes evicts, and must restore.
POOL_TOKENS = 1_280
# Tasks and files that come and go.
FEW = 4
MAX_GROWTH_BYTES = 40 * 2**20
STOPS = ("before admission", "during the restore", "during the prefill", "during the answer", "never")


@dataclass(frozen=True)
class Turn:
    """A prompt that goes on from a stored state, and its cold answer."""

    ids: list[int]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Footprint:
    """What the process holds while nothing runs."""

    resident_bytes: int
    num_files: int
    num_tasks: int

    @classmethod
    def now(cls) -> Footprint:
        statm = Path("/proc/self/statm")
        pages = int(statm.read_text().split()[1]) if statm.exists() else 0
        return cls(pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/dev/fd")), len(asyncio.all_tasks()))


def ids_of(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(3, 500), k=count)


async def turns(model: Path, address: str) -> list[Turn]:
    """Store two states; prompts that go on from them in turn, within one step's tokens and over several."""
    prompts = [
        [*ids_of(seed, STATE_TOKENS), *ids_of(length, length)] for length in (1, 70, 200) for seed in (1001, 1002)
    ]
    async with run_engine(model, address) as engine:
        for prompt in prompts[:2]:
            await engine.generate(prompt[:STATE_TOKENS], 1)
        await engine.settled()
    async with run_engine(model) as engine:
        return [Turn(ids, (await engine.generate(ids, 8, scope=str(len(ids)))).ids) for ids in prompts]


async def ask(engine: EngineClient, turn: Turn, rng: random.Random, seen: Counter[str]) -> None:
    """One cycle: ask, and leave at some point or stay to the end."""
    stop = rng.choice(STOPS)
    call = engine.start(turn.ids, 8, persist=rng.random() < 0.1)
    if stop == "before admission":
        await asyncio.sleep(rng.choice((0, 0.003 * rng.random())))
        call.cancel()
        seen[stop] += 1
        return
    answer: list[int] = []
    num_wanted = rng.randint(1, 6)
    async for message in call:
        event = message.WhichOneof("event")
        answer += message.tokens.ids
        if event == "admitted":
            seen["restores"] += any(found.tier == pb.TIER_SSD for found in message.admitted.cached.by_tier)
        if event == "admitted" and stop == "during the restore":
            await asyncio.sleep(0.01 * rng.random())
            break
        if event == "progress" and stop == "during the prefill":
            break
        if len(answer) >= num_wanted and stop == "during the answer":
            break
        if event == "finished":
            assert tuple(answer) == turn.answer
            use = message.finished.usage.cached
            assert sum(found.tokens for found in use.by_tier) + use.recomputed_tokens == len(turn.ids)
            # The end came before the point at which to leave.
            stop = "never"
    call.cancel()
    seen[stop] += 1


async def settled(engine: EngineClient, store: Client, before: Footprint) -> Footprint:
    """Check that nothing is held once nothing runs. What a caller has left behind is given back in the background."""
    load = await engine.settled()
    assert (load.held_blocks, load.leases) == (0, 0)
    assert load.free_blocks + load.cached_blocks == load.total_blocks
    # Leases expire and reads time out by themselves, but much later than this.
    ends_s = time.monotonic() + 20
    while True:
        num_leases, num_tasks = (await store.stats()).leases, len(asyncio.all_tasks())
        if not num_leases and num_tasks <= before.num_tasks + FEW:
            break
        assert time.monotonic() < ends_s, f"{num_leases} leases, {num_tasks} tasks of {before.num_tasks} at first"
        await asyncio.sleep(0.02)
    return Footprint.now()


@pytest.fixture
async def address(tmp_path: Path) -> AsyncGenerator[str]:
    """Of a store whose leases do not expire during a test."""
    async with run_kvstore(tmp_path / "kv", lease_s=600) as address:
        yield address


@pytest.fixture
async def store(address: str) -> AsyncGenerator[Client]:
    async with rpc.open_channel(address) as channel:
        yield Client(channel)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_engine_model(tmp_path / "tiny")


async def test_cancelled_restores_leave_nothing_behind(address: str, store: Client, model: Path) -> None:
    seen: Counter[str] = Counter()
    footprints: list[Footprint] = []
    choices = await turns(model, address)
    async with run_engine(model, address, vram_bytes=POOL_TOKENS * 512, **SETTINGS) as engine:

        async def caller(seed: int) -> None:
            rng = random.Random(seed)
            for cycle in range(NUM_CYCLES // NUM_ROUNDS // NUM_CALLERS):
                # One state after the other: the last one's blocks are in the way.
                await ask(engine, choices[2 * rng.randrange(3) + cycle % 2], rng, seen)

        before = await settled(engine, store, Footprint.now())
        for round_ in range(NUM_ROUNDS):
            async with asyncio.TaskGroup() as callers:
                for number in range(NUM_CALLERS):
                    callers.create_task(caller(NUM_CALLERS * round_ + number))
            footprints.append(await settled(engine, store, before))
        for turn in choices:
            assert (await engine.generate(turn.ids, 8)).ids == turn.answer
    assert (await store.stats()).verify_failures == 0
    assert sum(seen[stop] for stop in STOPS) == NUM_CYCLES
    assert all(seen[stop] > NUM_CYCLES // 500 for stop in STOPS), seen
    assert seen["restores"] > NUM_CYCLES // 6, seen
    assert footprints[-1].num_files <= footprints[0].num_files + FEW
    if IS_SOAK:
        assert footprints[-1].resident_bytes - footprints[0].resident_bytes < MAX_GROWTH_BYTES


@pytest.mark.parametrize("stop", ["during the lookup", "during the restore"])
async def test_callers_that_leave_early_leave_no_lease_and_no_read(
    address: str, store: Client, model: Path, stop: str
) -> None:
    turn = (await turns(model, address))[0]
    async with run_engine(model, address, **SETTINGS) as engine:
        before = await settled(engine, store, Footprint.now())
        for number in range(1_500 if IS_SOAK else 150):
            call = engine.start(turn.ids, 1)
            if stop == "during the restore":
                await anext(aiter(call))
            await asyncio.sleep(0.00003 * (number % 150))
            call.cancel()
            # Restored anew the next time.
            if number % 10 == 9:
                await settled(engine, store, before)
                for filler in range(2):
                    await engine.generate([3 + filler] * 2_040, 1, scope="filler", persist=False)
        await settled(engine, store, before)
        assert (await engine.generate(turn.ids, 8)).ids == turn.answer
