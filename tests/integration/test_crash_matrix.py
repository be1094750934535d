"""Whatever is killed at whatever point: a turn that the store had committed is a full hit afterwards, and right."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import grpc.aio
import pytest
from fencepost.engine.v1 import engine_pb2 as pb

from tests.contract.engine_client import Answer, EngineClient, run_engine, write_tiny_engine_model
from tests.contract.kvstore_client import Client
from tests.integration.committed_turns import SCOPE, Conversation, Survey, Turn, load, namespace_of, random_ids
from tests.integration.processes import engine_process, kvstore_process

IS_SOAK = bool(os.environ.get("FENCEPOST_SOAK"))
SEEDS = range(3) if IS_SOAK else range(1)
STORE_KILLS = 8 if IS_SOAK else 3
ENGINE_ROUNDS = 3 if IS_SOAK else 1
ENGINES = 3
"""They share one store; in a round each is killed at a point of its own."""
CHECKED_TURNS = 100 if IS_SOAK else 12
TIE = 2e-4
"""Between logarithms of probabilities; batches of other shapes move them by some 1e-5."""
# So little that conversations push each other out, and turns are restored under load too.
VRAM_BYTES = "2MiB"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine_model(tmp_path_factory.mktemp("model") / "tiny")


async def kill_under_load(
    process: asyncio.subprocess.Process,
    engines: Mapping[EngineClient, Sequence[Conversation]],
    survey: Survey,
    client: Client,
    rng: random.Random,
) -> None:
    """Kill at a random point behind the first commit; the survey is from just before."""
    async with load(engines):
        await survey.look_until_more(client)
        await asyncio.sleep(0.4 * rng.random())
        await survey.look(client)
        await asyncio.sleep(0.02 * rng.random())
        process.kill()
        await process.wait()


async def check_accounts(address: str, data_dir: Path) -> None:
    """Used bytes are the same after each of two restarts, and the first left no orphan."""
    async with kvstore_process(address, data_dir) as (_, client):
        first = await client.stats()
    async with kvstore_process(address, data_dir) as (_, client):
        second = await client.stats()
    assert (second.bytes, second.pages, second.manifests) == (first.bytes, first.pages, first.manifests)
    assert (first.verify_failures, second.verify_failures) == (0, 0)
    assert second.orphan_pages == 0


async def check_empties(client: Client) -> None:
    """Nothing is leased, and with the tenant's states goes every byte that is counted."""
    found = await client.stats()
    assert found.leases == 0
    deleted = await client.delete(tenant="tenant")
    assert (deleted.bytes, deleted.pages, deleted.manifests) == (found.bytes, found.pages, found.manifests)
    found = await client.stats()
    assert (found.bytes, found.pages, found.manifests) == (0, 0, 0)


def likeliest(max_tokens: int) -> pb.Sampling:
    return pb.Sampling(temperature=0, max_tokens=max_tokens, ignore_end=True, logprobs=2)


def is_as_likely(ids: Sequence[int], computed: Answer) -> bool:
    """Whether it is the same answer up to a choice between two tokens that the shape of a batch can decide."""
    for token_id, other in zip(ids, computed.logprobs, strict=True):
        if token_id != other.sampled.token_id:
            first, second = other.top
            return token_id == second.token_id and first.logprob - second.logprob < TIE
    return True


async def check_answers(store: str, model: Path, turns: Sequence[Turn], rng: random.Random) -> None:
    """Fresh engines find the turns whole, and go on as one does that has computed everything itself."""
    async with run_engine(model) as cold:
        for number, turn in enumerate(rng.sample(turns, min(len(turns), CHECKED_TURNS))):
            # Another way than the conversation went, so that what it has stored later is of no use.
            other_id = 3 if turn.answer[-1] != 3 else 4
            prompt = [*turn.prompt, *turn.answer[:-1], other_id, *random_ids(rng, 5)]
            async with run_engine(model, store) as engine:
                restored = await engine.generate(prompt, 8, scope=SCOPE, persist=False)
                assert (await engine.settled()).held_blocks == 0
            assert restored.cached(pb.TIER_SSD) == restored.cached() == turn.num_tokens
            computed = await cold.generate(prompt, scope=f"{number}", sampling=likeliest(8))
            assert computed.cached() == 0
            assert is_as_likely(restored.ids, computed)
            whole = await cold.generate(list(turn.prompt), scope=f"prompt {number}", sampling=likeliest(6))
            assert is_as_likely(turn.answer, whole)


@pytest.mark.parametrize("seed", SEEDS)
async def test_turns_committed_before_the_store_is_killed_are_whole(seed: int, tmp_path: Path, model: Path) -> None:
    rng = random.Random(f"store {seed}")
    address, data_dir = f"unix:{tmp_path}/kv", tmp_path / "data"
    conversations = [Conversation(random.Random(f"{seed} {i}")) for i in range(6)]
    survey = Survey(await namespace_of(model), model, conversations)
    # Two, so that a flush for one's commit makes durable what the other has only begun.
    async with run_engine(model, address) as one, run_engine(model, address) as other:
        engines = {one: conversations[:3], other: conversations[3:]}
        for _ in range(STORE_KILLS):
            async with kvstore_process(address, data_dir) as (store, client):
                await survey.check(client)
                await kill_under_load(store, engines, survey, client, rng)
            # Writes that failed are given up before the next start, so that none heals what a kill has lost.
            await asyncio.gather(one.settled(), other.settled())
        await check_accounts(address, data_dir)
        async with kvstore_process(address, data_dir) as (_, client):
            await survey.check(client)
            async with load(engines):
                await survey.look_until_more(client)
            await asyncio.gather(one.settled(), other.settled())
            await survey.look(client)
            counted = await client.stats()
    async with kvstore_process(address, data_dir) as (_, client):
        found = await client.stats()
        assert (found.bytes, found.pages, found.manifests) == (counted.bytes, counted.pages, counted.manifests)
        holding = await survey.check(client)
        assert (found.pages, found.manifests in holding.manifests) == (holding.pages, True), (found, holding)
        assert holding.num_bytes < found.bytes < 1.1 * holding.num_bytes
        await check_answers(address, model, list(survey.committed.values()), rng)
        await check_empties(client)


@pytest.mark.parametrize("seed", SEEDS)
async def test_turns_committed_before_their_engine_is_killed_are_whole(seed: int, tmp_path: Path, model: Path) -> None:
    rng = random.Random(f"engine {seed}")
    address, data_dir = f"unix:{tmp_path}/kv", tmp_path / "data"
    groups = [[Conversation(random.Random(f"{seed} {i} {j}")) for j in range(2)] for i in range(ENGINES)]
    namespace = await namespace_of(model)
    surveys = [Survey(namespace, model, conversations) for conversations in groups]

    async def use_and_kill(stack: AsyncExitStack, number: int, client: Client) -> None:
        starting = engine_process(
            f"unix:{tmp_path}/engine{number}", model, address, "--vram-bytes", VRAM_BYTES, "--restore", "always"
        )
        process, engine = await stack.enter_async_context(starting)
        with pytest.raises(ExceptionGroup) as failed:
            await kill_under_load(process, {engine: groups[number]}, surveys[number], client, rng)
        assert failed.group_contains(grpc.aio.AioRpcError)

    async with kvstore_process(address, data_dir) as (_, client):
        for _ in range(ENGINE_ROUNDS):
            async with AsyncExitStack() as stack:
                await asyncio.gather(*(use_and_kill(stack, number, client) for number in range(ENGINES)))
            for survey in surveys:
                await survey.check(client)
    await check_accounts(address, data_dir)
    committed = [turn for survey in surveys for turn in survey.committed.values()]
    async with kvstore_process(address, data_dir) as (_, client):
        for survey in surveys:
            await survey.check(client)
        await check_answers(address, model, committed, rng)
        await check_empties(client)
