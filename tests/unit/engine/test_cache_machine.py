"""Random forks, appends, evictions and cancellations: every reused token's state is exactly its own."""

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from services.engine.sequence import Sequence
from tests.unit.engine.memory import Memory, to_ids

BLOCK = 4
EXAMPLES = 1_500 if os.environ.get("FENCEPOST_SOAK") else 120
TOKENS = st.integers(1, 3)


class CacheMachine(RuleBasedStateMachine):
    running = Bundle("running")
    ended = Bundle("ended")

    @initialize(num_blocks=st.integers(6, 24))
    def start(self, num_blocks: int) -> None:
        self.memory = Memory(num_blocks, BLOCK)
        self.live: list[Sequence] = []

    @rule(target=ended, ids=st.lists(TOKENS, min_size=1, max_size=20), scope=st.sampled_from("ab"))
    def store(self, ids: list[int], scope: str) -> tuple[str, tuple[int, ...]]:
        sequence = self.memory.sequence(ids, scope)
        if self.attach(sequence):
            self.compute(sequence, sequence.num_pending)
            self.finish(sequence, sequence.num_computed)
        return scope, tuple(ids)

    @rule(target=running, base=ended, cut=st.integers(0, 6), more=st.lists(TOKENS, min_size=1, max_size=9))
    def admit(self, base: tuple[str, tuple[int, ...]], cut: int, more: list[int]):
        scope, ids = base
        sequence = self.memory.sequence([*ids[: len(ids) - min(cut, len(ids))], *more], scope)
        return sequence if self.attach(sequence) else multiple()

    def attach(self, sequence: Sequence) -> bool:
        match = self.memory.cache.match(sequence)
        copies = self.memory.cache.attach(sequence, match, sequence.num_tokens + BLOCK)
        if copies is None:
            return False
        assert sequence.num_computed < sequence.num_tokens
        self.memory.copy(copies)
        for copy in copies:
            self.memory.cache.copied(copy)
        self.memory.check(sequence, sequence.num_computed)
        self.live.append(sequence)
        return True

    @rule(sequence=running, count=st.integers(1, 9))
    def compute(self, sequence: Sequence, count: int) -> None:
        if sequence not in self.live:
            return
        count = min(count, sequence.num_pending)
        if count:
            self.memory.compute(sequence, sequence.num_computed, count)
            sequence.num_computed += count
            self.memory.cache.publish(sequence)

    @rule(sequence=running, token=TOKENS)
    def decode(self, sequence: Sequence, token: int) -> None:
        if sequence in self.live and not sequence.num_pending:
            sequence.append(token)
            if not self.memory.cache.grow(sequence, sequence.num_tokens):
                self.finish(sequence, 10**6)

    @rule(target=ended, sequence=consumes(running), dropped=st.integers(0, 3))
    def end(self, sequence: Sequence, dropped: int) -> tuple[str, tuple[int, ...]]:
        """Finished, cut at a stop text, cancelled or preempted: the same for the blocks."""
        scope, ids = sequence.request.cache_scope, to_ids(sequence.token_ids)
        if sequence in self.live:
            self.finish(sequence, max(1, sequence.num_computed - dropped))
        return scope, ids

    def finish(self, sequence: Sequence, kept: int) -> None:
        kept = min(kept, sequence.num_computed)
        node = self.memory.cache.release(sequence, kept)
        self.live.remove(sequence)
        root = self.memory.tree.root(sequence.request.cache_scope)
        assert self.memory.tree.match(root, sequence.token_ids, kept).num_tokens(BLOCK) == kept
        covered = b"".join(n.token_ids for n in self.memory.tree.path(node))
        assert covered.startswith(sequence.ids(0, kept)), "the terminal node covers the kept tokens"

    @rule(count=st.integers(1, 6))
    def evict(self, count: int) -> None:
        evictable = self.memory.tree.num_evictable()
        assert self.memory.tree.evict(count) == min(count, evictable)

    @invariant()
    def nothing_is_lost_or_wrong(self) -> None:
        if hasattr(self, "memory"):
            self.memory.check_accounts(self.live)
            for sequence in self.live:
                self.memory.check(sequence, sequence.num_computed)
            for scope in "ab":
                for node in self.memory.tree.nodes():
                    path = self.memory.tree.path(node)
                    ids = b"".join(n.token_ids for n in path)
                    first = len(ids) // 4 - node.num_tokens
                    for slot in range(node.num_tokens):
                        assert self.memory.slots[node.block_id, slot] == to_ids(ids)[: first + slot + 1], scope


CacheMachine.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
TestCacheMachine = CacheMachine.TestCase
