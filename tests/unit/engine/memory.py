"""A device in miniature: every slot holds the exact tokens that led to it, so that any wrong reuse shows."""

from __future__ import annotations

from services.engine.blocks import BlockPool
from services.engine.cache_manager import BlockCopy, CacheManager
from services.engine.prefix_tree import PrefixTree
from services.engine.request import Request, SamplingParams
from services.engine.sequence import Sequence

Prefix = tuple[int, ...]


def to_bytes(ids: list[int] | Prefix) -> bytes:
    return b"".join(i.to_bytes(4, "little") for i in ids)


def to_ids(data: bytes | bytearray) -> Prefix:
    return tuple(memoryview(bytes(data)).cast("i"))


class Memory:
    """Pool, tree and manager over ``num_blocks`` blocks whose slots hold prefixes instead of tensors."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.now = 0.0
        self.block_tokens = block_tokens
        self.pool = BlockPool(num_blocks)
        self.tree = PrefixTree(block_tokens, clock=self.tick, free_block=lambda block: self.pool.put((block,)))
        self.cache = CacheManager(self.pool, self.tree)
        self.slots: dict[tuple[int, int], Prefix] = {}

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def sequence(self, ids: list[int] | Prefix, scope: str = "a", **sampling: object) -> Sequence:
        request = Request(cache_scope=scope, token_ids=to_bytes(ids), sampling=SamplingParams(**sampling))  # type: ignore[arg-type]
        max_tokens = request.sampling.max_tokens
        return Sequence.of(request, self.tree.root(scope), 10**6 if max_tokens is None else max_tokens, self.tick)

    def protect(self, sequence: Sequence) -> None:
        """All that a waiting sequence would hit."""
        match = self.cache.match(sequence)
        self.cache.protect(sequence, match.tail or (match.path[-1] if match.path else sequence.root))

    def copy(self, copies: list[BlockCopy] | tuple[BlockCopy, ...]) -> None:
        for copy in copies:
            for slot in range(copy.num_tokens):
                self.slots[copy.target_block, slot] = self.slots[copy.source.block_id, slot]

    def compute(self, sequence: Sequence, start: int, count: int, draft: Prefix = ()) -> None:
        """Check what the tokens attend to, then write theirs and those of a draft behind them."""
        ids = to_ids(sequence.token_ids)[: start + count] + draft
        self.check(sequence, start)
        for position in range(start, len(ids)):
            self.slots[self._slot(sequence, position)] = ids[: position + 1]

    def check(self, sequence: Sequence, num_tokens: int) -> None:
        ids = to_ids(sequence.token_ids)
        for position in range(num_tokens):
            assert self.slots[self._slot(sequence, position)] == ids[: position + 1], f"wrong state at {position}"

    def check_accounts(self, sequences: list[Sequence]) -> None:
        self.tree.check_integrity()
        use = self.cache.use(sequences)
        assert min(use.free, use.held, use.cached) >= 0
        assert use.free + use.held + use.cached == use.total
        in_tree = {node.block_id for node in self.tree.nodes()}
        for block in range(self.pool.num_blocks):
            owners = sum(block in s.owned for s in sequences)
            assert self.pool.is_free(block) + (block in in_tree) + owners == 1, f"block {block} has no single owner"
        for sequence in sequences:
            assert len(set(sequence.block_ids)) == len(sequence.block_ids)

    def _slot(self, sequence: Sequence, position: int) -> tuple[int, int]:
        return sequence.block_ids[position // self.block_tokens], position % self.block_tokens
