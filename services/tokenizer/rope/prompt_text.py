"""A rendered prompt and what the renderer knows about its parts: the encoder's input."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.int32]
"""Ids, little-endian, one dimension; never written to once they have been handed over."""


@dataclass(frozen=True, slots=True, eq=False)
class ExactSpan:
    """Characters ``[start, end)`` whose ids are known, as of a turn that was sampled."""

    start: int
    end: int
    ids: TokenIds

    def same_as(self, other: "ExactSpan") -> bool:
        """Whether both put the same ids at the same place."""
        if self.start != other.start or self.end != other.end:
            return False
        return self.ids is other.ids or np.array_equal(self.ids, other.ids)


@dataclass(frozen=True, slots=True, eq=False)
class PromptText:
    """The whole prompt. Raises ValueError when ranges are empty, out of order, or outside the text."""

    text: str
    literals: tuple[tuple[int, int], ...] = ()
    """Ranges of characters in which the spellings of added tokens are plain text: what users, tools and files said."""
    exact: tuple[ExactSpan, ...] = ()
    """Spans that keep the ids they are given. Their ends separate: nothing merges, and no token matches, across."""

    def __post_init__(self) -> None:
        _check(self.literals, len(self.text))
        _check(tuple((span.start, span.end) for span in self.exact), len(self.text))


def shared_markup(old: PromptText, new: PromptText) -> int:
    """The number of leading characters for which both prompts have the same literal ranges and exact spans."""
    shared = min(len(old.text), len(new.text))
    if old.literals != new.literals:
        shared = min(shared, _first_literal_difference(old.literals, new.literals))
    for index in range(max(len(old.exact), len(new.exact))):
        spans = [prompt.exact[index] for prompt in (old, new) if index < len(prompt.exact)]
        if len(spans) == 1 or not spans[0].same_as(spans[1]):
            return min(shared, *(span.start for span in spans))
    return shared


def _first_literal_difference(old: tuple[tuple[int, int], ...], new: tuple[tuple[int, int], ...]) -> int:
    for (old_start, old_end), (new_start, new_end) in zip(old, new, strict=False):
        if old_start != new_start:
            return min(old_start, new_start)
        if old_end != new_end:
            return min(old_end, new_end)
    common = min(len(old), len(new))
    longer = old if len(old) > len(new) else new
    return longer[common][0]


def _check(ranges: tuple[tuple[int, int], ...], num_chars: int) -> None:
    previous = 0
    for start, end in ranges:
        if not previous <= start < end <= num_chars:
            raise ValueError(f"characters {start} to {end} are no range of {num_chars} that follows {previous}")
        previous = end
