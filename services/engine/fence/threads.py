"""The ways in which an answer so far may be read: structure, raw text, a value, free text.

Mostly there is one. Where two are possible (a value may be over or go on; two tools have one beginning), each goes on
by itself until a token fits only one of them. Threads are never changed by what they are pushed, matchers apart, which
a clone copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import llguidance
import numpy as np

from services.engine.fence import json_text
from services.engine.fence.allowed import Allowed, Free, Mask
from services.engine.fence.compile import CompiledFence, CompiledRaw
from services.engine.fence.expansion import Rest
from services.engine.fence.open_keys import OpenKeys
from services.engine.fence.schema import Strictness
from services.engine.fence.text_automaton import BEGINNING, Place, Step
from services.engine.fence.tokens import Row
from services.engine.fence.trie import Opening, TrieNode
from services.engine.fence.values import CompiledValue

_CANONICAL: list[list[int]] = json_text.canonical_table().tolist()
_UNFINISHED: list[bool] = json_text.unfinished_numbers().tolist()
_WRONG = len(_CANONICAL) - 1
_MAX_TAIL_BYTES = 64
_MAX_LOOKAHEAD = 3
_MAX_SUSPECTS = 16


class Thread(Protocol):
    """One reading."""

    def allowed(self) -> Allowed:
        """The tokens with which it goes on."""
        ...

    def push(self, token_id: int) -> list[Thread] | None:
        """The readings behind one more token; None if that does not fit. The thread is used up."""
        ...

    def clone(self) -> Thread:
        """One that can be pushed by itself."""
        ...


def begin(fence: CompiledFence, rest: Rest, surplus: bytes = b"") -> list[Thread]:
    """The readings of what follows, with ``surplus`` of it written; none if it cannot begin so."""
    node = fence.structure.at((rest,), surplus)
    return [] if node is None else _arrive(fence, node)


def _arrive(fence: CompiledFence, node: TrieNode) -> list[Thread]:
    found: list[Thread] = []
    if node.ids:
        found.append(StructureThread(fence, node))
    found.extend(_open(fence, opening) for opening in node.openings)
    for rest in node.resumed:
        found.extend(begin(fence, rest))
    if node.is_end and not fence.ends_with_eos:
        found.append(FreeThread(fence))
    return found


def _open(fence: CompiledFence, opening: Opening) -> Thread:
    opened = fence.open(opening)
    if isinstance(opened, CompiledRaw):
        return RawThread(fence, opened, opening)
    return ValueThread(fence, opened, opening)


@dataclass(slots=True)
class StructureThread:
    """Between marks and values."""

    fence: CompiledFence
    node: TrieNode

    def allowed(self) -> Allowed:
        """Few ids."""
        return self.node.allowed

    def push(self, token_id: int) -> list[Thread] | None:
        """The end of the answer leaves no reading."""
        if token_id not in self.node.ids:
            return None
        behind = self.fence.structure.behind(self.node, token_id)
        return [] if behind is None else _arrive(self.fence, behind)

    def clone(self) -> Thread:
        """Nothing changes in it."""
        return self


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

    def push(self, token_id: int) -> list[Thread] | None:
        """Exactly what ``allowed`` says, without its row."""
        text = self.fence.tokens.texts[token_id]
        if not text:
            follower = self._follower()
            return None if follower is None else follower.push(token_id)
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
            return begin(self.fence, self.opening.rest, self._surplus(step)) or None
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
            for token_id in follower.node.ids:
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

    def _follower(self) -> StructureThread | None:
        """What the text may end with here, as a token of its own."""
        if not self.raw.is_closed or self.written < len(self.opening.joint):
            return None
        num_chars = self.num_chars - self.raw.automaton.end_chars
        is_short = self.raw.counts_chars and num_chars < self.raw.min_chars
        if is_short or not self.raw.automaton.is_at_end(self.place):
            return None
        node = self.fence.structure.at((self.opening.rest,))
        return None if node is None else StructureThread(self.fence, node)


@dataclass(slots=True)
class _Written:
    """The tokens of a value so far, latest first."""

    token_id: int
    before: _Written | None


class ValueThread:
    """Inside a value with a grammar of its own, its joints included."""

    __slots__ = (
        "_instead",
        "_is_relaxed",
        "_keys",
        "_matcher",
        "_place",
        "_skip",
        "_state",
        "_tail",
        "_value",
        "_written",
        "fence",
        "opening",
    )

    def __init__(self, fence: CompiledFence, value: CompiledValue, opening: Opening) -> None:
        self.fence = fence
        self.opening = opening
        self._value = value
        self._matcher: llguidance.LLMatcher = value.matcher.deep_copy()
        self._skip = len(value.joint)
        """Bytes of the joint that are to come."""
        self._state = json_text.START
        self._place = Place()
        self._keys = OpenKeys() if value.has_open_objects else None
        self._tail = b""
        self._written: _Written | None = None
        self._is_relaxed = False
        """Canonical form is given up for the next token: nothing else is left."""
        self._instead: Thread | None = None
        """Reads on where the grammar has become too complex."""

    def allowed(self) -> Allowed:
        """The matcher's row, narrowed."""
        if self._instead is not None:
            return self._instead.allowed()
        row = self._grammar_row(self._matcher)
        if row is None:
            self._weaken()
            return self.allowed()
        narrowed = self._narrowed(row)
        self._is_relaxed = not narrowed.any() and not self._is_complete()
        return Mask(row if self._is_relaxed else narrowed)

    def push(self, token_id: int) -> list[Thread] | None:
        """Where the value may be over, what follows it is among the readings."""
        if self._instead is not None:
            return self._instead.push(token_id)
        text = self.fence.tokens.texts[token_id]
        if not text:
            return None
        state, place = self._state, self._place
        inside = text[self._skip :]
        is_narrow = True
        if self._value.is_canonical:
            for byte in inside:
                state = _CANONICAL[state][byte]
            is_narrow = state != _WRONG
        if self._value.forbidden is not None:
            step = self._value.forbidden.walk(place, inside)
            is_narrow, place = is_narrow and step is not None, Place() if step is None else step.place
        if not is_narrow and not self._is_relaxed:
            # Only right if nothing narrower was there.
            self.allowed()
            if not self._is_relaxed:
                return None
        if not self._matcher.consume_token(token_id):
            return None
        self._is_relaxed = False
        self._state = json_text.START if state == _WRONG else state
        self._place = place
        self._skip = max(0, self._skip - len(text))
        if self._keys is not None:
            self._keys.push(inside)
        self._tail = (self._tail + text)[-_MAX_TAIL_BYTES:]
        self._written = _Written(token_id, self._written)
        if self._must_end():
            return begin(self.fence, self.opening.rest)
        return [*self._ends(), *([] if self._matcher.is_stopped() else [self])]

    def clone(self) -> Thread:
        """With a matcher of its own."""
        if self._instead is not None:
            return self._instead.clone()
        other = ValueThread.__new__(ValueThread)
        for name in ValueThread.__slots__:
            setattr(other, name, getattr(self, name))
        other._matcher = self._matcher.deep_copy()
        other._keys = None if self._keys is None else self._keys.copy()
        return other

    def _grammar_row(self, matcher: llguidance.LLMatcher) -> Row | None:
        """None where the grammar has become too complex to go on with."""
        row = np.empty(self.fence.tokens.num_words, np.uint32)
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if matcher.is_error():
            return None
        row &= self.fence.tokens.text_row
        return row

    def _narrowed(self, row: Row) -> Row:
        value = self._value
        if self._skip:
            return self._narrowed_joint(row)
        if value.forbidden is not None:
            row = row & value.forbidden.at(self._place).row
        if value.is_canonical:
            row = self._canonical(row, self._matcher, self._state, _MAX_LOOKAHEAD)
        if self._keys is not None:
            for text in self._keys.repeating():
                row = self.fence.tokens.without(row, self.fence.tokens.with_prefix(text))
        return row

    def _canonical(self, row: Row, matcher: llguidance.LLMatcher, state: int, depth: int) -> Row:
        """Without the tokens behind which no canonical number ends within ``depth`` tokens."""
        row = row & self.fence.values.rows.canonical[state]
        begun = row & self.fence.values.rows.unfinished[state]
        if not begun.any():
            return row
        if depth == 0:
            return row & ~begun
        suspects = self.fence.tokens.ids(begun)
        for token_id in suspects if len(suspects) <= _MAX_SUSPECTS else ():
            ahead = matcher.deep_copy()
            ahead.consume_token(token_id)
            ahead_row = self._grammar_row(ahead)
            after = state
            for byte in self.fence.tokens.texts[token_id]:
                after = _CANONICAL[after][byte]
            if ahead_row is None or not self._canonical(ahead_row, ahead, after, depth - 1).any():
                row[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))
        return row

    def _narrowed_joint(self, row: Row) -> Row:
        """Token by token: few begin in the joint."""
        value = self._value
        legal: list[int] = []
        for token_id in self.fence.tokens.ids(row):
            inside = self.fence.tokens.texts[token_id][self._skip :]
            state = json_text.START
            for byte in inside:
                state = _CANONICAL[state][byte]
            is_narrow = state != _WRONG or not value.is_canonical
            if is_narrow and (value.forbidden is None or value.forbidden.walk(Place(), inside) is not None):
                legal.append(token_id)
        return self.fence.tokens.row(legal)

    def _ends(self) -> Iterator[Thread]:
        """The readings in which the value is over."""
        if self._skip or not self._matcher.is_accepting():
            return
        for tail in self._value.tails:
            if self._tail.endswith(tail) and (tail or self._may_end()):
                yield from begin(self.fence, self.opening.rest, tail)

    def _is_complete(self) -> bool:
        """Whether what follows the value is a reading of its own already."""
        return b"" in self._value.tails and self._matcher.is_accepting() and self._may_end()

    def _must_end(self) -> bool:
        """Whether a number is over that has no canonical form within its schema."""
        if self._skip or self._may_end() or b"" not in self._value.tails or not self._matcher.is_accepting():
            return False
        if self._matcher.is_stopped():
            return True
        row = self._grammar_row(self._matcher)
        return row is not None and not self._narrowed(row).any()

    def _may_end(self) -> bool:
        """Whether a number is canonical as it stands."""
        return not (self._value.is_canonical and _UNFINISHED[self._state])

    def _weaken(self) -> None:
        """The same value in a weaker grammar: what was written fits that, too."""
        ids: list[int] = []
        written = self._written
        while written is not None:
            ids.append(written.token_id)
            written = written.before
        strictness = self._value.strictness
        while strictness > Strictness.ANY:
            strictness = Strictness(strictness - 1)
            opened = self.fence.weakened(self.opening, strictness)
            if isinstance(opened, CompiledRaw):
                thread: Thread = RawThread(self.fence, opened, self.opening)
                for token_id in reversed(ids):
                    (thread,) = [one for one in thread.push(token_id) or () if isinstance(one, RawThread)]
                self._instead = thread
                return
            matcher = opened.matcher.deep_copy()
            if matcher.try_consume_tokens(ids[::-1]) == len(ids) and not matcher.is_error():
                self._value, self._matcher = opened, matcher
                return
        raise AssertionError("any JSON takes what a stricter schema took")


@dataclass(slots=True)
class FreeThread:
    """Free text, in which the trigger may come."""

    fence: CompiledFence
    place: Place = BEGINNING
    begun: bytes | None = None
    """All of the answer so far, while it may be the beginning of a bare lead-in."""

    def allowed(self) -> Allowed:
        """One cached row."""
        found = self.fence.free_masks.get((self.place, self.begun))
        if found is None:
            row = self._row()
            is_free = np.array_equal(row, self.fence.tokens.full_row)
            found = self.fence.free_masks[self.place, self.begun] = Free() if is_free else Mask(row)
        return found

    def push(self, token_id: int) -> list[Thread] | None:
        """Behind the trigger, the program's readings; the end of the answer leaves none."""
        fence = self.fence
        if token_id in fence.tokens.eos_ids:
            return []
        if token_id == fence.trigger_id:
            return begin(fence, fence.structure.expander.start) if self._is_behind_lead_in() else None
        if token_id in fence.program.marker_ids:
            return None
        text = fence.tokens.texts[token_id]
        if not text:
            return [FreeThread(fence)]
        bare = self._bare_surplus(text)
        if bare is not None:
            return begin(fence, fence.structure.expander.start, bare) or None
        step = fence.free_text.walk(self.place, text)
        if step is None:
            return None
        if step.surplus is not None:
            return begin(fence, fence.structure.expander.start, step.surplus) or None
        begun = None if self.begun is None else self.begun + text
        if begun is not None and not (fence.bare_lead_in or b"").startswith(begun):
            begun = None
        return [FreeThread(fence, step.place, begun)]

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
            token_id: fence.structure.takes(start, step.surplus)
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
