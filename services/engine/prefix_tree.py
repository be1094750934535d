"""Token-exact prefix tree over device blocks: what is cached, who uses it, and what goes first.

A node is one block of one sequence of tokens. Full nodes hold ``block_tokens`` tokens and may have children; a partial
node (a tail) is a leaf that ends at a terminal state, so that the next turn resumes at its last token. Each cache scope
has a root of its own: nothing is shared between scopes.

Nodes are compared by their tokens, never by a hash. A pin keeps a node, and with it all its ancestors, from eviction.
Eviction takes leaves only, in the order of the belt. A protection makes a node go last; when it goes all the same, the
protection passes to its parent.

Invariant: no cached block has an evicted ancestor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterator
from weakref import WeakSet

from services.engine.belt import Belt
from services.engine.match import Match, longest_match
from services.engine.node import TOKEN_BYTES, Node
from services.engine.owner import EVERYONE, Owner


class PrefixTree:
    """All cached blocks of a device. Owned by the step loop's task; no method does I/O.

    ``free_block`` is called with each block id that leaves the tree; ``is_lru`` is the belt's.
    """

    def __init__(
        self,
        block_tokens: int,
        *,
        clock: Callable[[], float],
        free_block: Callable[[int], None],
        is_lru: bool = False,
    ) -> None:
        self.block_tokens = block_tokens
        self.num_blocks = 0
        self._clock = clock
        self._free_block = free_block
        self._roots: dict[str, Node] = {}
        # Roots that nothing is matched from any more. Weak: a sequence that waits may still begin behind one.
        self._flushed: WeakSet[Node] = WeakSet()
        self._belt = Belt(is_lru=is_lru)
        self._pinned: set[Node] = set()
        self._protected: dict[Hashable, Node] = {}

    def root(self, cache_scope: str) -> Node:
        """The node all prefixes of a scope start from; it has no block."""
        return self._roots.setdefault(cache_scope, Node(None, b"", -1))

    def scopes(self) -> list[str]:
        """Those that have a root."""
        return list(self._roots)

    def flush(self, cache_scopes: Collection[str]) -> int:
        """Free all blocks of scopes, and let nothing be matched from those that are in use; how many were freed.

        Running sequences keep theirs, behind the old root; eviction takes those when they are done.
        """
        before = self.num_blocks
        for scope in cache_scopes:
            root = self._roots.pop(scope, None)
            if root is None:
                continue
            self._flushed.add(root)
            for leaf in [node for node in self._below([root]) if not node.children]:
                node = leaf
                while (above := node.parent) is not None and not node.children and not node.num_pins:
                    self._remove(node)
                    node = above
        return before - self.num_blocks

    def is_flushed(self, cache_scope: str, root: Node) -> bool:
        """Whether this root of a scope was flushed: what lies behind it may not be reused."""
        return self._roots.get(cache_scope) is not root

    def match(self, root: Node, token_ids: bytes | bytearray, num_tokens: int) -> Match:
        """Longest cached prefix of the first ``num_tokens`` of ``token_ids``. Pins nothing."""
        return longest_match(root, token_ids, num_tokens, self.block_tokens)

    def pin(self, node: Node) -> None:
        """Keep ``node`` and its ancestors."""
        node.num_pins += 1
        self._pinned.add(node)
        self._belt.take_off(node)

    def unpin(self, node: Node) -> None:
        """Undo one pin and mark the node as used now."""
        assert node.num_pins > 0, "unpin without pin"
        node.num_pins -= 1
        if not node.num_pins:
            self._pinned.discard(node)
        node.last_used_s = self._clock()
        self._settle(node)

    def claim(self, node: Node, owner: Owner) -> None:
        """``owner`` uses ``node`` and its ancestors, too. Costs as much as there are nodes that it did not use yet."""
        above = node
        while above.parent is not None and (joined := above.owner.joined(owner)) is not above.owner:
            above.owner = joined
            above = above.parent
        self._settle(node)

    def reconsider(self, owner: Owner) -> None:
        """An owner is over, or waits for something else: its blocks go sooner or later than before."""
        self._belt.changed(owner)

    def abandon(self, owner: Owner, tip: Node, heir: Owner) -> None:
        """Of an owner's own leaves only ``tip`` goes on: the others, and what leads to them alone, are ``heir``'s."""
        for leaf in self._belt.leaves_of(owner):
            node = leaf
            while node is not tip and node.owner is owner and node.parent is not None and not node.num_pins:
                node.owner = heir
                node = node.parent
                if sum(map(len, node.children.values())) > 1:
                    break
            self._settle(leaf)

    def remove(self, owner: Owner) -> int:
        """Free all blocks of an owner and its parts, but for those in use; how many were freed. Walks the tree.

        Below them are only its own and what others that are over have left, which goes, too.
        """
        before = self.num_blocks
        for leaf in [node for node in self.nodes() if not node.children]:
            doomed: list[Node] = []
            num_left = 0
            for node in reversed(self.path(leaf)):
                if not (node.owner.is_over or node.owner.is_part_of(owner)):
                    break
                doomed.append(node)
                num_left = 0 if node.owner.is_part_of(owner) else num_left + 1
            for node in doomed[: len(doomed) - num_left]:
                if node not in self._belt:
                    break
                self._remove(node)
        return before - self.num_blocks

    def protect(self, holder: Hashable, node: Node) -> None:
        """Let ``node`` go last, for a holder that is about to use it; a holder protects one node at a time."""
        if self._protected.get(holder) is node:
            return
        self.unprotect(holder)
        if node.parent is not None:
            self._protected[holder] = node
            node.num_protections += 1
            self._settle(node)

    def unprotect(self, holder: Hashable) -> None:
        """Undo it; nothing happens where there is nothing to undo."""
        node = self._protected.pop(holder, None)
        if node is not None:
            node.num_protections -= 1
            self._settle(node)

    def insert(self, parent: Node, token_ids: bytes, block_id: int, owner: Owner = EVERYONE) -> Node:
        """Add a block of ``owner`` behind ``parent``, or find the one that already holds these tokens.

        The answer's ``block_id`` differs from the given one in the second case; the caller then keeps its own block.
        A shorter unpinned tail that the new block continues is dropped: nobody needs both.
        """
        assert parent.parent is None or parent.num_tokens == self.block_tokens, "only full blocks have children"
        siblings = parent.children.setdefault(token_ids[:TOKEN_BYTES], [])
        for sibling in siblings:
            if sibling.token_ids.startswith(token_ids):
                self.claim(sibling, owner)
                return sibling
        node = Node(parent, token_ids, block_id, owner)
        node.last_used_s = self._clock()
        continued = [s for s in siblings if s.num_pins == 0 and token_ids.startswith(s.token_ids)]
        siblings.append(node)
        self.num_blocks += 1
        for sibling in continued:
            self._remove(sibling, node)
        self._settle(parent)
        self._settle(node)
        return node

    def grow(self, tail: Node, token_ids: bytes, owner: Owner = EVERYONE) -> Node:
        """Extend a tail in place to ``token_ids``, whose first tokens it holds already.

        Where another node holds these tokens by now, the tail leaves the tree (its block is *not* freed: it stays the
        caller's) and the other node is returned. Pins of the tail are the caller's own.
        """
        assert token_ids.startswith(tail.token_ids), "grow() may only append"
        parent = tail.parent
        assert parent is not None
        siblings = parent.children[token_ids[:TOKEN_BYTES]]
        for sibling in siblings:
            if sibling is not tail and sibling.token_ids.startswith(token_ids):
                self._unlink(tail, sibling)
                self.claim(sibling, owner)
                return sibling
        tail.token_ids = token_ids
        return tail

    def evict(self, count: int) -> int:
        """Free up to ``count`` blocks, leaves first, in the order of the belt; how many were freed."""
        now_s, freed = self._clock(), 0
        while freed < count and (node := self._belt.first(now_s)) is not None:
            self._remove(node)
            freed += 1
        return freed

    def num_evictable(self, unused_since_s: float = math.inf) -> int:
        """Blocks that eviction could free, were it to go on: those that no pin keeps, and of these those that were last
        used before ``unused_since_s``. Walks what pins keep; with a time, the tree."""
        kept: set[Node] = set()
        used = () if unused_since_s == math.inf else (n for n in self.nodes() if n.last_used_s >= unused_since_s)
        for last in itertools.chain(self._pinned, used):
            node = last
            while node.parent is not None and node not in kept:
                kept.add(node)
                node = node.parent
        return self.num_blocks - len(kept)

    def oldest_s(self) -> float | None:
        """When the block that would be evicted next was last used; None when nothing could be."""
        node = self._belt.first(self._clock())
        return None if node is None else node.last_used_s

    def path(self, node: Node) -> list[Node]:
        """Nodes from below the root to ``node``."""
        nodes: list[Node] = []
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def nodes(self) -> Iterator[Node]:
        """All nodes with a block, in no order."""
        return self._below([*self._roots.values(), *self._flushed])

    def _below(self, roots: list[Node]) -> Iterator[Node]:
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack += [child for siblings in node.children.values() for child in siblings]

    def check_integrity(self) -> None:
        """Assert the invariants; for tests."""
        seen: set[int] = set()
        for node in self.nodes():
            assert node.block_id not in seen, "a block in two nodes"
            seen.add(node.block_id)
            assert 0 < node.num_tokens <= self.block_tokens
            assert node.num_tokens == self.block_tokens or not node.children, "a tail with children"
            assert node.parent is not None
            assert node in node.parent.children[node.token_ids[:TOKEN_BYTES]]
            assert (node.num_pins > 0) == (node in self._pinned)
            assert node.num_protections == sum(held is node for held in self._protected.values())
            is_leaf = not node.children and node.num_pins == 0
            assert is_leaf == (node in self._belt), "eviction sees the unpinned leaves and nothing else"
            above = node.parent
            assert above.parent is None or node.owner.is_over or node.owner.is_part_of(above.owner)
        assert len(seen) == self.num_blocks >= len(self._belt)

    def _settle(self, node: Node) -> None:
        """Put a node on the belt or take it off, as is right for it now."""
        if node.parent is not None and not node.children and node.num_pins == 0:
            self._belt.place(node)
        else:
            self._belt.take_off(node)

    def _remove(self, node: Node, heir: Node | None = None) -> None:
        self._unlink(node, heir)
        self._free_block(node.block_id)

    def _unlink(self, node: Node, heir: Node | None = None) -> None:
        """Take a leaf out; ``heir`` (its parent unless told otherwise) gets what was there for its sake."""
        parent = node.parent
        assert parent is not None
        assert not node.children
        siblings = parent.children[node.token_ids[:TOKEN_BYTES]]
        siblings.remove(node)
        if not siblings:
            del parent.children[node.token_ids[:TOKEN_BYTES]]
        node.parent = None
        self.num_blocks -= 1
        self._belt.take_off(node)
        # The parent was used whenever its child was.
        parent.last_used_s = max(parent.last_used_s, node.last_used_s)
        if heir is not None:
            heir.owner = heir.owner.joined(node.owner)
            self._settle(heir)
        if node.num_protections:
            for holder in [holder for holder, held in self._protected.items() if held is node]:
                self.protect(holder, heir or parent)
        self._settle(parent)
