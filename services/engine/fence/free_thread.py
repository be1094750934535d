"""In free text, outside of any program."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.engine.fence.allowed import Allowed
from services.engine.fence.compiled import CompiledFence
from services.engine.fence.text_automaton import BEGINNING, Place
from services.engine.fence.thread import Behind, Thread
from services.engine.fence.tokens import Row


@dataclass(slots=True)
class FreeThread:
    """Free text, in which the trigger may come."""

    fence: CompiledFence
    place: Place = BEGINNING
    begun: bytes | None = None
    """All of the answer so far, while it may be the beginning of a bare lead-in."""
    thinking: Thread | None = None
    """What the model may still open: nothing but whitespace has come. Later, its tag is text."""

    def allowed(self) -> Allowed:
        """One cached row."""
        found = self.fence.free_masks.get((self.place, self.begun))
        if found is None:
            found = self.fence.free_masks[self.place, self.begun] = self.fence.mask_of(self._row())
        return found

    def push(self, token_id: int) -> Behind | None:
        """Behind the trigger, the program's readings; the end of the answer leaves none."""
        fence = self.fence
        if token_id in fence.tokens.eos_ids:
            return []
        if self.thinking is not None and token_id == fence.reasoning_start_id:
            return [self.thinking]
        if token_id == fence.trigger_id:
            return [fence.structure.start()] if self._is_behind_lead_in() else None
        if token_id in fence.program.marker_ids:
            return None
        text = fence.tokens.texts[token_id]
        if not text:
            return [FreeThread(fence, thinking=self.thinking)]
        bare = self._bare_surplus(text)
        if bare is not None:
            return fence.structure.begin(fence.structure.expander.start, bare)
        step = fence.free_text.walk(self.place, text)
        if step is None:
            return None
        if step.surplus is not None:
            return fence.structure.begin(fence.start_behind(step), step.surplus)
        begun = None if self.begun is None else self.begun + text
        if begun is not None and not (fence.bare_lead_in or b"").startswith(begun):
            begun = None
        return [FreeThread(fence, step.place, begun, self.thinking if text.isspace() else None)]

    def clone(self) -> Thread:
        """Nothing changes in it."""
        return self

    def _is_behind_lead_in(self) -> bool:
        return self.fence.free_text.is_at_end(self.place) or self.begun == (self.fence.bare_lead_in or b"")

    def _bare_surplus(self, text: bytes) -> bytes | None:
        """What follows a trigger that is text only, where it begins the answer and ends in ``text``."""
        if self.begun is None or self.fence.trigger_id is not None or not self.fence.bare_lead_in:
            return None
        missing = self.fence.bare_lead_in[len(self.begun) :]
        return text[len(missing) :] if text.startswith(missing) else None

    def _row(self) -> Row:
        fence = self.fence
        found = fence.free_text.at(self.place)
        row = found.row.copy()
        flags = row.view(np.uint8)
        start = fence.structure.expander.start
        legal: dict[int, bool] = {
            token_id: fence.structure.takes(fence.start_behind(step), step.surplus)
            for token_id, step in found.steps.items()
            if step.surplus is not None
        }
        if self.begun is not None and fence.bare_lead_in and fence.trigger_id is None:
            missing = fence.bare_lead_in[len(self.begun) :]
            for token_id in fence.tokens.with_prefix(missing):
                legal[token_id] = fence.structure.takes(start, fence.tokens.texts[token_id][len(missing) :])
        if fence.trigger_id is not None and self._is_behind_lead_in():
            legal[fence.trigger_id] = True
        for token_id, is_legal in legal.items():
            bit = np.uint8(1 << (token_id & 7))
            flags[token_id >> 3] = flags[token_id >> 3] | bit if is_legal else flags[token_id >> 3] & ~bit
        return row
