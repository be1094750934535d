"""In the model's thinking, before a program and before the free text in which one may start."""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.fence.allowed import Allowed
from services.engine.fence.compiled import CompiledFence
from services.engine.fence.masking import is_allowed
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
            found = fence.thinking_masks[self.place] = fence.mask_of(fence.thinking_text.at(self.place).row)
        return found

    def push(self, token_id: int) -> Behind | None:
        """The end of the answer leaves no reading, if it may end here."""
        fence = self.fence
        if token_id == fence.reasoning_end_id:
            return self.behind
        if not is_allowed(self.allowed(), token_id):
            return None
        if token_id in fence.tokens.eos_ids:
            return []
        text = fence.tokens.texts[token_id]
        step = fence.thinking_text.walk(self.place, text) if text else None
        return [ThinkingThread(fence, self.behind, BEGINNING if step is None else step.place)]

    def clone(self) -> Thread:
        """Nothing changes in it."""
        return self
