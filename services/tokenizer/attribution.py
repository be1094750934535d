"""Finds which tokens' log-probabilities belong to the answer's text, not to its thinking or its calls.

A parser gives pieces of the text that it read and leaves out markup; it does not say where they lay. Where a request
asks for log-probabilities, the text is therefore given to the parser character by character: a piece then ends with
the last character that the parser doesn't hold back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from services.tokenizer.detokenize import PlacedLogprobs
from services.tokenizer.dialects.dialect import StreamParser
from services.tokenizer.dialects.events import Malformed, ParseEvent, Reasoning, Text
from services.tokenizer.events import TokenLogprobs

Attributed = tuple[ParseEvent, tuple[TokenLogprobs, ...]]


class AttributingParser:
    """A ``StreamParser`` of one choice whose text comes with the log-probabilities of the tokens that begin in it."""

    def __init__(self, parser: StreamParser | None) -> None:
        """``parser`` None: all text is answer text."""
        self._parser = parser
        self._placed: deque[PlacedLogprobs] = deque()
        self._has_logprobs = False
        self._pending = ""
        """Characters that no event has taken: held back by the parser, or markup."""
        self._start = 0
        """Where they begin in the whole text."""

    def push(self, text: str, placed: Sequence[PlacedLogprobs]) -> list[Attributed]:
        """More text. ``placed`` are of the tokens that begin in it; none at all where they were not asked for."""
        self._has_logprobs = self._has_logprobs or bool(placed)
        self._placed += placed
        if not self._has_logprobs:
            return [(event, ()) for event in self._parse(text)]
        found: list[Attributed] = []
        for character in text:
            self._pending += character
            events = self._parse(character)
            num_held = 0 if self._parser is None else self._parser.num_held
            found += [self._attributed(event, num_held) for event in events]
        return found

    def finish(self) -> list[Attributed]:
        """The answer is over: what was held back."""
        return [] if self._parser is None else [self._attributed(event, 0) for event in self._parser.finish()]

    def _parse(self, text: str) -> list[ParseEvent]:
        if not text:
            return []
        return [Text(text)] if self._parser is None else self._parser.push(text)

    def _attributed(self, event: ParseEvent, num_held: int) -> Attributed:
        match event:
            case Text() | Malformed():
                first, last = self._place_of(event.text, num_held)
                self._take(first)
                return event, self._take(last - first)
            case Reasoning():
                self._take(self._place_of(event.text, num_held)[1])
            case _:
                self._take(len(self._pending))
        return event, ()

    def _place_of(self, text: str, num_held: int) -> tuple[int, int]:
        """Where the piece begins and ends in what is pending."""
        end = len(self._pending) - num_held
        if self._pending.endswith(text, 0, end):
            return end - len(text), end
        # Markup follows it, and all of that came with it.
        found = self._pending.rfind(text)
        return (found, found + len(text)) if found >= 0 else (0, len(self._pending))

    def _take(self, num_characters: int) -> tuple[TokenLogprobs, ...]:
        """Move on; the log-probabilities of the tokens that begin in these characters."""
        self._start += num_characters
        self._pending = self._pending[num_characters:]
        taken: list[TokenLogprobs] = []
        while self._placed and self._placed[0].start < self._start:
            taken.append(self._placed.popleft().logprobs)
        return tuple(taken)
