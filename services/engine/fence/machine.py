"""One answer's fence: what may be sampled next, and what must be.

    allowed = fence.allowed()     # of the next token
    fence.push(token_id)          # it has been sampled, or was forced
    fence.clone()                 # for a draft, which goes its own way

Nothing is ever taken back: a draft is checked on a clone.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

import numpy as np

from services.engine.fence.allowed import Allowed, Free, Ids, Mask
from services.engine.fence.compiled import CompiledFence
from services.engine.fence.free_thread import FreeThread
from services.engine.fence.program import Relaxed
from services.engine.fence.raw_thread import RawThread
from services.engine.fence.readings import first, settle
from services.engine.fence.thinking_thread import ThinkingThread
from services.engine.fence.thread import StructureThread, Thread
from services.engine.fence.tokens import FenceTokens
from services.engine.fence.value_thread import ValueThread


class Region(Enum):
    """What is being written."""

    REASONING = auto()
    PROSE = auto()
    STRUCTURE = auto()
    VALUE = auto()
    """An argument: text of the model's own inside structure."""
    OVER = auto()
    """Nothing more may follow."""

    @property
    def is_inside(self) -> bool:
        """Part of what a program demands."""
        return self in (Region.STRUCTURE, Region.VALUE)


class Fence:
    """The state of one answer. Not for several threads at once."""

    __slots__ = ("_compiled", "_threads")

    def __init__(self, compiled: CompiledFence) -> None:
        self._compiled = compiled
        self._threads: list[Thread] = first(compiled)

    def allowed(self) -> Allowed:
        """The legal next tokens. Costs least in structure and free text (one look), most in JSON (tens of µs)."""
        if len(self._threads) == 1:
            return self._threads[0].allowed()
        return self._union([thread.allowed() for thread in self._threads])

    def forced(self) -> Sequence[int]:
        """The tokens that must come next, in order, as far as there is no choice; they need no logits."""
        if len(self._threads) == 1 and isinstance(thread := self._threads[0], StructureThread):
            return self._compiled.structure.forced(thread.node)
        return ()

    def push(self, token_id: int) -> bool:
        """One more token of the answer. False if it is illegal; the fence cannot be used any more then."""
        if len(self._threads) == 1:
            pushed = self._threads[0].push(token_id)
            self._threads = settle(self._compiled, pushed or [])
            return pushed is not None
        if not self._threads:
            return token_id in self._compiled.tokens.eos_ids
        all_pushed = [pushed for thread in self._threads if (pushed := thread.push(token_id)) is not None]
        self._threads = settle(self._compiled, [one for pushed in all_pushed for one in pushed])
        return bool(all_pushed)

    @property
    def tokens(self) -> FenceTokens:
        """Of the model."""
        return self._compiled.tokens

    @property
    def relaxed(self) -> tuple[Relaxed, ...]:
        """What is not enforced, as far as that is known."""
        return self._compiled.relaxed

    @property
    def marker_ids(self) -> tuple[int, ...]:
        """Of the program."""
        return self._compiled.program.marker_ids

    @property
    def is_finishable(self) -> bool:
        """Whether the answer may end here."""
        allowed = self.allowed()
        match allowed:
            case Free():
                return True
            case Ids(ids):
                return not ids.isdisjoint(self._compiled.tokens.eos_ids)
            case Mask(row):
                return any(int(row[token_id >> 5]) >> (token_id & 31) & 1 for token_id in self._compiled.tokens.eos_ids)

    @property
    def is_inside(self) -> bool:
        """Inside structure: stop texts are suspended, and an answer cut here has half a call."""
        return self.region.is_inside

    @property
    def region(self) -> Region:
        """What is being written; what is furthest inside where that is open."""
        if not self._threads:
            return Region.OVER
        if isinstance(self._threads[0], ThinkingThread):
            return Region.REASONING
        if any(isinstance(thread, FreeThread) for thread in self._threads):
            return Region.PROSE
        if any(isinstance(thread, (RawThread, ValueThread)) for thread in self._threads):
            return Region.VALUE
        return Region.STRUCTURE

    def clone(self) -> Fence:
        """A fence in the same state that goes its own way; a few µs."""
        other = Fence.__new__(Fence)
        other._compiled = self._compiled
        other._threads = [thread.clone() for thread in self._threads]
        return other

    def _union(self, parts: Sequence[Allowed]) -> Allowed:
        if not parts:
            return self._compiled.end
        if any(isinstance(part, Free) for part in parts):
            return Free()
        ids = frozenset[int]().union(*(part.ids for part in parts if isinstance(part, Ids)))
        rows = [part.row for part in parts if isinstance(part, Mask)]
        if not rows:
            return Ids(ids)
        row = rows[0].copy()
        for other in rows[1:]:
            row |= other
        for token_id in ids:
            row[token_id >> 5] |= np.uint32(1 << (token_id & 31))
        return Mask(row)
