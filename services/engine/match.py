"""How much of a prompt is cached."""

from __future__ import annotations

from dataclasses import dataclass, replace

from services.engine.node import TOKEN_BYTES, Node


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


def follow(path: list[Node], root: Node, token_ids: bytes | bytearray, num_tokens: int, block_tokens: int) -> None:
    """Bring ``path``, whole blocks that once matched the first ``num_tokens`` tokens from ``root`` on, up to date.

    Costs what has changed since, not what the prompt is long; an empty path is matched anew.
    """
    # No cached block has an evicted ancestor, so what is still there is a beginning of the path.
    while path and path[-1].parent is None:
        path.pop()
    node = path[-1] if path else root
    block_bytes = block_tokens * TOKEN_BYTES
    for place in range(len(path), num_tokens // block_tokens):
        block = bytes(token_ids[place * block_bytes : (place + 1) * block_bytes])
        child = next((c for c in node.children.get(block[:TOKEN_BYTES], ()) if c.token_ids == block), None)
        if child is None:
            break
        path.append(child)
        node = child


def longest_match(root: Node, token_ids: bytes | bytearray, num_tokens: int, block_tokens: int) -> Match:
    """Longest cached prefix, below ``root``, of the first ``num_tokens`` of ``token_ids``."""
    path = list[Node]()
    follow(path, root, token_ids, num_tokens, block_tokens)
    limit, position = num_tokens * TOKEN_BYTES, len(path) * block_tokens * TOKEN_BYTES
    node = path[-1] if path else root
    rest = bytes(token_ids[position : min(position + block_tokens * TOKEN_BYTES, limit)])
    tail, common = None, 0
    for child in node.children.get(rest[:TOKEN_BYTES], ()):
        agreed = _common_tokens(child.token_ids, rest)
        if agreed > common:
            tail, common = child, agreed
    # A limit inside the cached tokens is no contradiction: the last token is always computed again.
    continues = tail.num_tokens > common if tail is not None else bool(node.children)
    is_fork = continues and position + common * TOKEN_BYTES < limit
    return Match(tuple(path), tail, common, is_fork)


def _common_tokens(left: bytes, right: bytes) -> int:
    limit = min(len(left), len(right))
    if left[:limit] == right[:limit]:
        return limit // TOKEN_BYTES
    return next(i for i in range(0, limit, TOKEN_BYTES) if left[i : i + TOKEN_BYTES] != right[i : i + TOKEN_BYTES]) // 4
