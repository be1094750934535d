"""Inside a value with a grammar of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import llguidance
import numpy as np

from services.engine.fence import json_text
from services.engine.fence.allowed import Allowed, Mask
from services.engine.fence.compiled import CompiledFence, CompiledRaw
from services.engine.fence.open_keys import OpenKeys
from services.engine.fence.program import Grammar, Raw, Value
from services.engine.fence.raw_thread import RawThread
from services.engine.fence.schema import Strictness
from services.engine.fence.text_automaton import Place
from services.engine.fence.thread import Behind, Thread
from services.engine.fence.tokens import Row
from services.engine.fence.trie import Opening, TrieNode
from services.engine.fence.values import CompiledValue

_CANONICAL: list[list[int]] = json_text.canonical_table().tolist()
_UNFINISHED: list[bool] = json_text.unfinished_numbers().tolist()
_WRONG = len(_CANONICAL) - 1
_MAX_TAIL_BYTES = 64
_MAX_LOOKAHEAD = 3
_MAX_SUSPECTS = 16


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
        "_is_renewed",
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
        self._is_renewed = False
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

    def push(self, token_id: int) -> Behind | None:
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
            if not self._is_full():
                return None
            self._weaken()
            return self.push(token_id)
        self._is_relaxed = False
        self._state = json_text.START if state == _WRONG else state
        self._place = place
        self._skip = max(0, self._skip - len(text))
        if self._keys is not None:
            self._keys.push(inside)
        self._tail = (self._tail + text)[-_MAX_TAIL_BYTES:]
        self._written = _Written(token_id, self._written)
        if self._must_end():
            return self.fence.structure.begin(self.opening.rest)
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

    def _ends(self) -> Iterator[TrieNode]:
        """The readings in which the value is over."""
        for tail in self._tails():
            if tail or self._may_end():
                yield from self.fence.structure.begin(self.opening.rest, tail) or ()

    def _tails(self) -> list[bytes]:
        """Of the grammar's tails those that have been written, if the value is over."""
        if self._skip or not self._matcher.is_accepting():
            return []
        fitting = [tail for tail in self._value.tails if self._tail.endswith(tail)]
        # The grammar does not say which one it has read.
        return fitting if len(fitting) < 2 else [tail for tail in fitting if self._is_value_before(tail)]

    def _is_value_before(self, tail: bytes) -> bool:
        """Whether what stands before ``tail`` is the value, by the same grammar without tails."""
        value = self._value
        node = self.fence.program.nodes[self.opening.node]
        assert isinstance(node, (Value, Raw, Grammar))
        alone = self.fence.values.compile(node, value.joint, (b"",), strictness=value.strictness)
        if alone is None:
            return True
        written = b"".join(self.fence.tokens.texts[token_id] for token_id in self._written_ids())
        ids = self.fence.tokens.encode(written[: len(written) - len(tail)].decode())
        matcher = alone.matcher.deep_copy()
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def _is_complete(self) -> bool:
        """Whether what follows the value is a reading of its own already."""
        return b"" in self._tails() and self._may_end()

    def _must_end(self) -> bool:
        """Whether a number is over that has no canonical form within its schema."""
        if self._may_end() or b"" not in self._tails():
            return False
        if self._matcher.is_stopped():
            return True
        row = self._grammar_row(self._matcher)
        return row is not None and not self._narrowed(row).any()

    def _may_end(self) -> bool:
        """Whether a number is canonical as it stands."""
        return not (self._value.is_canonical and _UNFINISHED[self._state])

    def _weaken(self) -> None:
        """The same value in a fresh matcher, or in a weaker grammar: what was written fits that, too."""
        ids = self._written_ids()
        strictness = self._value.strictness
        if self._is_full() and not self._is_renewed:
            self._is_renewed = True
            if self._goes_on_with(self.fence.renewed(self.opening, self._value), ids):
                return
        while strictness > Strictness.ANY:
            strictness = Strictness(strictness - 1)
            if self._goes_on_with(self.fence.weakened(self.opening, strictness), ids):
                return
        raise AssertionError("any JSON takes what a stricter schema took")

    def _written_ids(self) -> list[int]:
        ids: list[int] = []
        written = self._written
        while written is not None:
            ids.append(written.token_id)
            written = written.before
        return ids[::-1]

    def _is_full(self) -> bool:
        """Whether the matcher failed for what it and its copies have met before."""
        return self._matcher.get_error().startswith("lexer error")

    def _goes_on_with(self, opened: CompiledRaw | CompiledValue, written: list[int]) -> bool:
        if isinstance(opened, CompiledRaw):
            thread: Thread = RawThread(self.fence, opened, self.opening)
            for token_id in written:
                (thread,) = [one for one in thread.push(token_id) or () if isinstance(one, RawThread)]
            self._instead = thread
            return True
        matcher = opened.matcher.deep_copy()
        if matcher.try_consume_tokens(written) != len(written) or matcher.is_error():
            return False
        self._value, self._matcher = opened, matcher
        return True
