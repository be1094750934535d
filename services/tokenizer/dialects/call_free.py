"""The parser where tools are shown to the model and calls are forbidden: what it calls all the same reaches nobody."""

from __future__ import annotations

from collections.abc import Iterable

from services.tokenizer.dialects.dialect import StreamParser
from services.tokenizer.dialects.events import (
    CallDelta,
    CallFinished,
    CallStarted,
    Malformed,
    ParseEvent,
    Reasoning,
    Text,
    Withheld,
)


class CallFreeParser:
    """A dialect's ``StreamParser`` with every call ``Withheld``; a block that is no call stays text."""

    def __init__(self, parser: StreamParser) -> None:
        self._parser = parser
        self._is_in_call = False

    @property
    def num_held(self) -> int:
        """How many of the last characters are undecided."""
        return self._parser.num_held

    def push(self, text: str) -> list[ParseEvent]:
        """More text, of any length."""
        return self._without_calls(self._parser.push(text))

    def finish(self) -> list[ParseEvent]:
        """The answer is over."""
        return self._without_calls(self._parser.finish())

    def _without_calls(self, events: Iterable[ParseEvent]) -> list[ParseEvent]:
        kept: list[ParseEvent] = []
        for event in events:
            match event:
                case CallStarted():
                    self._is_in_call = True
                    kept.append(Withheld(event.name))
                case CallFinished():
                    self._is_in_call = False
                case Malformed() if self._is_in_call:
                    self._is_in_call = False
                case CallDelta():
                    pass
                case Reasoning() | Text() | Malformed() | Withheld():
                    kept.append(event)
        return kept
