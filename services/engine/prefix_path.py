"""The whole blocks that a waiting prompt finds cached, kept while the tree changes. Pure."""

from __future__ import annotations

from services.engine.prefix_tree import TOKEN_BYTES, Node


def follow(path: list[Node], root: Node, token_ids: bytes | bytearray, num_tokens: int, block_tokens: int) -> None:
    """Bring ``path``, which once matched the first ``num_tokens`` tokens from ``root`` on, up to date.

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
