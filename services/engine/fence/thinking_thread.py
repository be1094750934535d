"""In the model's thinking, before a program and before the free text in which one may start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.engine.fence.allowed import Allowed, Free, Mask
from services.engine.fence.compile import CompiledFence
from services.engine.fence.text_automaton import BEGINNING, Place
from services.engine.fence.thread import Behind, Thread


@dataclass(frozen=True, slots=True)
class ThinkingThread:
    """Any text, up to the token that ends the thinking. What spells a trigger here starts nothing."""

    fence: CompiledFence
    behind: Behind
    """What begins there; nothing of it may change when it is pushed."""
    place: Place = BEGINNING

    def allowed(self) -> Allowed:
        """One cached row."""
        fence = self.fence
        found = fence.thinking_masks.get(self.place)
        if found is None:
            row = fence.thinking_text.at(self.place).row
            is_free = np.array_equal(row, fence.tokens.full_row)
            found = fence.thinking_masks[self.place] = Free() if is_free else Mask(row)
        return found

    def push(self, token_id: int) -> Behind | None:
        """The end of the answer leaves no reading, if it may end here."""
        fence = self.fence
        if token_id == fence.reasoning_end_id:
            return self.behind
        allowed = self.allowed()
        if isinstance(allowed, Mask) and not int(allowed.row[token_id >> 5]) >> (token_id & 31) & 1:
            return None
        if token_id in fence.tokens.eos_ids:
            return []
        text = fence.tokens.texts[token_id]
        step = fence.thinking_text.walk(self.place, text) if text else None
        return [ThinkingThread(fence, self.behind, BEGINNING if step is None else step.place)]

    def clone(self) -> Thread:
        """Nothing changes in it."""
        return self
