"""What other engines have got wrong with their caches: counts that drift, and blocks without their ancestors."""

from __future__ import annotations

import random

from services.engine.node import Node
from services.engine.owner import EVERYONE, Owner
from services.engine.prefix_tree import PrefixTree
from services.engine.request import Admitted, Tier
from services.engine.wait_times import Wait, WaitTimes
from tests.unit.engine.memory import Memory, to_bytes
from tests.unit.engine.test_scheduler import Loop, expected, finished, output

BLOCK = 4


def test_a_hit_is_counted_once_however_often_a_request_is_tried_and_preempted():
    loop = Loop(num_blocks=12, max_running=3)
    first = loop.add([1] * 8, max_tokens=1)
    loop.run()
    assert finished(first).cache.tokens_by_tier == {Tier.VRAM: 0}
    others = [loop.add([1] * 8 + [number] * 4, max_tokens=20) for number in (2, 3, 4)]
    num_preempted = num_tries = 0
    for _ in range(2_000):
        running = list(loop.scheduler.running)
        if not loop.step().rows and not loop.scheduler.waiting:
            break
        num_tries += len(loop.scheduler.waiting)
        num_preempted += sum(sequence in loop.scheduler.waiting for sequence in running)
    assert num_preempted > 0
    assert num_tries > 5
    for sequence, number in zip(others, (2, 3, 4), strict=True):
        assert output(sequence) == expected([1] * 8 + [number] * 4, 20)
        assert sum(isinstance(event, Admitted) for event in sequence.outbox._events) == 1
        cache = finished(sequence).cache
        assert cache.tokens_by_tier == {Tier.VRAM: 8}
        assert cache.recomputed_tokens == 4


def test_no_count_of_blocks_is_ever_negative():
    """Admissions that fail half-way, preemptions and deletions, each several times, on a device that is always full."""
    memory = Memory(num_blocks=9, block_tokens=BLOCK)
    cache, tree, rng = memory.cache, memory.tree, random.Random(1)
    owners = [Owner(Owner(EVERYONE)) for _ in range(3)]
    running = []
    for _ in range(600):
        ids = [rng.randint(1, 2) for _ in range(rng.randint(1, 30))]
        sequence = memory.sequence(ids)
        sequence.owner = rng.choice(owners)
        if cache.attach(sequence, cache.match(sequence).whole_blocks(), len(ids)) is None:
            tree.remove(rng.choice(owners))
            if running:
                one = running.pop(rng.randrange(len(running)))
                memory.compute(one, one.num_computed, one.num_pending)
                one.num_computed = one.num_tokens
                cache.release(one, one.num_tokens)
        else:
            running.append(sequence)
        memory.check_accounts(running)
        use = cache.use(running)
        assert min(use.free, use.held, use.cached) >= 0
        assert use.free + use.held + use.cached == 9
    for one in running:
        cache.release(one, one.num_computed)
    assert cache.use([]).held == 0


def test_no_descendant_outlives_its_ancestor_whatever_each_is_worth():
    rng = random.Random(2)
    times = WaitTimes()
    for seconds in (1.0, 300.0):
        for _ in range(10):
            times.observe("a", [str(seconds)], seconds)
    for _ in range(30):
        made: list[Node] = []
        freed: list[int] = []
        now_s = 0.0
        tree = PrefixTree(BLOCK, clock=lambda: now_s, free_block=freed.append)  # noqa: B023 - called in this round
        parents = [tree.root("a")]
        for block_id in range(30):
            owner = Owner(Owner(EVERYONE))
            estimate = times.estimate("a", [rng.choice(["1.0", "300.0"])])
            assert estimate is not None
            owner.wait = rng.choice([None, Wait(estimate, now_s)])
            owner.is_over = owner.wait is None and rng.random() < 0.3
            node = tree.insert(rng.choice(parents), to_bytes([block_id + 1] * BLOCK), block_id, owner)
            if rng.random() < 0.2:
                tree.protect(block_id, node)
            parents.append(node)
            made.append(node)
            now_s += 1
        while tree.num_blocks:
            tree.evict(1)
            now_s += 1
            left = [node for node in made if node.block_id not in freed]
            assert len(left) == tree.num_blocks
            assert all(tree.path(node)[0].parent is tree.root("a") for node in left)
            assert all(above.block_id not in freed for node in left for above in tree.path(node))
