"""Puts what the model wrote where the template wrote its turns anew, and remembers what was decided about each."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from services.tokenizer.history.record import Record
from services.tokenizer.prompt.layout import Layout, Turn
from services.tokenizer.prompt.spellings import Ranges
from services.tokenizer.rope.prompt_text import ExactSpan, PromptText

_MAX_CONVERSATIONS = 1024


class Splices:
    """A rendering on its way to a prompt: turns are taken or replaced from the first to the last."""

    def __init__(self, text: str, literals: Ranges) -> None:
        self._text = text
        self._literals = literals
        self._parts: list[str] = []
        self._num_chars = 0  # of the parts
        self._position = 0  # in the rendering: what is before it is in the parts
        self._exact: list[ExactSpan] = []
        self._turns: list[Turn] = []
        self.moved: list[tuple[int, int]] = []
        """(character of the rendering, by how much what follows it has moved)."""

    def splice(self, turn: Turn, record: Record) -> None:
        """Replace a turn's text by what the record has, ids included."""
        self._take(self._text[self._position : turn.start])
        start = self._num_chars
        self._take(record.text)
        self._exact.append(ExactSpan(start, self._num_chars, record.ids))
        self._position = turn.end
        self._turns.append(turn)
        self.moved.append((turn.end, self._num_chars - turn.end))

    def head(self, end: int) -> PromptText:
        """The prompt up to character ``end`` of the rendering, which lies behind all spliced turns."""
        text = "".join((*self._parts, self._text[self._position : end]))
        return PromptText(text, self._moved_literals(end), tuple(self._exact))

    def whole(self) -> PromptText:
        """The prompt."""
        return self.head(len(self._text))

    def _take(self, part: str) -> None:
        self._parts.append(part)
        self._num_chars += len(part)

    def _moved_literals(self, end: int) -> Ranges:
        """Literal ranges where they now stand; those inside a spliced turn are gone with its text."""
        ranges: list[tuple[int, int]] = []
        for start, stop in self._literals:
            if stop > end:
                break
            if any(turn.start < stop and start < turn.end for turn in self._turns):
                continue
            by = next((moved_by for behind, moved_by in reversed(self.moved) if behind <= start), 0)
            ranges.append((start + by, stop + by))
        return tuple(ranges)


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of a conversation's turns, one entry each, up to the end of the last one in ``text``."""

    cache_scope: str
    text: str
    literals: Ranges
    records: tuple[Record | None, ...]


class Decisions:
    """Of recent conversations. A turn that was settled once stays so: another answer would fork the prompt there.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._decided: OrderedDict[str, Decided] = OrderedDict()

    def reusable(self, anchor: str, cache_scope: str, layout: Layout, literals: Ranges) -> tuple[Record | None, ...]:
        """For the first turns of ``layout``, the record each got, None for those without; as far as that is known."""
        with self._lock:
            decided = self._decided.get(anchor)
        if decided is None or decided.cache_scope != cache_scope or not layout.text.startswith(decided.text):
            return ()
        end = len(decided.text)
        if tuple(r for r in literals if r[0] < end) != decided.literals:
            return ()
        turns = [turn for turn in layout.turns if turn.end <= end]
        return decided.records if len(turns) == len(decided.records) else ()

    def put(
        self, anchor: str, cache_scope: str, layout: Layout, literals: Ranges, records: Sequence[Record | None]
    ) -> None:
        """Remember what became of all of a layout's turns."""
        if not layout.turns:
            return
        end = layout.turns[-1].end
        kept = tuple(r for r in literals if r[0] < end)
        with self._lock:
            self._decided[anchor] = Decided(cache_scope, layout.text[:end], kept, tuple(records))
            self._decided.move_to_end(anchor)
            if len(self._decided) > _MAX_CONVERSATIONS:
                self._decided.popitem(last=False)
