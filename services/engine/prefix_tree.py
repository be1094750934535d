"""Token-exact prefix tree over device blocks: what is cached, who uses it, and what goes first.

A node is one block of one sequence of tokens. Full nodes hold ``block_tokens`` tokens and may have children; a partial
node (a tail) is a leaf that ends at a terminal state, so that the next turn resumes at its last token. Each cache scope
has a root of its own: nothing is shared between scopes.

Nodes are compared by their tokens, never by a hash. A pin keeps a node, and with it all its ancestors, from eviction.
Eviction takes leaves only, least recently used first.

Invariant: no cached block has an evicted ancestor.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace

TOKEN_BYTES = 4
"""Token ids are int32 little-endian everywhere in the tree."""


class Node:
    """One cached block. Fields are read by anyone and written by the tree only."""

    __slots__ = ("block_id", "children", "last_used_s", "num_pins", "parent", "token_ids")

    def __init__(self, parent: Node | None, token_ids: bytes, block_id: int) -> None:
        self.parent = parent
        self.token_ids = token_ids
        self.block_id = block_id
        self.children: dict[bytes, list[Node]] = {}  # by first token; siblings with an equal one share a list
        self.num_pins = 0
        self.last_used_s = 0.0

    @property
    def num_tokens(self) -> int:
        """Tokens in this block."""
        return len(self.token_ids) // TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Match:
    """The longest cached prefix of a prompt.

    ``path`` are whole blocks. ``tail`` is a further block of which only the first ``tail_tokens`` agree with the
    prompt; it is shared by copying them. ``is_fork`` says that cached tokens follow which the prompt contradicts.
    """

    path: tuple[Node, ...]
    tail: Node | None
    tail_tokens: int
    is_fork: bool

    def num_tokens(self, block_tokens: int) -> int:
        """Tokens of the prompt that are cached."""
        return len(self.path) * block_tokens + self.tail_tokens

    def whole_blocks(self) -> Match:
        """The same without the partly matching block."""
        return replace(self, tail=None, tail_tokens=0)


class PrefixTree:
    """All cached blocks of a device. Owned by the step loop's task; no method does I/O.

    ``free_block`` is called with each block id that leaves the tree.
    """

    def __init__(self, block_tokens: int, *, clock: Callable[[], float], free_block: Callable[[int], None]) -> None:
        self.block_tokens = block_tokens
        self.num_blocks = 0
        self._block_bytes = block_tokens * TOKEN_BYTES
        self._clock = clock
        self._free_block = free_block
        self._roots: dict[str, Node] = {}
        self._flushed: list[Node] = []  # roots that nothing is matched from any more
        self._belt: list[tuple[float, int, Node]] = []  # heap of leaves; entries go stale and are skipped
        self._order = itertools.count()

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
            self._flushed.append(root)
            for leaf in [node for node in self._below([root]) if not node.children]:
                node = leaf
                while (above := node.parent) is not None and not node.children and not node.num_pins:
                    self._remove(node)
                    node = above
        self._flushed = [root for root in self._flushed if root.children or root.num_pins]
        return before - self.num_blocks

    def is_flushed(self, cache_scope: str, root: Node) -> bool:
        """Whether this root of a scope was flushed: what lies behind it may not be reused."""
        return self._roots.get(cache_scope) is not root

    def match(self, root: Node, token_ids: bytes | bytearray, num_tokens: int) -> Match:
        """Longest cached prefix of the first ``num_tokens`` of ``token_ids``. Pins nothing."""
        limit = num_tokens * TOKEN_BYTES
        node, position, path = root, 0, list[Node]()
        while limit - position >= self._block_bytes:
            block = bytes(token_ids[position : position + self._block_bytes])
            child = next((c for c in node.children.get(block[:TOKEN_BYTES], ()) if c.token_ids == block), None)
            if child is None:
                break
            path.append(child)
            node, position = child, position + self._block_bytes
        rest = bytes(token_ids[position : min(position + self._block_bytes, limit)])
        tail, common = None, 0
        for child in node.children.get(rest[:TOKEN_BYTES], ()):
            agreed = _common_tokens(child.token_ids, rest)
            if agreed > common:
                tail, common = child, agreed
        # A limit inside the cached tokens is no contradiction: the last token is always computed again.
        continues = tail.num_tokens > common if tail is not None else bool(node.children)
        is_fork = continues and position + common * TOKEN_BYTES < limit
        return Match(tuple(path), tail, common, is_fork)

    def pin(self, node: Node) -> None:
        """Keep ``node`` and its ancestors."""
        node.num_pins += 1

    def unpin(self, node: Node) -> None:
        """Undo one pin and mark the node as used now."""
        assert node.num_pins > 0, "unpin without pin"
        node.num_pins -= 1
        node.last_used_s = self._clock()
        self._offer(node)

    def insert(self, parent: Node, token_ids: bytes, block_id: int) -> Node:
        """Add a block behind ``parent``, or find the one that already holds these tokens.

        The answer's ``block_id`` differs from the given one in the second case; the caller then keeps its own block.
        A shorter unpinned tail that the new block continues is dropped: nobody needs both.
        """
        assert parent.parent is None or parent.num_tokens == self.block_tokens, "only full blocks have children"
        siblings = parent.children.setdefault(token_ids[:TOKEN_BYTES], [])
        for sibling in siblings:
            if sibling.token_ids.startswith(token_ids):
                return sibling
        node = Node(parent, token_ids, block_id)
        node.last_used_s = self._clock()
        for sibling in list(siblings):
            if sibling.num_pins == 0 and token_ids.startswith(sibling.token_ids):
                self._remove(sibling)
        parent.children.setdefault(token_ids[:TOKEN_BYTES], []).append(node)
        self.num_blocks += 1
        self._offer(node)
        return node

    def grow(self, tail: Node, token_ids: bytes) -> Node:
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
                self._unlink(tail)
                return sibling
        tail.token_ids = token_ids
        return tail

    def evict(self, count: int) -> int:
        """Free up to ``count`` blocks, leaves first, least recently used first; how many were freed."""
        freed = 0
        while freed < count:
            node = self._oldest()
            if node is None:
                break
            heapq.heappop(self._belt)
            self._remove(node)
            freed += 1
        return freed

    def num_evictable(self, unused_since_s: float = math.inf) -> int:
        """Blocks that eviction could free, were it to go on: those that no pin protects, and of these those that were
        last used before ``unused_since_s``. Walks the tree."""
        kept: set[int] = set()
        for node in self.nodes():
            if node.num_pins or node.last_used_s >= unused_since_s:
                kept.update(id(ancestor) for ancestor in self.path(node))
        return self.num_blocks - len(kept)

    def oldest_s(self) -> float | None:
        """When the block that would be evicted next was last used; None when nothing could be."""
        node = self._oldest()
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
            assert node.num_pins >= 0
        assert len(seen) == self.num_blocks
        on_belt = {id(entry[2]) for entry in self._belt if self._is_current(entry)}
        leaves = {id(n) for n in self.nodes() if not n.children and n.num_pins == 0}
        assert leaves == on_belt, "an unpinned leaf that eviction cannot see"

    def _oldest(self) -> Node | None:
        while self._belt and not self._is_current(self._belt[0]):
            heapq.heappop(self._belt)
        return self._belt[0][2] if self._belt else None

    def _is_current(self, entry: tuple[float, int, Node]) -> bool:
        last_used_s, _, node = entry
        return node.parent is not None and not node.children and not node.num_pins and node.last_used_s == last_used_s

    def _offer(self, node: Node) -> None:
        if node.parent is not None and not node.children and node.num_pins == 0:
            heapq.heappush(self._belt, (node.last_used_s, next(self._order), node))
            if len(self._belt) > 4 * self.num_blocks + 1024:
                self._belt = [entry for entry in self._belt if self._is_current(entry)]
                heapq.heapify(self._belt)

    def _remove(self, node: Node) -> None:
        self._unlink(node)
        self._free_block(node.block_id)

    def _unlink(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        assert not node.children
        siblings = parent.children[node.token_ids[:TOKEN_BYTES]]
        siblings.remove(node)
        if not siblings:
            del parent.children[node.token_ids[:TOKEN_BYTES]]
        node.parent = None
        self.num_blocks -= 1
        # The parent was used whenever its child was.
        parent.last_used_s = max(parent.last_used_s, node.last_used_s)
        self._offer(parent)


def _common_tokens(left: bytes, right: bytes) -> int:
    limit = min(len(left), len(right))
    if left[:limit] == right[:limit]:
        return limit // TOKEN_BYTES
    return next(i for i in range(0, limit, TOKEN_BYTES) if left[i : i + TOKEN_BYTES] != right[i : i + TOKEN_BYTES]) // 4
