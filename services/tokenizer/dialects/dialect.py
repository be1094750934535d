"""The operations of a tool dialect, together: writing and parsing must be inverse to each other.

Round-trip law: what ``write_calls`` makes of an assistant's text and calls is, byte for byte, what the model emitted
for them in the dialect's canonical form, and ``parser`` reads it back to the same text and calls. ``fence`` allows that
form and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from services.tokenizer.dialects.events import CallText, ParseEvent, ResultText, ToolSpec
from services.tokenizer.dialects.reasoning import ThinkTags
from services.tokenizer.fence.callable import CallableTool
from services.tokenizer.fence.calls import CallRules
from services.tokenizer.fence.program import ProgramDraft


class StreamParser(Protocol):
    """Reads one answer as it arrives. Never raises on any text; never emits half a marker."""

    @property
    def num_held(self) -> int:
        """How many of the last characters are undecided: text, thinking or markup. Counts outside of blocks only."""
        ...

    def push(self, text: str) -> list[ParseEvent]:
        """More text, of any length."""
        ...

    def finish(self) -> list[ParseEvent]:
        """The answer is over: what was held back, and what of it was left incomplete."""
        ...


class Dialect(Protocol):
    """One way of writing tools, calls and results."""

    name: str
    """As in ``--dialect`` and ListModels."""

    @property
    def think_tags(self) -> ThinkTags:
        """Around thinking."""
        ...

    def write_tools(self, tools: Sequence[ToolSpec]) -> str:
        """Instructions for the system message, for chat templates that know no tools."""
        ...

    def write_calls(self, text: str, calls: Sequence[CallText]) -> str:
        """An assistant turn without its reasoning: ``text`` (whitespace included) and the calls behind it."""
        ...

    def write_results(self, results: Sequence[ResultText]) -> str:
        """Consecutive results as the content of the turn that carries them."""
        ...

    def parser(
        self, tools: Sequence[ToolSpec], *, starts_in_reasoning: bool, calls_end_thinking: bool = True
    ) -> StreamParser:
        """A parser for one answer; ``tools`` decide argument types where the format does not mark them.

        ``calls_end_thinking``: a call that begins before the thinking is closed is one. Models forget to close it; one
        that cannot is taken at its word, and calls in its thinking are thoughts.
        """
        ...

    def fence(self, tools: Sequence[CallableTool], rules: CallRules) -> ProgramDraft | None:
        """The program of answers that call ``tools``, and no others, as ``write_calls`` writes them; None where there
        are no tools."""
        ...
