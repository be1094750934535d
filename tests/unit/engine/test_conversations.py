"""What the belt makes of conversations: turns, waits, forks, releases."""

from __future__ import annotations

import pytest

from services.engine.conversations import Branch, Conversation, Conversations
from services.engine.node import Node
from services.engine.owner import EVERYONE
from services.engine.request import Request
from services.engine.sequence import Sequence
from tests.unit.engine.memory import Memory, to_bytes

BLOCK = 4
SYSTEM = [9] * 8
PROMPT = [*SYSTEM, *[1] * 24]


class Engine:
    """Turns on a device in miniature."""

    def __init__(self, num_blocks: int = 64) -> None:
        self.memory = Memory(num_blocks, BLOCK)
        self.tree = self.memory.tree
        self.conversations = Conversations(self.tree, self.memory.tick)

    def arrive(self, ids: list[int], key: str = "k", scope: str = "a") -> Sequence:
        request = Request(cache_scope=scope, token_ids=to_bytes(ids), conversation_key=key)
        sequence = Sequence.of(request, self.tree.root(scope), 10**6, self.memory.tick)
        self.conversations.arrived(sequence)
        return sequence

    def compute(self, sequence: Sequence) -> None:
        cache = self.memory.cache
        copies = cache.attach(sequence, cache.match(sequence), sequence.num_tokens)
        assert copies is not None
        self.memory.copy(copies)
        for copy in copies:
            cache.copied(copy)
        self.memory.compute(sequence, sequence.num_computed, sequence.num_pending)
        sequence.num_computed = sequence.num_tokens

    def end(self, sequence: Sequence) -> Node:
        num_tokens = sequence.num_computed
        node = self.memory.cache.release(sequence, num_tokens)
        self.conversations.ended(sequence, node, num_tokens)
        self.conversations.left(sequence)
        return node

    def turn(self, ids: list[int], answer: list[int] | None = None, key: str = "k", scope: str = "a") -> list[int]:
        """A whole turn; what the next prompt begins with."""
        sequence = self.arrive(ids, key, scope)
        self.compute(sequence)
        for token in answer or ():
            sequence.append(token)
        if answer:
            assert self.memory.cache.grow(sequence, sequence.num_tokens)
            self.memory.compute(sequence, sequence.num_computed, len(answer))
            sequence.num_computed = sequence.num_tokens
        self.end(sequence)
        self.memory.check_accounts([])
        return [*ids, *(answer or ())]

    def wait(self, classes: list[str], seconds: float, key: str = "k", scope: str = "a") -> None:
        self.conversations.annotate(scope, key, classes)
        self.memory.now += seconds

    def cached(self, ids: list[int], scope: str = "a") -> int:
        return self.tree.match(self.tree.root(scope), to_bytes(ids), len(ids)).num_tokens(BLOCK)

    def owner_at(self, ids: list[int], scope: str = "a") -> object:
        """Of the last block of a cached prefix."""
        match = self.tree.match(self.tree.root(scope), to_bytes(ids), len(ids))
        assert match.num_tokens(BLOCK) == len(ids)
        return (match.tail or match.path[-1]).owner


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_observed_waits_are_those_between_the_end_of_a_turn_and_the_next_request(engine: Engine):
    ids = PROMPT
    for _ in range(8):
        ids = engine.turn([*ids, 5], [2, 3])
        engine.wait(["bash"], 30.0)
    assert engine.conversations.waits.estimate("a", ["bash"]) is None, "the eighth is not over"
    engine.arrive([*ids, 5])
    estimate = engine.conversations.waits.estimate("a", ["bash"])
    assert estimate is not None
    assert estimate.survival(22) > 0.85
    assert estimate.survival(33) < 0.05, "the clock of this device adds a second at each look"
    assert engine.conversations.waits.estimate("b", ["bash"]) is None


def test_waits_are_learnt_even_where_the_state_is_gone(engine: Engine):
    ids = PROMPT
    for _ in range(8):
        ids = engine.turn([*ids, 5], [2, 3])
        engine.wait(["bash"], 30.0)
        engine.tree.evict(1000)
    engine.arrive([*ids, 5])
    assert engine.conversations.waits.estimate("a", ["bash"]) is not None


def learn(engine: Engine, name: str, waited_s: float | None, scope: str = "a") -> None:
    for _ in range(10):
        engine.conversations.waits.observe(scope, [name], waited_s)


def test_who_is_soon_back_keeps_its_blocks_before_who_is_not(engine: Engine):
    learn(engine, "slow", 300.0)
    learn(engine, "fast", 5.0)
    slow = engine.turn([*SYSTEM, *[1] * 24], key="slow")
    engine.conversations.annotate("a", "slow", ["slow"])
    fast = engine.turn([*SYSTEM, *[2] * 24], key="fast")
    engine.conversations.annotate("a", "fast", ["fast"])
    engine.tree.evict(4)
    assert (engine.cached(slow), engine.cached(fast)) == (16, 32)
    engine.memory.now += 290
    engine.tree.evict(4)
    assert (engine.cached(slow), engine.cached(fast)) == (16, 16), "the fast one did not come back"


def test_a_client_that_comes_back_waits_no_more(engine: Engine):
    learn(engine, "slow", 300.0)
    ids = engine.turn(PROMPT, [2, 3])
    engine.conversations.annotate("a", "k", ["slow"])
    branch = engine.owner_at(ids)
    assert isinstance(branch, Branch)
    assert branch.wait is not None
    engine.arrive([*ids, 5])
    assert branch.wait is None


def test_an_annotation_of_a_turn_that_went_on_is_of_no_effect(engine: Engine):
    learn(engine, "slow", 300.0)
    ids = engine.turn(PROMPT, [2, 3])
    branch = engine.arrive([*ids, 5]).owner
    engine.conversations.annotate("a", "k", ["slow"])
    assert branch.wait is None


def test_a_rewound_conversation_gives_up_its_branch_at_once(engine: Engine):
    first = engine.turn(PROMPT, [2, 3])
    second = engine.turn([*first, *[5] * 8], [2, 3])
    engine.turn([*SYSTEM, *[7] * 24], key="other")
    rewound = engine.arrive([*first, *[6] * 8])
    assert engine.tree.evict(2) == 2
    assert engine.cached(second) == 36, "the abandoned branch is newer, and goes before the other conversation"
    engine.compute(rewound)
    engine.end(rewound)
    assert engine.cached([*first, *[6] * 8]) == len(first) + 8
    assert engine.owner_at(PROMPT) is rewound.owner, "what both have in common goes on with the new branch"


def test_what_an_abandoned_branch_shares_outlives_it(engine: Engine):
    first = engine.turn(PROMPT, [2, 3])
    engine.turn([*first, *[5] * 8], [2, 3])
    engine.turn([*SYSTEM, *[7] * 24], key="other")
    engine.arrive([*first, *[6] * 8])
    engine.tree.evict(3)
    assert engine.cached(first) == 32
    engine.tree.evict(1)
    assert engine.cached(first) == 28, "used before the other conversation"
    assert engine.cached([*SYSTEM, *[7] * 24]) == 32


def test_a_branch_comes_back_to_life_with_its_client(engine: Engine):
    first = engine.turn(PROMPT, [2, 3])
    second = engine.turn([*first, *[5] * 8], [2, 3])
    engine.turn([*first, *[6] * 8], [2, 3])
    engine.turn([*second, 8])
    other = engine.turn([*SYSTEM, *[7] * 24], key="other")
    abandoned = engine.cached([*first, *[6] * 8])
    engine.tree.evict(2)
    assert engine.cached([*second, 8]) == len(second) + 1
    assert engine.cached(other) == 32
    assert engine.cached([*first, *[6] * 8]) < abandoned


def test_the_same_prompt_once_more_abandons_the_first_answer(engine: Engine):
    ids = engine.turn(engine.turn(PROMPT, [2, 3]) + [5] * 24, [2, 3, 4, 2, 3])
    again = engine.arrive(ids[:-5])
    first = engine.owner_at(ids)
    assert isinstance(first, Branch)
    assert first.is_over
    assert first is not again.owner


def test_a_warm_up_is_continued_by_the_same_prompt(engine: Engine):
    engine.turn(PROMPT)
    branch = engine.owner_at(PROMPT)
    assert engine.arrive(PROMPT).owner is branch


def test_sub_agents_of_one_session_abandon_nothing_of_each_other(engine: Engine):
    main = engine.turn(PROMPT, [2, 3])
    agent = engine.turn([8] * 32, [2, 3])
    main = engine.turn([*main, 5, 5], [2, 3])
    agent = engine.turn([*agent, 5, 5], [2, 3])
    owners = {engine.owner_at(main), engine.owner_at(agent)}
    assert len(owners) == 2
    assert not any(isinstance(owner, Branch) and owner.is_over for owner in owners)


def test_requests_beside_each_other_are_branches_of_their_own(engine: Engine):
    ids = engine.turn(PROMPT, [2, 3])
    one, two = engine.arrive([*ids, 5]), engine.arrive([*ids, 6])
    assert one.owner is not two.owner
    assert not one.owner.is_over
    engine.compute(one)
    engine.compute(two)
    engine.end(one)
    engine.end(two)
    assert isinstance(engine.owner_at(PROMPT), Conversation), "what both use is the conversation's"
    assert engine.arrive([*ids, 5, 7]).owner is one.owner


def test_a_cancelled_request_leaves_its_branch_to_the_next(engine: Engine):
    ids = engine.turn(PROMPT, [2, 3])
    cancelled = engine.arrive([*ids, 5])
    engine.compute(cancelled)
    engine.memory.cache.release(cancelled, cancelled.num_computed)
    engine.conversations.left(cancelled)
    assert engine.arrive([*ids, 6]).owner is cancelled.owner


def test_the_end_of_an_old_call_does_not_end_the_next_turn(engine: Engine):
    first = engine.arrive(PROMPT)
    engine.compute(first)
    node = engine.memory.cache.release(first, len(PROMPT))
    engine.conversations.ended(first, node, len(PROMPT))
    second = engine.arrive([*PROMPT, 5])
    engine.conversations.left(first)
    assert engine.arrive([*PROMPT, 6]).owner is not second.owner


def test_what_a_turn_leaves_beside_its_end_goes_first(engine: Engine):
    ids = engine.turn(PROMPT, [2, 3])
    cancelled = engine.arrive([*ids, *[5] * 10])
    engine.compute(cancelled)
    engine.memory.cache.release(cancelled, cancelled.num_computed)
    engine.conversations.left(cancelled)
    ids = engine.turn([*ids, *[6] * 10])
    assert engine.cached([*PROMPT, 2, 3, *[5] * 10]) == 44
    engine.tree.evict(2)
    assert engine.cached([*PROMPT, 2, 3, *[5] * 10]) == 36
    assert engine.cached(ids) == len(ids)


def test_a_released_conversation_goes_first_and_is_not_deleted(engine: Engine):
    other = engine.turn([*SYSTEM, *[7] * 24], key="other")
    ids = engine.turn(PROMPT, [2, 3])
    engine.conversations.release("a", "k")
    assert engine.cached(ids) == len(ids)
    assert engine.tree.evict(7) == 7
    assert engine.cached(ids) == len(SYSTEM)
    assert engine.cached(other) == len(other)


def test_a_released_conversation_that_is_resumed_is_whole_again(engine: Engine):
    ids = engine.turn(PROMPT, [2, 3])
    engine.conversations.release("a", "k")
    ids = engine.turn([*ids, 5])
    other = engine.turn([*SYSTEM, *[7] * 24], key="other")
    engine.tree.evict(1)
    assert engine.cached(ids) < len(ids), "least recently used, as any other"
    assert engine.cached(other) == 32
    owner = engine.owner_at([*PROMPT, 2, 3][:32])
    assert isinstance(owner, Branch)
    assert not owner.is_over


def test_deleting_removes_all_that_is_the_conversations_own_and_nothing_else(engine: Engine):
    other = engine.turn([*SYSTEM, *[7] * 24], key="other")
    first = engine.turn(PROMPT, [2, 3])
    engine.turn([*first, *[5] * 8], [2, 3])
    engine.turn([*first, *[6] * 8], [2, 3])
    one, two = engine.arrive([*first, 7]), engine.arrive([*first, 8])
    for sequence in (one, two):
        engine.compute(sequence)
        engine.end(sequence)
    conversation = engine.conversations.release("a", "k")
    assert conversation is not None
    engine.tree.remove(conversation)
    assert engine.cached(PROMPT) == len(SYSTEM)
    assert engine.cached(other) == len(other)
    assert engine.tree.num_blocks == len(other) // BLOCK
    engine.memory.check_accounts([])


def test_deleting_removes_what_a_conversation_that_is_over_left_behind_its_blocks(engine: Engine):
    old = engine.turn([*PROMPT, *[9] * 16], key="old")
    engine.conversations.release("a", "old")
    engine.turn(PROMPT)
    kept = engine.turn([*[8] * 16, *[9] * 8], key="other")
    engine.conversations.release("a", "other")
    assert engine.cached(old) == len(old)
    conversation = engine.conversations.release("a", "k")
    assert conversation is not None
    engine.tree.remove(conversation)
    assert engine.cached(old) == 0
    assert engine.cached(kept) == len(kept), "behind none of its blocks"
    engine.memory.check_accounts([])


def test_deleting_spares_what_a_request_uses(engine: Engine):
    ids = engine.turn(PROMPT, [2, 3])
    running = engine.arrive([*ids, 5])
    engine.compute(running)
    conversation = engine.conversations.release("a", "k")
    assert conversation is not None
    engine.tree.remove(conversation)
    engine.memory.check(running, running.num_computed)
    engine.end(running)
    engine.memory.check_accounts([])
    engine.turn([*SYSTEM, *[7] * 24], key="other")
    engine.tree.evict(1)
    assert engine.cached([*ids, 5]) < len(ids) + 1, "what it leaves goes first"


def test_requests_without_a_key_are_everyones(engine: Engine):
    ids = engine.turn(PROMPT, key="")
    assert engine.owner_at(ids) is EVERYONE
    engine.conversations.annotate("a", "", ["bash"])
    assert engine.conversations.release("a", "") is None


def test_a_flush_forgets_conversations_of_its_scopes_only(engine: Engine):
    ids = engine.turn(PROMPT, [2, 3], scope="a")
    kept = engine.turn(PROMPT, [2, 3], scope="b")
    engine.tree.flush(["a"])
    engine.conversations.forget(["a"])
    assert engine.conversations.release("a", "k") is None
    branch = engine.owner_at(kept, "b")
    assert engine.arrive([*kept, 5], scope="b").owner is branch
    assert engine.cached(ids) == 0


def test_conversations_branches_and_marks_are_bounded(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("services.engine.conversations._MAX_CONVERSATIONS", 2)
    monkeypatch.setattr("services.engine.conversations._MAX_BRANCHES", 3)
    monkeypatch.setattr("services.engine.conversations._MAX_MARKS", 4)
    ids = engine.turn(PROMPT, [2, 3], key="x")
    for turn in range(6):
        ids = engine.turn([*ids, turn], [2, 3], key="x")
    for kind in range(5):
        engine.turn([20 + kind] * 20, key="y")
    branch = engine.owner_at(ids)
    assert isinstance(branch, Branch)
    assert [mark.num_tokens for mark in branch.marks][-1] == len(ids)
    assert len(branch.marks) == 4
    newest = engine.owner_at([24] * 20)
    assert isinstance(newest, Branch)
    assert len(newest.conversation.branches) == 3
    engine.turn([30] * 8, key="z")
    assert engine.conversations.release("a", "x") is None
    assert not branch.is_over, "what is forgotten is not released"


def test_a_forgotten_wait_counts_as_one_without_end(engine: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("services.engine.conversations._MAX_CONVERSATIONS", 1)
    for turn in range(8):
        engine.turn([30 + turn] * 8, key=f"k{turn}")
        engine.conversations.annotate("a", f"k{turn}", ["gone"])
    engine.turn([3] * 8, key="last")
    estimate = engine.conversations.waits.estimate("a", ["gone"])
    assert estimate is not None
    assert estimate.survival(300) > 0.85
