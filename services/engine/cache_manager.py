"""Moves blocks between the pool, running sequences and the prefix tree.

    pool ──attach/grow──▶ sequence ──publish/release──▶ prefix tree ──evict──▶ pool

``free + held + cached = total`` after every operation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from services.engine.blocks import BlockPool
from services.engine.match import Match
from services.engine.node import Node
from services.engine.prefix_tree import PrefixTree
from services.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy the first ``num_tokens`` slots of a shared block. ``source`` stays pinned until ``copied`` is called."""

    source: Node
    target_block: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PoolUse:
    """Blocks by use; ``free + held + cached = total``."""

    free: int
    held: int
    cached: int
    total: int


class CacheManager:
    """Owned by the step loop's task; does no I/O and never waits."""

    def __init__(self, pool: BlockPool, tree: PrefixTree) -> None:
        self.pool = pool
        self.tree = tree
        self.block_tokens = tree.block_tokens

    def match(self, sequence: Sequence) -> Match:
        """Longest cached prefix; at least one token is left to compute."""
        return self.tree.match(sequence.root, sequence.token_ids, sequence.num_tokens - 1)

    def protect(self, sequence: Sequence, node: Node) -> None:
        """Let a node that a waiting sequence would hit be evicted last, in place of what was protected for it before.

        Lasts until ``unprotect`` or until the sequence is attached.
        """
        self.tree.protect(sequence, node)

    def unprotect(self, sequence: Sequence) -> None:
        """It waits no more; nothing happens where nothing was protected."""
        self.tree.unprotect(sequence)

    def attach(self, sequence: Sequence, match: Match, num_tokens: int) -> list[BlockCopy] | None:
        """Give a sequence the matched blocks and fresh ones for ``num_tokens`` in all; None when there is no room.

        Pins the hit first, then evicts, then takes: the blocks it is about to use are never the ones it evicts.
        A matched tail that nobody else uses is extended in place, so that a conversation stays one run of blocks; any
        other is copied, and the caller runs the copies before it computes.
        """
        tail = match.tail
        cursor = match.path[-1] if match.path else sequence.root
        self.tree.pin(cursor)
        extends = (
            tail is not None
            and tail.num_pins == 0
            and tail.num_tokens == match.tail_tokens
            and tail.num_tokens < self.block_tokens
        )
        if tail is not None:
            self.tree.pin(tail)
        kept = [node.block_id for node in match.path] + ([tail.block_id] if tail is not None and extends else [])
        needed = max(0, self._blocks_for(num_tokens) - len(kept))
        if not self._make_room(needed):
            self.tree.unpin(cursor)
            if tail is not None:
                self.tree.unpin(tail)
            return None
        self.tree.unprotect(sequence)
        self.tree.claim(tail if tail is not None and extends else cursor, sequence.owner)
        fresh = self.pool.take(needed, after=kept[-1] if kept else None)
        sequence.block_ids = kept + fresh
        sequence.owned = set(fresh)
        sequence.cursor = cursor
        sequence.num_published = len(match.path) * self.block_tokens
        sequence.num_computed = match.num_tokens(self.block_tokens)
        if tail is None:
            return []
        if extends:
            sequence.tail = tail
            return []
        return [BlockCopy(tail, fresh[0], match.tail_tokens)]

    def copied(self, copy: BlockCopy) -> None:
        """A copy has been made; its source may be evicted again."""
        self.tree.unpin(copy.source)

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make the block table cover ``num_tokens``; False when there is no room."""
        needed = self._blocks_for(num_tokens) - len(sequence.block_ids)
        if needed <= 0:
            return True
        if not self._make_room(needed):
            return False
        self._extend(sequence, needed)
        return True

    def borrow(self, sequence: Sequence, num_tokens: int) -> int:
        """Make the block table cover ``num_tokens``, or as many as free blocks allow; how many blocks that took."""
        needed = max(0, self._blocks_for(num_tokens) - len(sequence.block_ids))
        return self._extend(sequence, min(needed, self.pool.num_free))

    def give_back(self, sequence: Sequence, num_blocks: int) -> None:
        """Free what was borrowed, but for blocks in which computed tokens lie."""
        count = min(num_blocks, len(sequence.block_ids) - self._blocks_for(sequence.num_computed))
        if count > 0:
            unused = sequence.block_ids[-count:]
            del sequence.block_ids[-count:]
            sequence.owned.difference_update(unused)
            self.pool.put(unused)

    def publish(self, sequence: Sequence) -> None:
        """Put the sequence's newly completed blocks into the tree, where others can use them at once."""
        size = self.block_tokens
        while sequence.num_computed - sequence.num_published >= size:
            first = sequence.num_published
            node = self._put(sequence, sequence.ids(first, first + size))
            self._move_cursor(sequence, node)
            sequence.num_published += size

    def release(self, sequence: Sequence, num_tokens: int) -> Node:
        """Take a sequence's blocks back, leaving all it has computed cached.

        Returns the node, unpinned, behind whose path the first ``num_tokens`` tokens lie (the scope's root for 0).
        More may be cached behind it, such as the tokens of a stop text: reuse is exact to the token, so they are
        simply not matched by a prompt that lacks them.
        """
        assert sequence.cursor is not None
        self.publish(sequence)
        node, first = sequence.cursor, sequence.num_published - self.block_tokens
        if sequence.num_computed > sequence.num_published:
            node = self._put(sequence, sequence.ids(sequence.num_published, sequence.num_computed))
            first = sequence.num_published
        if sequence.tail is not None:
            self.tree.unpin(sequence.tail)
            sequence.tail = None
        self.tree.unpin(sequence.cursor)
        self.pool.put(sequence.owned)
        sequence.cursor, sequence.block_ids, sequence.owned = None, [], set()
        sequence.num_published = sequence.num_computed = 0
        while first >= num_tokens and node.parent is not None:
            node, first = node.parent, first - self.block_tokens
        return node

    def use(self, sequences: Iterable[Sequence]) -> PoolUse:
        """Count blocks; ``sequences`` are all that have any."""
        held: set[int] = set()
        for sequence in sequences:
            held.update(sequence.block_ids)
        free = self.pool.num_free
        return PoolUse(free, len(held), self.pool.num_blocks - free - len(held), self.pool.num_blocks)

    def _extend(self, sequence: Sequence, count: int) -> int:
        if count:
            fresh = self.pool.take(count, after=sequence.block_ids[-1] if sequence.block_ids else None)
            sequence.block_ids += fresh
            sequence.owned.update(fresh)
        return count

    def _put(self, sequence: Sequence, ids: bytes) -> Node:
        """Bring one block's tokens into the tree behind the cursor, or find them there."""
        assert sequence.cursor is not None
        block_id = sequence.block_ids[sequence.num_published // self.block_tokens]
        tail = sequence.tail
        if tail is None:
            node = self.tree.insert(sequence.cursor, ids, block_id, sequence.owner)
        else:
            node = self.tree.grow(tail, ids, sequence.owner)
            sequence.tail = None
            if node is not tail:
                sequence.owned.add(block_id)
                return node
            self.tree.unpin(tail)
        if node.block_id == block_id:
            sequence.owned.discard(block_id)
        return node

    def _move_cursor(self, sequence: Sequence, node: Node) -> None:
        assert sequence.cursor is not None
        self.tree.pin(node)
        self.tree.unpin(sequence.cursor)
        sequence.cursor = node

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def _make_room(self, needed: int) -> bool:
        missing = needed - self.pool.num_free
        if missing <= 0:
            return True
        # Evicting for a request that cannot be admitted anyway would only lose its own next hit.
        if self.tree.num_evictable() < missing:
            return False
        return self.tree.evict(missing) == missing
