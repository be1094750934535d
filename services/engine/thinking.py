"""Whether an output is inside the model's thinking, by the tokens that open and close it."""

from __future__ import annotations

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
        self.is_open = _last(prompt_ids, marks.start_id) > _last(prompt_ids, marks.end_id)

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


def _last(ids: bytes, token_id: int) -> int:
    """Where ``token_id`` was last, in bytes; -1: nowhere. As quick as a search for bytes, in prompts of any length."""
    spelling = token_id.to_bytes(4, "little", signed=True)
    found = ids.rfind(spelling)
    while found > 0 and found % 4:
        # Bytes of two neighbours.
        found = ids.rfind(spelling, 0, found + 3)
    return found
