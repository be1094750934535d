"""A caller that leaves during a prefill costs no more than the step that is being computed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from services.engine.blocks import BlockPool
from services.engine.cache_manager import CacheManager
from services.engine.choosing import new_chooser
from services.engine.core import EngineCore
from services.engine.end_rules import EndRules
from services.engine.prefix_tree import PrefixTree
from services.engine.request import Progress, Request, SamplingParams, Tokens
from services.engine.restore_cost import PrefillCost
from services.engine.runtime import PagedRuntime, load_model
from services.engine.scheduler import Scheduler
from services.engine.seen_pages import SeenPages
from services.engine.sequence import Sequence
from tests.contract.engine_client import write_tiny_engine_model

STEP_TOKENS = 32
PROMPT_TOKENS = 1_600


class Engine:
    """A core on a real runtime, and what it has cached."""

    def __init__(self, runtime: PagedRuntime, compute: ThreadPoolExecutor) -> None:
        pool = BlockPool(runtime.num_blocks)
        tree = PrefixTree(16, clock=lambda: 0.0, free_block=lambda block: pool.put((block,)))
        self.cache = CacheManager(pool, tree)
        rules = EndRules(frozenset(), 2_048, lambda token: b"")
        scheduler = Scheduler(self.cache, rules, step_tokens=STEP_TOKENS, max_running=4)
        self.core = EngineCore(
            runtime,
            scheduler,
            None,
            None,
            compute,
            PrefillCost(1e-4),
            new_chooser=new_chooser,
            keys_of=lambda scope, ids: [],
            seen=SeenPages(),
            context_tokens=2_048,
            max_waiting=8,
        )

    def cached_tokens(self, request: Request) -> int:
        sequence = Sequence.of(request, self.cache.tree.root(request.cache_scope), 1)
        return self.cache.match(sequence).num_tokens(16)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncGenerator[Engine]:
    model = load_model(write_tiny_engine_model(tmp_path / "tiny"), "cpu", 1)
    with ThreadPoolExecutor(1) as compute:
        engine = Engine(PagedRuntime(model, num_blocks=256, block_tokens=16), compute)
        loop = asyncio.create_task(engine.core.run())
        yield engine
        loop.cancel()
        with suppress(asyncio.CancelledError):
            await loop


def request(seed: int, num_tokens: int, **sampling: object) -> Request:
    ids = np.array(random.Random(seed).choices(range(3, 500), k=num_tokens), dtype="<i4")
    params = SamplingParams(temperature=0, ignore_end=True, **sampling)  # type: ignore[arg-type]
    return Request(cache_scope="a", token_ids=ids.tobytes(), sampling=params)


async def progress_until_leaving(engine: Engine, long: Request, num_events: int) -> int:
    """Tokens computed when a caller leaves, after so many messages about them."""
    async with engine.core.generate(long) as batches:
        async for events in batches:
            for event in events:
                if isinstance(event, Progress):
                    num_events -= 1
                    if num_events == 0:
                        return event.prefilled_tokens
    raise AssertionError("the prompt was computed first")


@pytest.mark.parametrize("max_tokens", [8, 0])
@pytest.mark.parametrize("num_events", [1, 5, 20])
async def test_leaving_ends_a_prefill_at_its_next_chunk(engine: Engine, num_events: int, max_tokens: int):
    """``max_tokens`` 0: a Prefill call, which streams nothing but progress."""
    long = request(1, PROMPT_TOKENS, max_tokens=max_tokens)
    computed = await progress_until_leaving(engine, long, num_events)
    while engine.core.load().running:  # noqa: ASYNC110 - until the loop has looked at it
        await asyncio.sleep(0)
    assert computed <= engine.cached_tokens(long) <= computed + STEP_TOKENS
    assert engine.core.load().blocks.held == 0


async def test_leaving_ends_a_prefill_beside_running_answers(engine: Engine):
    long, short = request(1, PROMPT_TOKENS, max_tokens=8), request(2, 40, max_tokens=200)
    num_sampled = 0
    async with engine.core.generate(short) as batches:
        await anext(batches)
        computed = await progress_until_leaving(engine, long, 5)
        async for events in batches:
            num_sampled += sum(len(event.ids) for event in events if isinstance(event, Tokens))
    assert num_sampled == 200
    assert computed <= engine.cached_tokens(long) <= computed + STEP_TOKENS
    assert engine.core.load().blocks.held == 0
