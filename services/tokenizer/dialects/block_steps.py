"""What the readers of tool blocks share: text comes in, is read step by step, and a broken block is skipped."""

from __future__ import annotations

from abc import ABC, abstractmethod

from services.tokenizer.dialects.block_text import BlockText
from services.tokenizer.dialects.events import ParseEvent


class BlockSteps(ABC):
    """A ``BlockReader`` that reads one thing at a time; what it reads goes into ``_events``."""

    def __init__(self, block: BlockText) -> None:
        self._block = block
        self._events: list[ParseEvent] = []

    @property
    def rest(self) -> str | None:
        """What followed the block, once it is over."""
        return self._block.rest

    def push(self, text: str) -> list[ParseEvent]:
        """More of the block."""
        self._block.add(text)
        return self._read(is_final=False)

    def finish(self) -> list[ParseEvent]:
        """The answer is over; calls that are whole have been reported already."""
        events = self._read(is_final=True)
        if self._block.rest is None:
            events.extend(self._block.end_malformed("the call is not complete"))
        return events

    @abstractmethod
    def _step(self, *, is_final: bool) -> bool:
        """Read one thing; whether there may be more to read."""

    def _read(self, *, is_final: bool) -> list[ParseEvent]:
        while self._block.is_readable and self._step(is_final=is_final):
            pass
        if self._block.is_broken:
            self._events.extend(self._block.skip(is_final=is_final))
        events, self._events = self._events, []
        return events
