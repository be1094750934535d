"""Feeds a parser a text in pieces, checks the order of its events, and adds them up."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from services.tokenizer.dialects.dialect import Dialect
from services.tokenizer.dialects.events import (
    CallDelta,
    CallFinished,
    CallStarted,
    Malformed,
    ParseEvent,
    Reasoning,
    Text,
    ToolSpec,
    Withheld,
)


@dataclass
class Answer:
    """What a client makes of the events."""

    reasoning: str = ""
    text: str = ""
    started: list[CallStarted] = field(default_factory=list[CallStarted])
    arguments: list[str] = field(default_factory=list[str])
    """The deltas of each started call, concatenated."""
    finished: dict[int, str] = field(default_factory=dict[int, str])
    malformed: list[Malformed] = field(default_factory=list[Malformed])

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Name and arguments of every finished call, in order."""
        return [(call.name, self.finished[call.index]) for call in self.started if call.index in self.finished]


def pieces(text: str, cuts: Iterable[int]) -> list[str]:
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [text[start:end] for start, end in itertools.pairwise(ends)]


def parse(
    dialect: Dialect, parts: Sequence[str], tools: Sequence[ToolSpec] = (), *, starts_in_reasoning: bool = False
) -> list[ParseEvent]:
    parser = dialect.parser(tools, starts_in_reasoning=starts_in_reasoning)
    events = [event for part in parts for event in parser.push(part)]
    return [*events, *parser.finish()]


def add_up(events: Iterable[ParseEvent]) -> Answer:
    answer = Answer()
    for event in events:
        match event:
            case Reasoning(text):
                assert text
                assert not answer.text
                answer.reasoning += text
            case Text(text):
                assert text
                answer.text += text
            case CallStarted(index):
                assert index == len(answer.started)
                answer.started.append(event)
                answer.arguments.append("")
            case CallDelta(index, fragment):
                assert fragment
                assert index == len(answer.started) - 1
                assert index not in answer.finished
                answer.arguments[index] += fragment
            case CallFinished(index, arguments):
                assert index not in answer.finished
                assert arguments == answer.arguments[index]
                answer.finished[index] = arguments
            case Malformed():
                answer.malformed.append(event)
            case Withheld():
                raise AssertionError(event)
    return answer


def merged(events: Iterable[ParseEvent]) -> list[ParseEvent]:
    """Events without the chance of where the text was cut: neighbouring pieces are put together."""
    whole: list[ParseEvent] = []
    for event in events:
        match (whole[-1] if whole else None, event):
            case Reasoning(before), Reasoning(text):
                whole[-1] = Reasoning(before + text)
            case Text(before), Text(text):
                whole[-1] = Text(before + text)
            case CallDelta(index, before), CallDelta(_, fragment):
                whole[-1] = CallDelta(index, before + fragment)
            case _:
                whole.append(event)
    return whole


def answer_of(
    dialect: Dialect, text: str, tools: Sequence[ToolSpec] = (), *, starts_in_reasoning: bool = False
) -> Answer:
    """The answer in one piece, checked against the same one letter by letter."""
    whole = parse(dialect, [text], tools, starts_in_reasoning=starts_in_reasoning)
    letters = parse(dialect, list(text), tools, starts_in_reasoning=starts_in_reasoning)
    assert merged(letters) == merged(whole)
    return add_up(whole)
