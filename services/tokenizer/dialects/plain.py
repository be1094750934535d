"""The parser where no tools may be called: thinking is separated, everything else is text, markup included."""

from __future__ import annotations

from services.tokenizer.dialects.events import ParseEvent, Reasoning, Text
from services.tokenizer.dialects.reasoning import ReasoningStage, Separated, ThinkTags

THINK = ThinkTags(opening="<think>\n", closing="\n</think>\n\n")
"""As most models write it; less whitespace is accepted."""


class PlainParser:
    """A ``StreamParser`` without calls."""

    def __init__(self, *, starts_in_reasoning: bool) -> None:
        self._reasoning = ReasoningStage(THINK, (), starts_in_reasoning=starts_in_reasoning)

    @property
    def num_held(self) -> int:
        """How many of the last characters are undecided."""
        return self._reasoning.num_held

    def push(self, text: str) -> list[ParseEvent]:
        """More text, of any length."""
        return _events(self._reasoning.push(text))

    def finish(self) -> list[ParseEvent]:
        """What was held back."""
        return _events(self._reasoning.finish())


def _events(separated: Separated) -> list[ParseEvent]:
    events: list[ParseEvent] = []
    if separated.reasoning:
        events.append(Reasoning(separated.reasoning))
    if separated.answer:
        events.append(Text(separated.answer))
    return events
