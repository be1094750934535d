"""The ways in which an answer so far may be read: structure, raw text, a value, free text.

Mostly there is one. Where two are possible (a value may be over or go on; two tools have one beginning), each goes on
by itself until a token fits only one of them. Threads are never changed by what they are pushed, but for values'
matchers, which a clone copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.engine.fence.allowed import Allowed
from services.engine.fence.compiled import CompiledFence
from services.engine.fence.trie import TrieNode


class Thread(Protocol):
    """One reading."""

    def allowed(self) -> Allowed:
        """The tokens with which it goes on."""
        ...

    def push(self, token_id: int) -> Behind | None:
        """What comes behind one more token; None if that does not fit. The thread is used up."""
        ...

    def clone(self) -> Thread:
        """One that can be pushed by itself."""
        ...


Behind = Sequence[Thread | TrieNode]
"""Readings that go on, and places in the structure where others begin."""


@dataclass(slots=True)
class StructureThread:
    """Between marks and values."""

    fence: CompiledFence
    node: TrieNode

    def allowed(self) -> Allowed:
        """Few ids."""
        return self.node.allowed

    def push(self, token_id: int) -> Behind | None:
        """The end of the answer leaves no reading."""
        if token_id not in self.node.ids:
            return None
        behind = self.fence.structure.behind(self.node, token_id)
        return [] if behind is None else [behind]

    def clone(self) -> Thread:
        """Nothing changes in it."""
        return self
