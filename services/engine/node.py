"""One cached block of the prefix tree."""

from __future__ import annotations

from services.engine.owner import EVERYONE, Owner

TOKEN_BYTES = 4
"""Token ids are int32 little-endian everywhere in the tree."""
ATTENTION_TOKENS = 8_192
"""First guess of the position at which attention costs a token as much again as all else; near it for dense models."""


class Node:
    """Fields are read by anyone and written by the tree only."""

    __slots__ = (
        "__weakref__",
        "block_id",
        "children",
        "first_token",
        "last_used_s",
        "num_pins",
        "num_protections",
        "owner",
        "parent",
        "token_ids",
    )

    def __init__(self, parent: Node | None, token_ids: bytes, block_id: int, owner: Owner = EVERYONE) -> None:
        self.parent = parent
        self.token_ids = token_ids
        self.block_id = block_id
        self.first_token = 0 if parent is None else parent.first_token + parent.num_tokens
        self.owner = owner
        self.children: dict[bytes, list[Node]] = {}  # by first token; siblings with an equal one share a list
        self.num_pins = 0
        self.num_protections = 0
        self.last_used_s = 0.0

    @property
    def num_tokens(self) -> int:
        """Tokens in this block."""
        return len(self.token_ids) // TOKEN_BYTES

    @property
    def recompute_cost(self) -> float:
        """What computing it again takes, in tokens at position 0. All blocks have the same bytes."""
        return self.num_tokens * (1 + self.first_token / ATTENTION_TOKENS)
