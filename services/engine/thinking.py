"""Whether an output is inside the model's thinking, by the tokens that open and close it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """Ids that open and close the thinking; it is closed for the model after ``budget_tokens`` (None: never)."""

    start_id: int
    end_id: int
    budget_tokens: int | None = None


class Thinking:
    """One choice's. A prompt may have opened it, as generation prompts of some templates do."""

    def __init__(self, marks: ThinkingMarks, prompt_ids: bytes) -> None:
        """``prompt_ids`` are int32 little-endian."""
        self._marks = marks
        self._num_tokens = 0
        self.is_open = _is_left_open(array("i", prompt_ids), marks)

    @property
    def end_id(self) -> int:
        """The token that closes it."""
        return self._marks.end_id

    @property
    def is_spent(self) -> bool:
        """It is open, and has all the tokens that it may have."""
        budget = self._marks.budget_tokens
        return self.is_open and budget is not None and self._num_tokens >= budget

    def push(self, token_id: int) -> None:
        """Add a token of the output."""
        if self.is_open and token_id == self._marks.end_id:
            self.is_open = False
        elif self.is_open:
            self._num_tokens += 1
        elif token_id == self._marks.start_id:
            self.is_open = True


def _is_left_open(ids: array[int], marks: ThinkingMarks) -> bool:
    # From the end, and not far: what earlier turns thought is closed, or no longer there.
    for token_id in reversed(ids):
        if token_id == marks.start_id:
            return True
        if token_id == marks.end_id:
            return False
    return False
