"""Priorities and refusals as callers of EngineService see them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from fencepost.engine.v1 import engine_pb2 as pb

from services import rpc
from services.engine.config import EngineConfig
from services.settings import SettingsError, load
from tests.contract.engine_client import run_engine, write_tiny_engine_model

BACKGROUND: dict[str, Any] = {"priority": pb.PRIORITY_BACKGROUND}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine_model(tmp_path_factory.mktemp("model") / "tiny")


def prompt(seed: int, length: int = 30) -> list[int]:
    return random.Random(seed).choices(range(3, 500), k=length)


async def refusal(call: Any) -> rpc.RpcFailure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    failure = rpc.failure_of(caught.value)
    assert (failure.code, failure.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    return failure


async def test_an_interactive_request_that_comes_later_ends_before_background_ones(model: Path):
    ended: list[str] = []
    async with run_engine(model, max_running=1) as engine:

        async def ask(name: str, seed: int, max_tokens: int, **fields: Any) -> None:
            answer = await engine.generate(prompt(seed), max_tokens, **fields)
            assert len(answer.ids) == max_tokens
            ended.append(name)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask("running", 1, 300, **BACKGROUND))
            await engine.load(lambda load: load.running == 1)
            tasks.create_task(ask("waiting", 2, 4, **BACKGROUND))
            await engine.load(lambda load: load.queued == 1)
            tasks.create_task(ask("interactive", 3, 30))
        assert ended == ["interactive", "running", "waiting"]
        assert (await engine.settled()).held_blocks == 0


async def test_background_requests_take_no_place_in_the_queue_from_interactive_ones(model: Path):
    async with run_engine(model, max_running=1, max_waiting=2) as engine:
        calls = [engine.start(prompt(0), 1000)]
        await engine.load(lambda load: load.running == 1)
        calls += [engine.start(prompt(seed), 4, **BACKGROUND) for seed in (1, 2)]
        await engine.load(lambda load: load.queued == 2)
        await refusal(engine.start(prompt(3), 4, **BACKGROUND))
        calls += [engine.start(prompt(seed), 4) for seed in (4, 5)]
        await engine.load(lambda load: load.queued == 4)
        await refusal(engine.start(prompt(6), 4))
        for call in calls:
            call.cancel()
        assert (await engine.settled()).held_blocks == 0


async def test_the_retry_delay_grows_with_what_is_ahead(model: Path):
    async with run_engine(model, max_running=1, max_waiting=2, threads=1) as engine:
        calls = [engine.start(prompt(seed), 1_500) for seed in range(3)]
        await engine.load(lambda load: load.queued == 2)
        delays = [(await refusal(engine.start(prompt(9), 1_500))).retry_after_s for _ in range(6)]
        assert all(delay is not None and delay >= 1 for delay in delays)
        assert delays[-1] > delays[0]  # type: ignore[operator]
        for call in calls:
            call.cancel()
        await engine.settled()


async def test_a_background_request_alone_is_admitted_when_its_patience_ends(model: Path):
    """Nothing else wakes the engine: its device is full of a conversation that was active lately."""
    async with run_engine(model, vram_bytes=40 * 16 * 512, patience_s=0.6) as engine:
        await engine.generate(prompt(1, 600), 20)
        async with asyncio.timeout(20):
            answer = await engine.generate(prompt(2, 200), 4, **BACKGROUND)
        assert len(answer.ids) == 4
        assert answer.usage.timings.queued_ms >= 600


async def test_the_settings_of_admission_are_checked_at_the_start(model: Path):
    for setting in ("--admission=lifo", "--working-set-gate=perhaps", "--patience-s=-1", "--max-passes=-1"):
        with pytest.raises(SettingsError, match=setting.split("=")[0]):
            load(EngineConfig, "engine", [f"--model={model}", setting], {})
    config = load(
        EngineConfig, "engine", [f"--model={model}", "--admission=fcfs", "--working-set-gate=off", "--max-passes=0"], {}
    )
    assert (config.admission, config.working_set_gate, config.max_passes) == ("fcfs", False, 0)
