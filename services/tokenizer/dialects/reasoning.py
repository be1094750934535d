"""Separates ``<think>…</think>`` from the answer: the first stage of every parser.

Thinking opens at the answer's beginning only; a tag mentioned later is text. It ends at its closing tag or, unclosed,
where a tool block begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from services.tokenizer.dialects.markers import Markers


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """A dialect's tags with the whitespace that its canonical form puts around them.

    That whitespace belongs to the tags and not to the thinking or the answer; less of it is accepted.
    """

    opening: str
    closing: str


class _Place(Enum):
    BEFORE = auto()
    INSIDE = auto()
    BEHIND = auto()


@dataclass(frozen=True, slots=True)
class Separated:
    """New text of both kinds; thinking comes before the answer. Either may be empty."""

    reasoning: str
    answer: str


class ReasoningStage:
    """Takes an answer as it arrives, gives its thinking and the rest."""

    def __init__(
        self,
        tags: ThinkTags,
        tool_starts: Sequence[str],
        *,
        starts_in_reasoning: bool,
        calls_end_thinking: bool = True,
    ) -> None:
        """``tool_starts`` end unclosed thinking, unless ``calls_end_thinking`` is false.

        They should be more than the bare tag (a tag with the first characters of what must follow it), so that thinking
        *about* the tag goes on; they are left in the answer.
        """
        tool_starts = tool_starts if calls_end_thinking else ()
        self._openings = _with_less_space(tags.opening)
        self._closings = Markers([*_with_less_space(tags.closing), *tool_starts])
        self._tool_starts = frozenset(tool_starts)
        self._place = _Place.BEFORE
        self._starts_in_reasoning = starts_in_reasoning
        self._held = ""

    @property
    def is_over(self) -> bool:
        """The thinking has ended, or there was none; from here on text passes unchanged."""
        return self._place is _Place.BEHIND

    @property
    def num_held(self) -> int:
        """How many of the last characters have not been given yet."""
        return len(self._held)

    def push(self, text: str) -> Separated:
        """More text, of any length."""
        return self._read(text, is_final=False)

    def finish(self) -> Separated:
        """What was held back."""
        return self._read("", is_final=True)

    def _read(self, text: str, *, is_final: bool) -> Separated:
        self._held += text
        if self._place is _Place.BEFORE:
            self._open(is_final=is_final)
        if self._place is _Place.INSIDE:
            split = self._closings.split(self._held, is_final=is_final)
            self._held = split.after
            if split.marker is None:
                return Separated(split.before, "")
            self._place = _Place.BEHIND
            if split.marker in self._tool_starts:
                self._held = split.marker + split.after
            return Separated(split.before, self._release())
        if self._place is _Place.BEHIND:
            return Separated("", self._release())
        return Separated("", "")

    def _open(self, *, is_final: bool) -> None:
        """Decide what the answer starts with, once that is certain. A tag repeated by the model is dropped."""
        begun = self._held.lstrip()
        if not is_final:
            undecided = any(len(opening) > len(begun) and opening.startswith(begun) for opening in self._openings)
            if undecided:
                return
        found = max((opening for opening in self._openings if begun.startswith(opening)), key=len, default=None)
        if found is not None:
            self._held = begun[len(found) :]
        self._place = _Place.INSIDE if found is not None or self._starts_in_reasoning else _Place.BEHIND

    def _release(self) -> str:
        released, self._held = self._held, ""
        return released


def _with_less_space(tag: str) -> list[str]:
    """``tag`` with every smaller amount of its outer whitespace."""
    core = tag.strip()
    start = tag.index(core)
    end = start + len(core)
    return [tag[first:last] for first in range(start + 1) for last in range(end, len(tag) + 1)]
