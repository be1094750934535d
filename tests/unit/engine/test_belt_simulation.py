"""Many agents on one small device: what the belt keeps of them, against plain LRU on the same workload."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from services.engine.blocks import BlockPool
from services.engine.cache_manager import CacheManager
from services.engine.conversations import Conversations
from services.engine.prefix_tree import PrefixTree
from services.engine.request import Request
from services.engine.sequence import Sequence
from tests.unit.engine.memory import to_bytes

BLOCK = 16
STATIC = [7] * (4 * BLOCK)
NUM_TURNS = 12
TURN_S = 0.5
Classes = Callable[[str], list[str]]
Wait = tuple[str, float]
"""For which tool, and how long."""


def read_or_test(rng: random.Random) -> Wait:
    """Two tools that differ."""
    return ("read", rng.uniform(1, 4)) if rng.random() < 0.7 else ("test", rng.uniform(45, 75))


def coding_agents(rng: random.Random) -> Wait:
    """Median 5.2 s, 99th percentile 81 s; of six names, five say right whether it takes long."""
    waits_s = math.exp(rng.gauss(math.log(5.2), 1.19))
    return ("long" if (waits_s > 15) == (rng.random() < 0.85) else "short"), waits_s


class LruTree(PrefixTree):
    """Evicts as simply as can be."""

    def evict(self, count: int) -> int:
        for freed in range(count):
            leaves = [node for node in self.nodes() if not node.children and not node.num_pins]
            if not leaves:
                return freed
            self._remove(min(leaves, key=lambda node: node.last_used_s))
        return count


@dataclass
class Session:
    """Its prompts grow by what a tool says; ``waits`` name the tool and how long it takes."""

    name: str
    ids: list[int] = field(default_factory=lambda: list(STATIC))
    waits: list[Wait] = field(default_factory=list[Wait])
    news: list[list[int]] = field(default_factory=list[list[int]])


@dataclass(frozen=True)
class Outcome:
    hit_tokens: int
    prompt_tokens: int
    evicted: list[int]


def session(number: int, wait: Callable[[random.Random], Wait]) -> Session:
    rng = random.Random(number)
    made = Session(f"session-{number}")
    for _ in range(NUM_TURNS):
        made.waits.append(wait(rng))
        made.news.append(rng.choices(range(10, 1000), k=rng.randint(BLOCK, 6 * BLOCK)))
    return made


def run(
    num_blocks: int,
    classes: Classes | None,
    tree_type: type[PrefixTree] = PrefixTree,
    wait: Callable[[random.Random], Wait] = read_or_test,
    num_sessions: int = 16,
) -> Outcome:
    """Turns one by one; when each begins depends on nothing that was reused."""
    now_s, ticks = 0.0, itertools.count()
    evicted: list[int] = []
    pool = BlockPool(num_blocks)

    def clock() -> float:
        # No two uses are at the same time.
        return now_s + next(ticks) * 1e-9

    def free(block_id: int) -> None:
        evicted.append(block_id)
        pool.put((block_id,))

    cache = CacheManager(pool, tree_type(BLOCK, clock=clock, free_block=free))
    conversations = Conversations(cache.tree, clock)
    hit_tokens = prompt_tokens = 0
    arrivals = [(number * 1.7, number, session(number, wait)) for number in range(num_sessions)]
    for _ in range(num_sessions * NUM_TURNS):
        arrives_s, number, one = heapq.heappop(arrivals)
        now_s = max(now_s, arrives_s)
        turn = NUM_TURNS - len(one.waits)
        one.ids += one.news[turn]
        request = Request(cache_scope="a", token_ids=to_bytes(one.ids), conversation_key=one.name)
        sequence = Sequence.of(request, cache.tree.root("a"), 10**6, lambda at_s=arrives_s: at_s)
        conversations.arrived(sequence)
        match = cache.match(sequence)
        hit_tokens += match.num_tokens(BLOCK)
        prompt_tokens += len(one.ids)
        copies = cache.attach(sequence, match, sequence.num_tokens)
        assert copies is not None
        for copy in copies:
            cache.copied(copy)
        now_s += TURN_S
        sequence.num_computed = sequence.num_tokens
        conversations.ended(sequence, cache.release(sequence, sequence.num_tokens), sequence.num_tokens)
        conversations.left(sequence)
        tool, waits_s = one.waits.pop(0)
        if one.waits:
            if classes is not None:
                conversations.annotate("a", one.name, classes(tool))
            heapq.heappush(arrivals, (now_s + waits_s, number, one))
        use = cache.use([])
        assert use.free + use.cached == use.total
    return Outcome(hit_tokens, prompt_tokens, evicted)


@pytest.mark.parametrize(("num_blocks", "gain"), [(150, 1.03), (300, 1.08)])
def test_where_waits_can_be_told_the_belt_beats_lru(num_blocks: int, gain: float):
    lru, belt = run(num_blocks, None), run(num_blocks, lambda tool: [tool])
    assert belt.prompt_tokens == lru.prompt_tokens
    assert belt.hit_tokens > gain * lru.hit_tokens


@pytest.mark.parametrize(("num_blocks", "gain"), [(300, 1.35)])
def test_where_waits_can_be_told_mostly_it_does_too(num_blocks: int, gain: float):
    lru = run(num_blocks, None, wait=coding_agents, num_sessions=30)
    belt = run(num_blocks, lambda tool: [tool], wait=coding_agents, num_sessions=30)
    assert belt.prompt_tokens == lru.prompt_tokens
    assert belt.hit_tokens > gain * lru.hit_tokens


def test_where_no_class_is_known_the_belt_is_lru_to_the_block():
    once = itertools.count()
    simple = run(300, None, LruTree)
    assert len(simple.evicted) > 300
    assert run(300, None) == simple
    assert run(300, lambda tool: [f"{tool} {next(once)}"]) == simple


def test_classes_that_say_nothing_do_no_harm():
    rng = random.Random(5)
    lru = run(300, None)
    belt = run(300, lambda tool: [rng.choice(["read", "test"])])
    assert belt.hit_tokens > 0.98 * lru.hit_tokens
