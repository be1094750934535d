"""Inside raw text."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from services.engine.fence.allowed import Allowed, Mask
from services.engine.fence.compiled import CompiledFence, CompiledRaw
from services.engine.fence.text_automaton import BEGINNING, Place, Step
from services.engine.fence.thread import Behind, Thread
from services.engine.fence.tokens import Row
from services.engine.fence.trie import Opening, TrieNode


@dataclass(slots=True)
class RawThread:
    """Inside raw text, or in the joint before it."""

    fence: CompiledFence
    raw: CompiledRaw
    opening: Opening
    written: int = 0
    """Bytes of the joint that are there."""
    place: Place = BEGINNING
    num_chars: int = 0
    """All of the text's, what may be its terminator's included."""
    masks: dict[tuple[int, Place], Mask] = field(default_factory=dict[tuple[int, Place], Mask])
    """By (written, place), where lengths don't matter; shared with what the thread becomes."""

    def allowed(self) -> Allowed:
        """One cached row, while the length is far from its limits."""
        if self._is_near_limit():
            return Mask(self._row())
        found = self.masks.get((self.written, self.place))
        if found is None:
            found = self.masks[self.written, self.place] = Mask(self._row())
        return found

    def push(self, token_id: int) -> Behind | None:
        """Exactly what ``allowed`` says, without its row."""
        text = self.fence.tokens.texts[token_id]
        if not text:
            follower = self._follower()
            if follower is None or token_id not in follower.ids:
                return None
            behind = self.fence.structure.behind(follower, token_id)
            return [] if behind is None else [behind]
        joint = self.opening.joint[self.written :]
        if joint:
            if joint.startswith(text):
                return [replace(self, written=self.written + len(text))]
            if not text.startswith(joint):
                return None
            text = text[len(joint) :]
        step = self.raw.automaton.walk(self.place, text)
        if step is None or not self._fits(step):
            return None
        if step.surplus is not None:
            return self.fence.structure.begin(self.opening.rest, self._surplus(step))
        num_chars = self.num_chars
        if self.raw.counts_chars:
            num_chars += step.num_chars + self.raw.automaton.pending_chars(step.place)
        return [replace(self, written=len(self.opening.joint), place=step.place, num_chars=num_chars)]

    def clone(self) -> Thread:
        """Nothing changes in it."""
        return self

    def _is_near_limit(self) -> bool:
        raw = self.raw
        if not raw.counts_chars:
            return False
        if self.num_chars < raw.min_chars + raw.automaton.end_chars:
            return True
        return raw.max_chars is not None and self.num_chars + self.fence.tokens.max_chars > raw.max_chars

    def _row(self) -> Row:
        tokens = self.fence.tokens
        joint = self.opening.joint[self.written :]
        if joint:
            longer = [token_id for token_id in tokens.with_prefix(joint) if self._takes(token_id)]
            return tokens.row([*longer, *tokens.beginnings(joint)])
        found = self.raw.automaton.at(self.place)
        row = found.row
        most = self.raw.max_chars
        if most is not None and self.num_chars + tokens.max_chars > most:
            row = self.raw.automaton.row_within(self.place, most - self.num_chars)
        row = row.copy()
        flags = row.view(np.uint8)
        for token_id, step in found.steps.items():
            if step.surplus is not None:
                bit = np.uint8(1 << (token_id & 7))
                if self._takes(token_id):
                    flags[token_id >> 3] |= bit
                else:
                    flags[token_id >> 3] &= ~bit
        follower = self._follower()
        if follower is not None:
            for token_id in follower.ids:
                flags[token_id >> 3] |= np.uint8(1 << (token_id & 7))
        return row

    def _takes(self, token_id: int) -> bool:
        """Of a token that may end the text, or that begins in the joint."""
        text = self.fence.tokens.texts[token_id][len(self.opening.joint) - self.written :]
        step = self.raw.automaton.walk(self.place, text)
        if step is None or not self._fits(step):
            return False
        return step.surplus is None or self.fence.structure.takes(self.opening.rest, self._surplus(step))

    def _fits(self, step: Step) -> bool:
        if not self.raw.counts_chars:
            return True
        num_chars = self.num_chars + step.num_chars
        if self.raw.max_chars is not None and num_chars > self.raw.max_chars:
            return False
        return step.surplus is None or num_chars >= self.raw.min_chars

    def _surplus(self, step: Step) -> bytes:
        return self.raw.shared + (step.surplus or b"")

    def _follower(self) -> TrieNode | None:
        """What the text may end with here, as a token of its own."""
        if not self.raw.is_closed or self.written < len(self.opening.joint):
            return None
        num_chars = self.num_chars - self.raw.automaton.end_chars
        is_short = self.raw.counts_chars and num_chars < self.raw.min_chars
        if is_short or not self.raw.automaton.is_at_end(self.place):
            return None
        return self.fence.structure.at((self.opening.rest,))
