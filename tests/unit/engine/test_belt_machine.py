"""Random conversations, waits, cancellations and evictions: no block is lost, and what goes is what should go."""

from __future__ import annotations

import os
import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from services.engine.cache_manager import CacheManager
from services.engine.conversations import Conversations
from services.engine.node import Node
from services.engine.request import Request
from services.engine.sequence import Sequence
from tests.unit.engine.belt_twin import CheckedTree, next_victims
from tests.unit.engine.memory import Memory, to_bytes, to_ids

BLOCK = 4
IS_SOAK = bool(os.environ.get("FENCEPOST_SOAK"))
EXAMPLES = 1_500 if IS_SOAK else 20
WALKS = 2_000 if IS_SOAK else 40
TOKENS = st.integers(1, 3)
SCOPES = st.sampled_from("ab")
KEYS = st.sampled_from(["", "k", "l", "m"])
CLASSES = st.sets(st.sampled_from(["bash", "read"]), max_size=2)
PICKS = st.integers(0, 10**6)


class BeltMachine(RuleBasedStateMachine):
    @initialize(num_blocks=st.integers(6, 24))
    def start(self, num_blocks: int) -> None:
        memory = self.memory = Memory(num_blocks, BLOCK)
        memory.tree = CheckedTree(BLOCK, clock=memory.tick, free_block=self.freed)
        memory.cache = CacheManager(memory.pool, memory.tree)
        self.conversations = Conversations(memory.tree, memory.tick)
        for scope, seconds in (("a", 4.0), ("b", 90.0)):
            for _ in range(10):
                self.conversations.waits.observe(scope, ["bash"], seconds)
        self.lost: list[int] = []
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.pinned: list[Node] = []
        self.ended: list[tuple[str, str, tuple[int, ...]]] = []

    def freed(self, block_id: int) -> None:
        self.lost.append(block_id)
        self.memory.pool.put((block_id,))

    @rule(scope=SCOPES, key=KEYS, ids=st.lists(TOKENS, min_size=1, max_size=24))
    def begin(self, scope: str, key: str, ids: list[int]) -> None:
        self.arrive(scope, key, ids)

    @rule(pick=PICKS, cut=st.integers(0, 9), more=st.lists(TOKENS, min_size=1, max_size=9))
    def go_on(self, pick: int, cut: int, more: list[int]) -> None:
        """The next turn of a conversation, or a rewound one."""
        if self.ended:
            scope, key, ids = self.ended[-1 - pick % len(self.ended)]
            self.arrive(scope, key, [*ids[: max(0, len(ids) - cut // 3)], *more])

    @rule(
        scope=SCOPES,
        key=KEYS,
        ids=st.lists(TOKENS, min_size=1, max_size=24),
        pick=PICKS,
        cut=st.integers(0, 9),
        is_new=st.booleans(),
        classes=CLASSES,
    )
    def whole_turn(
        self, scope: str, key: str, ids: list[int], pick: int, cut: int, is_new: bool, classes: set[str]
    ) -> None:
        """From its beginning to what its client waits for."""
        if self.ended and not is_new:
            scope, key, before = self.ended[-1 - pick % min(3, len(self.ended))]
            ids = [*before[: max(0, len(before) - max(0, cut - 6))], *ids[:7]]
        self.arrive(scope, key, ids)
        self.admit(len(self.waiting) - 1, 0, at_once=True)
        self.conversations.annotate(scope, key, classes)

    def arrive(self, scope: str, key: str, ids: list[int]) -> None:
        request = Request(cache_scope=scope, token_ids=to_bytes(ids), conversation_key=key)
        sequence = Sequence.of(request, self.memory.tree.root(scope), 10**6, self.memory.tick)
        self.conversations.arrived(sequence)
        self.waiting.append(sequence)

    @rule(pick=PICKS)
    def protect(self, pick: int) -> None:
        if self.waiting:
            sequence = self.waiting[pick % len(self.waiting)]
            self.memory.protect(sequence)

    @rule(pick=PICKS, restored=st.integers(0, 24), at_once=st.booleans())
    def admit(self, pick: int, restored: int, at_once: bool) -> None:
        """Where ``restored`` is more than what is resident, whole blocks are attached and the rest is filled in."""
        if not self.waiting:
            return
        sequence = self.waiting[pick % len(self.waiting)]
        match = self.memory.cache.match(sequence)
        is_restored = match.num_tokens(BLOCK) < restored < sequence.num_tokens
        if is_restored:
            match = match.whole_blocks()
        copies = self.memory.cache.attach(sequence, match, sequence.num_tokens + BLOCK)
        if copies is None:
            return
        assert sequence not in self.memory.tree._protected
        self.memory.copy(copies)
        for copy in copies:
            self.memory.cache.copied(copy)
        self.waiting.remove(sequence)
        self.running.append(sequence)
        if is_restored:
            self.compute(sequence, restored - sequence.num_computed)
        if at_once:
            self.compute(sequence, sequence.num_pending)
            self.end(sequence)

    @rule(pick=PICKS, count=st.integers(1, 9))
    def step(self, pick: int, count: int) -> None:
        if self.running:
            sequence = self.running[pick % len(self.running)]
            self.compute(sequence, min(count, sequence.num_pending))

    def compute(self, sequence: Sequence, count: int) -> None:
        self.memory.compute(sequence, sequence.num_computed, count)
        sequence.num_computed += count
        self.memory.cache.publish(sequence)

    @rule(pick=PICKS, token=TOKENS)
    def decode(self, pick: int, token: int) -> None:
        if self.running:
            sequence = self.running[pick % len(self.running)]
            if not sequence.num_pending:
                sequence.append(token)
                if not self.memory.cache.grow(sequence, sequence.num_tokens):
                    self.preempt(sequence)

    @rule(pick=PICKS)
    def finish(self, pick: int) -> None:
        if self.running:
            self.end(self.running[pick % len(self.running)])

    def end(self, sequence: Sequence) -> None:
        num_tokens = sequence.num_computed
        if num_tokens:
            node = self.memory.cache.release(sequence, num_tokens)
            self.running.remove(sequence)
            if not self.memory.tree.is_flushed(sequence.request.cache_scope, sequence.root):
                self.conversations.ended(sequence, node, num_tokens)
            self.conversations.left(sequence)
            request = sequence.request
            self.ended.append((request.cache_scope, request.conversation_key, to_ids(sequence.token_ids)))

    @rule(pick=PICKS)
    def preempt_one(self, pick: int) -> None:
        if self.running:
            self.preempt(self.running[pick % len(self.running)])

    def preempt(self, sequence: Sequence) -> None:
        self.memory.cache.release(sequence, sequence.num_tokens)
        self.running.remove(sequence)
        self.waiting.append(sequence)

    @rule(pick=PICKS, is_running=st.booleans())
    def cancel(self, pick: int, is_running: bool) -> None:
        among = self.running if is_running else self.waiting
        if among:
            sequence = among.pop(pick % len(among))
            if is_running:
                self.memory.cache.release(sequence, sequence.num_computed)
            self.memory.cache.unprotect(sequence)
            self.conversations.left(sequence)

    @rule(pick=PICKS)
    def pin(self, pick: int) -> None:
        nodes = list(self.memory.tree.nodes())
        if nodes:
            node = nodes[pick % len(nodes)]
            self.memory.tree.pin(node)
            self.pinned.append(node)

    @rule(pick=PICKS)
    def unpin(self, pick: int) -> None:
        if self.pinned:
            self.memory.tree.unpin(self.pinned.pop(pick % len(self.pinned)))

    @rule(scope=SCOPES, classes=CLASSES, waited_s=st.one_of(st.none(), st.floats(0, 300)))
    def learn(self, scope: str, classes: set[str], waited_s: float | None) -> None:
        for _ in range(8):
            self.conversations.waits.observe(scope, classes, waited_s)

    @rule(scope=SCOPES, key=KEYS, classes=CLASSES)
    def annotate(self, scope: str, key: str, classes: set[str]) -> None:
        self.conversations.annotate(scope, key, classes)

    @rule(seconds=st.floats(0, 60))
    def pass_time(self, seconds: float) -> None:
        self.memory.now += seconds

    @rule(scope=SCOPES, key=KEYS, deletes=st.booleans())
    def release(self, scope: str, key: str, deletes: bool) -> None:
        conversation = self.conversations.release(scope, key)
        if conversation is not None and deletes:
            self.memory.tree.remove(conversation)
            held = [n for s in self.running for n in self.memory.tree.path(s.tail or s.cursor or s.root)]
            held += [above for node in self.pinned for above in self.memory.tree.path(node)]
            mine = [n for n in self.memory.tree.nodes() if n.owner.is_part_of(conversation)]
            assert all(any(n is other for other in held) for n in mine), "what is not in use is gone"

    @rule(scopes=st.sets(SCOPES))
    def flush(self, scopes: set[str]) -> None:
        self.memory.tree.flush(scopes)
        self.conversations.forget(scopes)
        for sequence in self.waiting:
            if sequence.request.cache_scope in scopes:
                sequence.root = self.memory.tree.root(sequence.request.cache_scope)

    @rule(count=st.integers(1, 6))
    def evict(self, count: int) -> None:
        tree = self.memory.tree
        expected = next_victims(tree, count, self.memory.now + 1)
        assert len(expected) == min(count, tree.num_evictable())
        blocks = [node.block_id for node in expected]
        self.lost.clear()
        assert tree.evict(count) == len(blocks)
        assert self.lost == blocks

    @invariant()
    def nothing_is_lost_and_the_age_is_that_of_the_next_victim(self) -> None:
        if not hasattr(self, "memory"):
            return
        self.memory.check_accounts(self.running)
        for sequence in self.running:
            self.memory.check(sequence, sequence.num_computed)
        expected = next_victims(self.memory.tree, 1, self.memory.now + 1)
        assert self.memory.tree.oldest_s() == (expected[0].last_used_s if expected else None)


BeltMachine.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
TestBeltMachine = BeltMachine.TestCase


def test_long_histories_too():
    """As the machine does, but with as many turns as an engine sees: whatever goes has competitors."""
    for seed in range(WALKS):
        rng = random.Random(seed)
        machine = BeltMachine()
        machine.start(num_blocks=rng.randint(12, 40))
        for _ in range(150):
            a_step(machine, rng)
            machine.nothing_is_lost_and_the_age_is_that_of_the_next_victim()


def a_step(machine: BeltMachine, rng: random.Random) -> None:
    pick, scope, key = rng.randrange(10**6), rng.choice("ab"), rng.choice(["", "k", "l", "m"])
    classes = set(rng.choice([(), ("bash",), ("bash",), ("bash", "read")]))
    ids = rng.choices((1, 2, 3), k=rng.randint(1, 24))
    match rng.choices(range(14), (30, 6, 6, 6, 10, 6, 6, 6, 2, 2, 8, 10, 2, 1))[0]:
        case 0:
            machine.whole_turn(scope, key, ids, pick, rng.randrange(10), rng.random() < 0.3, classes)
        case 1:
            machine.begin(scope, key, ids)
        case 2:
            machine.go_on(pick, rng.randrange(10), ids[:9])
        case 3:
            machine.protect(pick)
        case 4:
            machine.admit(pick, rng.choice((0, 12, 24)), rng.random() < 0.5)
        case 5:
            machine.step(pick, rng.randint(1, 9))
        case 6:
            machine.decode(pick, rng.randint(1, 3))
        case 7:
            machine.finish(pick)
        case 8:
            machine.preempt_one(pick)
        case 9:
            machine.cancel(pick, rng.random() < 0.5)
        case 10:
            machine.evict(rng.choice((1, 2, 3, 6, 40)))
        case 11:
            machine.pass_time(rng.choice((0.1, 1.0, 5.0, 40.0)))
        case 12:
            machine.release(scope, key, rng.random() < 0.5)
            machine.learn(scope, classes, rng.choice((None, 1.0, 30.0)))
        case _:
            if machine.pinned:
                machine.unpin(pick)
            elif rng.random() < 0.5:
                machine.pin(pick)
            else:
                machine.flush({scope})
