"""The order of the belt, leaf by leaf."""

from __future__ import annotations

import pytest

from services.engine.belt import Belt
from services.engine.node import Node
from services.engine.owner import EVERYONE, Owner
from services.engine.wait_times import Wait, WaitEstimate, WaitTimes
from tests.unit.engine.memory import Memory, to_bytes

ROOT = Node(None, b"", -1)


def estimate(waited_s: float) -> WaitEstimate:
    times = WaitTimes()
    for _ in range(20):
        times.observe("a", ["w"], waited_s)
    found = times.estimate("a", ["w"])
    assert found is not None
    return found


def leaf(used_s: float, owner: Owner = EVERYONE, first_token: int = 0, num_tokens: int = 4) -> Node:
    node = Node(ROOT, to_bytes([1] * num_tokens), 0, owner)
    node.last_used_s, node.first_token = used_s, first_token
    return node


def branch(waits_s: float | None = None, since_s: float = 0.0) -> Owner:
    owner = Owner(Owner(EVERYONE))
    owner.wait = None if waits_s is None else Wait(estimate(waits_s), since_s)
    return owner


def order(*leaves: Node, now_s: float = 100.0) -> list[Node]:
    belt = Belt()
    for node in leaves:
        belt.place(node)
    gone: list[Node] = []
    while (node := belt.first(now_s)) is not None:
        gone.append(node)
        belt.take_off(node)
    assert len(belt) == 0
    assert not belt._groups
    assert not belt._waiting
    return gone


def test_without_known_waits_it_is_least_recently_used():
    leaves = [leaf(used_s, branch(), first_token) for used_s, first_token in ((5, 0), (1, 80_000), (9, 0), (3, 400))]
    assert [node.last_used_s for node in order(*leaves)] == [1, 3, 5, 9]


def test_a_block_is_worth_its_chance_times_its_cost():
    # One observation of the guess beside 20 that weigh 16.6: the chances are about 0.96 and 0.04.
    soon, late = branch(12.0, since_s=95.0), branch(300.0, since_s=95.0)
    early_in_prompt, deep = leaf(95, soon), leaf(95, soon, first_token=16_384)
    assert deep.recompute_cost == pytest.approx(3 * early_in_prompt.recompute_cost)
    hopeless = leaf(99, late, first_token=40_000)
    assert order(early_in_prompt, deep, hopeless) == [hopeless, early_in_prompt, deep]
    dear = leaf(99, late, first_token=1_000_000)
    assert order(early_in_prompt, dear) == [early_in_prompt, dear]


def test_a_short_tail_is_worth_less_than_a_whole_block():
    waits = branch(12.0, since_s=95.0)
    whole, tail = leaf(95, waits, 400), leaf(96, waits, 404, num_tokens=1)
    assert order(whole, tail) == [tail, whole]


def test_the_unknown_are_valued_by_the_guess():
    known = leaf(99, branch(300.0, since_s=95.0))  # chance about 0.05
    fresh, stale = leaf(95, branch()), leaf(-2_000, branch())
    assert order(fresh, known)[0] is known, "0.65 of a fresh one"
    assert order(stale, known)[0] is stale, "0.01 of one that was not used for long"


def test_values_change_with_time():
    waits = leaf(0, branch(60.0, since_s=0.0))
    rival = leaf(0, branch())
    assert order(waits, rival, now_s=1.0)[0] is waits
    assert order(waits, rival, now_s=55.0)[0] is rival
    belt = Belt()
    belt.place(waits)
    belt.place(rival)
    assert [belt.first(now_s) for now_s in (1.0, 55.0, 1.0)] == [waits, rival, waits]


def test_what_is_over_goes_first_and_what_is_protected_last():
    over = branch()
    over.is_over = True
    dead, deader = leaf(99, over), leaf(98, over)
    wanted, more = leaf(1, branch()), leaf(2, over)
    wanted.num_protections = more.num_protections = 1
    ordinary, known = leaf(50), leaf(50, branch(300.0))
    assert order(wanted, dead, ordinary, more, deader, known) == [deader, dead, known, ordinary, wanted, more]


def test_an_owner_that_changes_takes_its_leaves_along():
    belt, owner = Belt(), branch()
    mine, other = leaf(9, owner), leaf(1)
    belt.place(mine)
    belt.place(other)
    assert belt.first(10.0) is other
    owner.wait = Wait(estimate(500.0), 9.0)
    belt.changed(owner)
    assert belt.first(10.0) is mine
    owner.wait = None
    belt.changed(owner)
    assert belt.first(10.0) is other
    owner.is_over = True
    belt.changed(owner)
    assert belt.first(10.0) is mine


def test_a_heap_does_not_grow_with_use():
    belt = Belt()
    leaves = [leaf(1), leaf(1, branch(9.0))]
    for _ in range(5_000):
        for node in leaves:
            belt.place(node)
    assert max(map(len, (belt._used, belt._valued))) < 1_200


@pytest.fixture
def memory() -> Memory:
    return Memory(num_blocks=16, block_tokens=4)


def test_a_protection_passes_to_the_parent_and_ends_with_its_holder(memory: Memory):
    tree, root = memory.tree, memory.tree.root("a")
    nodes = [root]
    for block in memory.pool.take(3):
        nodes.append(tree.insert(nodes[-1], to_bytes([block + 1] * 4), block))
    tree.protect("one", nodes[3])
    tree.protect("two", nodes[3])
    tree.protect("two", nodes[2])
    assert [node.num_protections for node in nodes[1:]] == [0, 1, 1]
    assert tree.evict(1) == 1
    assert [node.num_protections for node in nodes[1:3]] == [0, 2]
    tree.check_integrity()
    tree.unprotect("one")
    tree.unprotect("nobody")
    assert nodes[2].num_protections == 1
    assert tree.evict(9) == 2
    tree.unprotect("two")
    tree.check_integrity()
    assert not tree._protected


def test_what_continues_a_tail_takes_over_its_owners_and_its_protection(memory: Memory):
    tree, root = memory.tree, memory.tree.root("a")
    first, second = branch(), branch()
    short, long, longer = memory.pool.take(3)
    tail = tree.insert(root, to_bytes([1, 2]), short, first)
    tree.protect("holder", tail)
    node = tree.insert(root, to_bytes([1, 2, 3]), long, second)
    assert tail.parent is None
    assert node.owner is EVERYONE, "two conversations use it"
    assert node.num_protections == 1
    assert tree.insert(root, to_bytes([1, 2]), longer, second) is node
    tree.check_integrity()


def test_owners_are_joined_where_both_belong():
    conversation = Owner(EVERYONE)
    one, two, stranger = Owner(conversation), Owner(conversation), branch()
    assert one.joined(one) is one
    assert one.joined(two) is conversation
    assert conversation.joined(two) is conversation
    assert two.joined(conversation) is conversation
    assert one.joined(stranger) is EVERYONE
    assert EVERYONE.joined(one) is EVERYONE
    one.is_over = True
    assert one.joined(two) is two
    assert two.joined(one) is two
    assert EVERYONE.joined(one) is EVERYONE


def test_lru_goes_by_use_whatever_is_known_of_waits_and_of_who_is_over():
    over = branch()
    over.is_over = True
    belt = Belt(is_lru=True)
    leaves = [leaf(1), leaf(2, branch(12.0, since_s=95.0)), leaf(3, over), leaf(4, branch(900.0, since_s=95.0))]
    leaves[0].num_protections = 1
    for node in reversed(leaves):
        belt.place(node)
    for node in leaves:
        assert belt.first(100.0) is node
        belt.take_off(node)
    assert belt.first(100.0) is None
