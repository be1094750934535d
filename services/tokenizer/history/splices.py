"""Puts what the model wrote where the template wrote its turns anew, and remembers what was decided about each."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from services.tokenizer.history.record import Record
from services.tokenizer.prompt.layout import Layout, Turn
from services.tokenizer.prompt.spellings import Ranges
from services.tokenizer.rope.prompt_text import ExactSpan, PromptText, TokenIds
from services.vocabulary import Vocabulary

_MAX_CONVERSATIONS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Spliced:
    """What the model wrote, in place of the first ``num_chars`` characters of a turn."""

    num_chars: int
    text: str
    ids: TokenIds


def splice_turn(record: Record, turn: Turn) -> Spliced:
    """A whole turn."""
    return Spliced(turn.end - turn.start, record.text, record.ids)


def splice_thought(thought: Record, text: str, vocabulary: Vocabulary) -> Spliced | None:
    """The beginning of a turn, as far as its ``text`` is what the model wrote; None where the thinking is not in it."""
    pairs = enumerate(zip(thought.text, text, strict=False))
    num_common = next((at for at, (one, other) in pairs if one != other), min(len(thought.text), len(text)))
    if num_common < thought.text.find(thought.reasoning) + len(thought.reasoning.rstrip()):
        return None
    num_left, spelt = len(text[:num_common].encode()), list[bytes]()
    for token_id in thought.ids.tolist():
        spelt.append(vocabulary.spell(token_id))
        num_left -= len(spelt[-1])
        if num_left < 0:
            spelt.pop()
            break
    exact = b"".join(spelt).decode(errors="replace")
    if not exact or not text.startswith(exact):
        return None
    return Spliced(len(exact), exact, thought.ids[: len(spelt)])


class Splices:
    """A rendering on its way to a prompt: turns are taken or replaced from the first to the last."""

    def __init__(self, text: str, literals: Ranges) -> None:
        self._text = text
        self._literals = literals
        self._parts: list[str] = []
        self._num_chars = 0  # of the parts
        self._position = 0  # in the rendering: what is before it is in the parts
        self._exact: list[ExactSpan] = []
        self._replaced: list[tuple[int, int]] = []
        self.moved: list[tuple[int, int]] = []
        """(character of the rendering, by how much what follows it has moved)."""

    def splice(self, turn: Turn, spliced: Spliced) -> None:
        """Replace a turn's beginning by what the model wrote, ids included."""
        self._take(self._text[self._position : turn.start])
        start, end = self._num_chars, turn.start + spliced.num_chars
        self._take(spliced.text)
        self._exact.append(ExactSpan(start, self._num_chars, spliced.ids))
        self._position = end
        self._replaced.append((turn.start, end))
        self.moved.append((end, self._num_chars - end))

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
        """Literal ranges where they now stand; what was replaced is gone."""
        ranges: list[tuple[int, int]] = []
        for start, stop in self._literals:
            if stop > end:
                break
            start = max((last for first, last in self._replaced if first < stop and start < last), default=start)
            if start >= stop:
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
    spliced: tuple[Spliced | None, ...]


class Decisions:
    """Of recent conversations. A turn that was settled once stays so: another answer would fork the prompt there.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._decided: OrderedDict[str, Decided] = OrderedDict()

    def reusable(self, anchor: str, cache_scope: str, layout: Layout, literals: Ranges) -> tuple[Spliced | None, ...]:
        """For the first turns of ``layout``, what each got, None for those without; as far as that is known."""
        with self._lock:
            decided = self._decided.get(anchor)
        if decided is None or decided.cache_scope != cache_scope or not layout.text.startswith(decided.text):
            return ()
        end = len(decided.text)
        if tuple(r for r in literals if r[0] < end) != decided.literals:
            return ()
        turns = [turn for turn in layout.turns if turn.end <= end]
        return decided.spliced if len(turns) == len(decided.spliced) else ()

    def put(
        self, anchor: str, cache_scope: str, layout: Layout, literals: Ranges, spliced: Sequence[Spliced | None]
    ) -> None:
        """Remember what became of all of a layout's turns."""
        if not layout.turns:
            return
        end = layout.turns[-1].end
        kept = tuple(r for r in literals if r[0] < end)
        with self._lock:
            self._decided[anchor] = Decided(cache_scope, layout.text[:end], kept, tuple(spliced))
            self._decided.move_to_end(anchor)
            if len(self._decided) > _MAX_CONVERSATIONS:
                self._decided.popitem(last=False)
