"""The stages that every dialect's parser has: thinking, then text in which tool blocks begin.

What is answer text: everything outside thinking and blocks, exactly as written, except
- the dialect's lead-in, the whitespace that its canonical form writes before a block: it belongs to the block, as far
  as it is there (``write_calls`` adds it again);
- whitespace between blocks, and after the last one.
Prose behind a block is kept with the whitespace before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from services.tokenizer.dialects.events import CallStarted, ParseEvent, Reasoning, Text
from services.tokenizer.dialects.markers import Markers
from services.tokenizer.dialects.reasoning import ReasoningStage


class BlockReader(Protocol):
    """Reads one tool block, from behind its opening marker to its end."""

    @property
    def rest(self) -> str | None:
        """What followed the block, once it is over; None inside it."""
        ...

    def push(self, text: str) -> list[ParseEvent]:
        """More of the block; not called again once ``rest`` is there."""
        ...

    def finish(self) -> list[ParseEvent]:
        """The answer is over. What is incomplete becomes ``Malformed``; ``rest`` is set."""
        ...


OpenBlock = Callable[[str, int], BlockReader]
"""Given the opening marker as spelt (without the lead-in) and the index of the next call."""


def block_starts(openings: Sequence[str], lead_in: str, *, ignore_case: bool = False) -> Markers:
    """Markers for ``AnswerParser``: each opening, and with all or the end of ``lead_in`` before it."""
    leads = [lead_in[start:] for start in range(len(lead_in) + 1)]
    return Markers([lead + opening for lead in leads for opening in openings], ignore_case=ignore_case)


class AnswerParser:
    """A dialect's ``StreamParser``; the dialect gives the reader of its blocks."""

    def __init__(
        self, reasoning: ReasoningStage, starts: Markers, open_block: OpenBlock, *, strays: Sequence[str] = ()
    ) -> None:
        """``starts`` as from ``block_starts``. ``strays`` are closing tags that, behind a block, belong to nothing:
        they are dropped there."""
        self._reasoning = reasoning
        self._starts = starts
        self._starts_and_strays = starts.with_more(strays)
        self._open_block = open_block
        self._block: BlockReader | None = None
        self._num_calls = 0
        self._held = ""
        self._has_blocks = False
        self._is_behind_block = False
        """Nothing but whitespace has come since the last block."""

    @property
    def num_held(self) -> int:
        """How many of the last characters are undecided, outside of a block."""
        return self._reasoning.num_held + len(self._held)

    def push(self, text: str) -> list[ParseEvent]:
        """More text, of any length."""
        separated = self._reasoning.push(text)
        return [*_thought(separated.reasoning), *self._read(separated.answer, is_final=False)]

    def finish(self) -> list[ParseEvent]:
        """The answer is over: what was held back, and ``Malformed`` for a block that is not complete."""
        separated = self._reasoning.finish()
        return [*_thought(separated.reasoning), *self._read(separated.answer, is_final=True)]

    def _read(self, text: str, *, is_final: bool) -> list[ParseEvent]:
        events: list[ParseEvent] = []
        pending: str | None = text
        while pending is not None:
            if self._block is None:
                pending = self._read_text(pending, events, is_final=is_final)
            else:
                pending = self._read_block(self._block, pending, events, is_final=is_final)
        return events

    def _read_text(self, text: str, events: list[ParseEvent], *, is_final: bool) -> str | None:
        """Emit what is certainly text; return what follows the opening marker of a block, if there is one."""
        markers = self._starts_and_strays if self._has_blocks else self._starts
        split = markers.split(self._held + text, is_final=is_final)
        before = split.before
        if self._is_behind_block and not before.strip():
            # Only whitespace so far: text's, if text follows, else nobody's.
            if split.marker is None:
                self._held = "" if is_final else before + split.after
                return None
            before = ""
        if before:
            events.append(Text(before))
            self._is_behind_block = False
        if split.marker is None:
            self._held = split.after
            return None
        self._held = ""
        if self._starts.split(split.marker, is_final=True).marker is None:
            return split.after
        self._block = self._open_block(split.marker.lstrip(), self._num_calls)
        return split.after

    def _read_block(self, block: BlockReader, text: str, events: list[ParseEvent], *, is_final: bool) -> str | None:
        found = block.push(text)
        if is_final and block.rest is None:
            found = [*found, *block.finish()]
        events.extend(found)
        started = [event.index for event in found if isinstance(event, CallStarted)]
        self._num_calls = max([self._num_calls, *(index + 1 for index in started)])
        if block.rest is None:
            return None
        self._block = None
        self._has_blocks = self._is_behind_block = True
        return block.rest


def _thought(text: str) -> list[ParseEvent]:
    return [Reasoning(text)] if text else []
