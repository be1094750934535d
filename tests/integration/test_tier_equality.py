"""Where a prompt's state lay makes no difference: not to the tokens, not to a byte of the state, only to the usage."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from fencepost.engine.v1 import engine_pb2 as pb

from services import rpc
from services.engine.runtime import Batch, PagedRuntime, Row, load_model
from tests.contract.engine_client import run_engine, run_kvstore, write_tiny_engine_model
from tests.contract.kvstore_client import Client, Restored, serving
from tests.integration.stored_state import StoredState, manifests, opened, stored_state
from tests.integration.tier_stack import TierStack

BLOCK_SIZES = (16, 32, 64, 128, 256)
IS_SOAK = bool(os.environ.get("FENCEPOST_SOAK"))
NUM_CONVERSATIONS = 300 if IS_SOAK else 10
MAX_PROMPT = 1_100


def sampled(lengths: list[int]) -> list[tuple[int, int]]:
    """(length, size of block): every size with every length in the soak, else one."""
    if IS_SOAK:
        return list(itertools.product(lengths, BLOCK_SIZES))
    return list(zip(lengths, itertools.cycle(BLOCK_SIZES), strict=False))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine_model(tmp_path_factory.mktemp("model") / "tiny")


def ids_of(rng: random.Random, count: int) -> list[int]:
    return rng.choices(range(3, 500), k=count)


def length_from(rng: random.Random, shortest: int) -> int:
    """Any length, or one at, before or behind the end of a block or page."""
    if rng.random() < 0.4:
        return rng.randint(shortest, max(shortest, MAX_PROMPT))
    size = rng.choice(BLOCK_SIZES)
    edges = range(size, MAX_PROMPT, size)
    near = [edge + step for edge in edges for step in (-1, 0, 1) if edge + step >= shortest]
    return rng.choice(near) if near else shortest


def next_prompt(rng: random.Random, prompts: list[list[int]], states: list[list[int]]) -> list[int]:
    """What a client may send next: the conversation goes on, is sent again, is rewound, or forks."""
    match rng.randrange(6):
        case 0:
            return list(prompts[-1])
        case 1:
            earlier = rng.choice(states)
            return earlier[: rng.randint(1, min(len(earlier), length_from(rng, 1)))]
        case 2:
            earlier = rng.choice(states)
            kept = earlier[: min(len(earlier), length_from(rng, 1))]
            return [*kept, *ids_of(rng, rng.randint(1, 200))]
        case _:
            grown = length_from(rng, len(states[-1]) + 1)
            return [*states[-1], *ids_of(rng, grown - len(states[-1]))]


@pytest.mark.parametrize("seed", range(NUM_CONVERSATIONS))
async def test_every_tier_gives_the_cold_answer(tmp_path: Path, model: Path, seed: int) -> None:
    rng = random.Random(seed)
    prompts = [ids_of(rng, length_from(rng, 1))]
    states: list[list[int]] = []
    async with run_engine(model) as cold, TierStack(model, tmp_path / "kv") as stack:
        for number in range(rng.randint(2, 4)):
            if number:
                prompts.append(next_prompt(rng, prompts, states))
                match rng.randrange(4):
                    case 0:
                        await stack.evict()
                    case 1:
                        await stack.restart_engine(rng.choice(BLOCK_SIZES))
                    case 2:
                        await stack.restart_all(rng.choice(BLOCK_SIZES))
                    case _:
                        pass
            max_tokens = rng.choice((1, 1, 2, 5, 40))
            expected = await cold.generate(prompts[-1], max_tokens, scope=f"turn {number}")
            assert expected.cached() == 0
            answer = await stack.turn(prompts[-1], max_tokens)
            assert answer.ids == expected.ids
            states.append([*prompts[-1], *answer.ids])


@pytest.mark.parametrize(("length", "block_tokens"), sampled([1, 33, 255, 256, 257, 512, 1_100]))
async def test_one_prompt_four_ways(tmp_path: Path, model: Path, length: int, block_tokens: int) -> None:
    first = ids_of(random.Random(length), length)
    async with run_engine(model) as cold, TierStack(model, tmp_path / "kv") as stack:
        # The state covers the first prompt exactly, so the next one splits right there.
        prompt = [*first, *(await stack.turn(first, 1)).ids, 7]
        expected = (await cold.generate(prompt, 6)).ids
        assert (await stack.turn(prompt, 6)).ids == expected
        await stack.evict()
        assert (await stack.turn(prompt, 6)).ids == expected
        await stack.restart_engine(block_tokens)
        assert (await stack.turn(prompt, 6)).ids == expected
        await stack.restart_all(block_tokens)
        assert (await stack.turn(prompt, 6)).ids == expected


@dataclass(frozen=True)
class Step:
    """Tokens [first, last) that one pass of the model computes."""

    first: int
    last: int


def steps(first: int, num_prompt: int, num_tokens: int) -> Iterator[Step]:
    """How an engine of 128 tokens a step computes a prompt from ``first`` on, and then its answer."""
    for at in range(first, num_prompt, 128):
        yield Step(at, min(at + 128, num_prompt))
    for at in range(num_prompt, num_tokens):
        yield Step(at, at + 1)


class Resident:
    """The state as a runtime has it that computes the same steps and never stores anything."""

    def __init__(self, model: Path) -> None:
        self._runtime = PagedRuntime(load_model(model, "cpu", 1), num_blocks=64, block_tokens=32)
        self._blocks = tuple(range(64))

    def compute(self, ids: list[int], steps: Iterator[Step]) -> None:
        for step in steps:
            tokens = np.array(ids[step.first : step.last], dtype=np.int32)
            self._runtime.forward(Batch((Row(tokens, step.first, self._blocks, num_logits=1),)))

    def channels(self, state: StoredState) -> dict[tuple[bytes, int, int], bytes]:
        """All of a state, as the store would give it: the channels of a layer one behind the other."""
        owners = [*state.page_keys, *([b"tail"] if state.tail_ids else [])]
        return {
            (owner, layer, 0): b"".join(
                self._runtime.read_span(
                    self._blocks, page * 256, min(256, state.num_tokens - page * 256), layer, channel
                )
                for channel in range(len(self._runtime.layout.channels))
            )
            for page, owner in enumerate(owners)
            for layer in range(self._runtime.layout.num_layers)
        }


async def read_whole(data_dir: Path, ids: list[int]) -> tuple[StoredState, Restored]:
    """The longest stored state, which covers ``ids``."""
    with opened(data_dir) as database:
        state = stored_state(manifests(database)[-1], ids)
    async with serving(data_dir) as client:
        return state, await client.read(state)


@pytest.mark.parametrize(("length", "block_tokens"), sampled([40, 255, 256, 257, 300, 520, 767, 1_100]))
async def test_stored_and_restored_bytes_are_the_resident_ones(
    tmp_path: Path, model: Path, length: int, block_tokens: int
) -> None:
    rng, resident = random.Random(length), Resident(model)
    ids = ids_of(rng, length)
    async with run_kvstore(tmp_path / "kv") as address, run_engine(model, address) as engine:
        ids += (await engine.generate(ids, 4)).ids
    resident.compute(ids, steps(0, length, len(ids) - 1))
    state, stored = await read_whole(tmp_path / "kv", ids[:-1])
    assert stored.channels == resident.channels(state)

    hit, prompt = len(ids) - 1, [*ids, *ids_of(rng, 30)]
    async with (
        run_kvstore(tmp_path / "kv") as address,
        run_engine(model, address, block_tokens=block_tokens) as engine,
        rpc.open_channel(address) as channel,
    ):
        assert (await engine.generate(prompt, 1, persist=False)).cached(pb.TIER_SSD) == hit
        # The store forgets, so what the engine writes next is what it has restored.
        await Client(channel).delete(tenant="tenant")
        assert (await Client(channel).stats()).pages == 0
        longer = [*prompt, 5, 6]
        assert (await engine.generate(longer, 1)).cached(pb.TIER_VRAM) == len(prompt)
    resident.compute(longer, steps(hit, len(prompt), len(prompt)))
    resident.compute(longer, steps(len(prompt), len(longer), len(longer)))
    state, stored = await read_whole(tmp_path / "kv", longer)
    assert stored.channels == resident.channels(state)
