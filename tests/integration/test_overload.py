"""Twice as many callers as an engine takes, of all sizes, many of whom leave: nothing leaks, stalls or starves."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest
from fencepost.engine.v1 import engine_pb2 as pb
from fencepost.engine.v1 import engine_pb2_grpc

from services import rpc
from tests.contract.engine_client import EngineClient, run_engine, run_kvstore, write_tiny_engine_model
from tests.contract.kvstore_client import Client

IS_SOAK = bool(os.environ.get("FENCEPOST_SOAK"))
NUM_REQUESTS = 1_000 if IS_SOAK else 100
MAX_RUNNING, MAX_WAITING = 4, 6
NUM_CALLERS = 2 * (MAX_RUNNING + MAX_WAITING)
# Of 16 tokens: some of the prompts below fill half of it.
NUM_BLOCKS = 80
ENDS = ("stays", "stays", "cancels at once", "cancels while it waits", "cancels at some message", "disconnects")


@pytest.fixture
async def address(tmp_path: Path) -> AsyncGenerator[str]:
    async with run_kvstore(tmp_path / "kv", lease_s=600) as address:
        yield address


class Crowd:
    """Callers of some sessions, each one's prompts beginning as its session's."""

    def __init__(self, engine: EngineClient) -> None:
        self.engine = engine
        self.seen: Counter[str] = Counter()
        self._answers: dict[tuple[int, ...], tuple[int, ...]] = {}
        rng = random.Random(0)
        self._sessions = [rng.choices(range(3, 500), k=700) for _ in range(10)]

    async def caller(self, seed: int, count: int) -> None:
        rng = random.Random(seed)
        for number in range(count):
            ask_seed = 10_000 * seed + number
            while (delay_s := await self._ask(random.Random(ask_seed))) is not None:  # noqa: ASYNC110 - as told
                # What is told to callers is at least a second; this engine is as fast as it is small.
                await asyncio.sleep(min(delay_s, 2) / 50 * rng.random())

    async def _ask(self, rng: random.Random) -> float | None:
        """One request; the delay that it was told if it was refused."""
        session = rng.randrange(len(self._sessions))
        ids = self._sessions[session][: rng.choice((1, 20, 150, 300, 640))]
        max_tokens = rng.choice((1, 5, 40))
        end = rng.choice(ENDS)
        is_background = rng.random() < 0.2
        request = pb.GenerateRequest(
            cache_scope="scope",
            token_ids=np.array(ids, dtype="<i4").tobytes(),
            sampling=pb.Sampling(temperature=0, max_tokens=max_tokens, ignore_end=True),
            conversation_key=f"session {session}",
            tenant="tenant",
            persist=rng.random() < 0.3,
            priority=pb.PRIORITY_BACKGROUND if is_background else pb.PRIORITY_INTERACTIVE,
        )
        try:
            if end == "disconnects":
                async with rpc.open_channel(self.engine.address) as channel:
                    await _read(engine_pb2_grpc.EngineServiceStub(channel).Generate(request), rng.randint(1, 6))
            else:
                call = self.engine.stub.Generate(request)
                if end == "cancels while it waits":
                    await asyncio.sleep(0.01 * rng.random())
                most = {"stays": 10_000, "cancels at some message": rng.randint(1, 6)}.get(end, 0)
                answer = await _read(call, most)
                call.cancel()
                if end == "stays":
                    assert len(answer) == max_tokens
                    known = self._answers.setdefault(tuple(ids), answer)
                    length = min(len(known), len(answer))
                    assert known[:length] == answer[:length]
        except grpc.aio.AioRpcError as error:
            failure = rpc.failure_of(error)
            assert failure.code is grpc.StatusCode.RESOURCE_EXHAUSTED, failure
            assert failure.retry_after_s is not None
            assert failure.retry_after_s >= 1
            self.seen["refused"] += 1
            return failure.retry_after_s
        self.seen[end] += 1
        self.seen["background" if is_background else "interactive"] += 1
        return None


async def _read(call: Any, most: int) -> tuple[int, ...]:
    """Ids of the first ``most`` messages."""
    answer: list[int] = []
    for _ in range(most):
        message = await call.read()
        if message is grpc.aio.EOF:
            break
        answer += message.tokens.ids
    return tuple(answer)


@pytest.mark.parametrize("admission", ["lpm", "fcfs"])
async def test_a_crowd_of_callers_leaves_nothing_behind(tmp_path: Path, address: str, admission: str):
    model = write_tiny_engine_model(tmp_path / "tiny")
    async with run_engine(
        model,
        address,
        vram_bytes=NUM_BLOCKS * 16 * 512,
        step_tokens=64,
        max_running=MAX_RUNNING,
        max_waiting=MAX_WAITING,
        patience_s=1.0,
        admission=admission,
    ) as engine:
        crowd = Crowd(engine)
        count = NUM_REQUESTS // NUM_CALLERS if admission == "lpm" else 2
        async with asyncio.timeout(600 if IS_SOAK else 60), asyncio.TaskGroup() as callers:
            for seed in range(NUM_CALLERS):
                callers.create_task(crowd.caller(seed, count))
        load = await engine.settled()
        assert (load.held_blocks, load.leases, load.prefill_backlog_tokens) == (0, 0, 0)
        assert load.free_blocks + load.cached_blocks == load.total_blocks == NUM_BLOCKS
        async with rpc.open_channel(address) as channel, asyncio.timeout(20):
            while (await Client(channel).stats()).leases:  # noqa: ASYNC110 - the store tells nobody
                await asyncio.sleep(0.02)
        # It goes on as if nothing had been.
        await engine.generate([3] * 640, 4)
    assert sum(crowd.seen[end] for end in set(ENDS)) == NUM_CALLERS * count
    assert crowd.seen["refused"]
    assert crowd.seen["background"]
    if admission == "lpm":
        assert all(crowd.seen[end] for end in ENDS), crowd.seen
    if IS_SOAK:
        print(admission, dict(crowd.seen))  # noqa: T201 - what the soak has come to
