"""A program for one tokenizer, as readers push through it: what is compiled once, and what where it is met."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from services.engine.fence.allowed import Free, Ids, Mask
from services.engine.fence.expansion import KeysFrame, PartsFrame, Rest, own_terminator
from services.engine.fence.program import Grammar, Keys, Program, ProgramEnd, Raw, Relaxed, Value
from services.engine.fence.schema import Strictness
from services.engine.fence.text_automaton import Place, Step, TextAutomaton
from services.engine.fence.tokens import Row
from services.engine.fence.trie import Opening, Structure, TrieNode
from services.engine.fence.values import CompiledValue, ValueCompiler


@dataclass(frozen=True, slots=True)
class CompiledRaw:
    """Raw text without a pattern."""

    automaton: TextAutomaton
    min_chars: int
    max_chars: int | None
    is_closed: bool
    """Ends only where a mark, or the end of the program, follows ``end``; else at its first ``end``."""
    shared: bytes = b""
    """What of its end belongs to what follows."""

    @property
    def counts_chars(self) -> bool:
        """Whether there are limits."""
        return self.min_chars > 0 or self.max_chars is not None


class CompiledFence:
    """A program for one tokenizer; any number of fences may share it. What it builds late, it keeps."""

    def __init__(
        self,
        program: Program,
        structure: Structure,
        values: ValueCompiler,
        reasoning_end_id: int | None,
        reasoning_start_id: int | None = None,
    ) -> None:
        self.program = program
        self.structure = structure
        self.values = values
        self.tokens = structure.tokens
        self.reasoning_end_id = reasoning_end_id
        self.reasoning_start_id = reasoning_start_id
        self._opened: dict[tuple[int, bytes, tuple[bytes, ...]], CompiledRaw | CompiledValue] = {}
        self._relaxed: dict[Relaxed, None] = {}
        self.end = Ids(self.tokens.eos_ids)
        """What is legal once the program is over."""
        trigger = program.trigger
        self.trigger_id = None if trigger is None else trigger.marker_id
        self.lead_in = b"" if trigger is None else trigger.lead_in.encode()
        bare = self.lead_in.lstrip()
        self.bare_lead_in = bare if trigger is not None and trigger.is_bare_at_start else None
        """Enough at the answer's beginning."""
        self._entry_by_text = {one.text.encode(): one.entry for one in reversed(program.text_triggers)}
        illegal = {*program.marker_ids}
        if self.trigger_id is not None:
            illegal.add(self.trigger_id)
        # Spelt out, a trigger, or the beginning of thinking, would be read as one, too.
        spelt = [bare + (b"" if self.trigger_id is None else self.tokens.spellings[self.trigger_id])]
        if trigger is not None:
            spelt += self._spelt(reasoning_start_id)
        self.free_text = TextAutomaton(
            self.tokens,
            [self.tokens.without(self.tokens.full_row, illegal)],
            end=self.lead_in,
            stops_at_end=self.trigger_id is None,
            stops=[*self._entry_by_text],
            forbidden=spelt,
        )
        self.free_masks: dict[tuple[Place, bytes | None], Free | Mask] = {}
        """Of free text, by where it stands; filled by its readers."""
        self.ends_with_eos = program.end is ProgramEnd.EOS_ONLY
        unthinkable = illegal - {reasoning_end_id}
        if trigger is None:
            unthinkable |= self.tokens.eos_ids
        self.thinking_text = TextAutomaton(
            self.tokens,
            [self.tokens.without(self.tokens.full_row, unthinkable)],
            end=b"",
            stops_at_end=False,
            # Spelt out, its end would be read as one, too.
            forbidden=self._spelt(reasoning_end_id),
        )
        self.thinking_masks: dict[Place, Free | Mask] = {}
        """Of thinking, by where it stands; filled by its reader."""

    def start_behind(self, step: Step) -> Rest:
        """Where the program starts that a step out of free text leads into."""
        expander = self.structure.expander
        return expander.start if step.stop is None else expander.start_at(self._entry_by_text[step.stop])

    @property
    def relaxed(self) -> tuple[Relaxed, ...]:
        """What is not enforced, as far as that is known."""
        return tuple(self._relaxed)

    def note_relaxed(self, node: int, pointer: str, keyword: str) -> None:
        """Something else is not enforced."""
        self._relaxed[Relaxed(f"nodes[{node}]{pointer}", keyword)] = None

    def open(self, opening: Opening) -> CompiledRaw | CompiledValue:
        """What begins there."""
        node = self.program.nodes[opening.node]
        # Raw text does not look beyond its own terminator; whether it may end inside the text is the follower's.
        is_closed = self.structure.is_closed(opening.rest)
        tails = (b"closed" if is_closed else b"",) if isinstance(node, Raw) else self.structure.tails(opening.rest)
        key = (opening.node, opening.joint, tails)
        found = self._opened.get(key)
        if found is None:
            found = self._opened[key] = self._open(opening, tails, is_closed)
        return found

    def weakened(self, opening: Opening, strictness: Strictness) -> CompiledValue | CompiledRaw:
        """The value that begins there, less strict."""
        node = self.program.nodes[opening.node]
        if isinstance(node, (Raw, Grammar)):
            return self._any_text(opening, node, self.structure.is_closed(opening.rest))
        assert isinstance(node, Value)
        tails = self.structure.tails(opening.rest)
        found = self.values.compile(node, opening.joint, tails, strictness=strictness)
        assert found is not None
        self._note_dropped(opening.node, found)
        return found

    def renewed(self, opening: Opening, value: CompiledValue) -> CompiledValue | CompiledRaw:
        """``value``, which begins there, compiled anew."""
        self.values.forget(value.matcher)
        self._opened = {key: one for key, one in self._opened.items() if one is not value}
        found = self.open(opening)
        is_same = isinstance(found, CompiledValue) and found.strictness == value.strictness
        return found if is_same else self.weakened(opening, value.strictness)

    def prepare(self, deadline: float) -> None:
        """Compile what is likely to be needed, until ``deadline`` (of the monotonic clock, in seconds).

        What is left is compiled where it is met, about 1 ms each.
        """
        openings = [*self._openings(deadline)]
        self.values.compile_together(
            (
                (node, opening.joint, self.structure.tails(opening.rest))
                for opening in openings
                if isinstance(node := self.program.nodes[opening.node], (Value, Grammar))
            ),
            deadline,
        )
        for opening in openings:
            if time.monotonic() > deadline:
                return
            self.open(opening)

    def mask_of(self, row: Row) -> Free | Mask:
        """What a row of legal tokens is to a reader: nothing to look at, where all are legal."""
        return Free() if np.array_equal(row, self.tokens.full_row) else Mask(row)

    def _spelt(self, token_id: int | None) -> list[bytes]:
        """What other tokens must not spell; nothing where it is one token of text among others."""
        if token_id is None or self.tokens.texts[token_id]:
            return []
        return [self.tokens.spellings[token_id]]

    def _open(self, opening: Opening, tails: tuple[bytes, ...], is_closed: bool) -> CompiledRaw | CompiledValue:
        node = self.program.nodes[opening.node]
        assert isinstance(node, (Value, Raw, Grammar))
        if isinstance(node, Raw) and node.pattern is None:
            return self._raw(node, is_closed)
        end = own_terminator(self.structure.expander.parts(node.after)) if isinstance(node, Raw) else ""
        tails = (b"",) if isinstance(node, Raw) else tails
        found = self.values.compile(node, opening.joint, tails, end, stops_at_end=not is_closed)
        if found is None:
            return self._any_text(opening, node, is_closed)
        self._note_dropped(opening.node, found)
        return found

    def _note_dropped(self, node: int, value: CompiledValue) -> None:
        for pointer, keyword in value.dropped:
            self.note_relaxed(node, pointer, keyword)

    def _any_text(self, opening: Opening, node: Raw | Grammar | Value, is_closed: bool) -> CompiledRaw:
        """Instead of a grammar that does not compile: any text up to what follows."""
        if isinstance(node, Raw):
            self.note_relaxed(opening.node, "", "pattern")
            return self._raw(node, is_closed)
        self.note_relaxed(opening.node, "", "grammar")
        closing = next((one.text for one in self.structure.alternatives(opening.rest) if one.text), "")
        return CompiledRaw(self.values.automaton(closing, True, (), False), 0, None, is_closed, closing.encode())

    def _raw(self, node: Raw, is_closed: bool) -> CompiledRaw:
        parts = self.structure.expander.parts(node.after)
        end = own_terminator(parts)
        counts_chars = node.min_chars > 0 or node.max_chars is not None
        # A terminator that is spelt out, without its markers, would be read as one, too.
        spelt = () if end == node.after else (node.after,)
        automaton = self.values.automaton(end, not is_closed, (*node.forbidden, *spelt), counts_chars)
        return CompiledRaw(automaton, node.min_chars, node.max_chars, is_closed)

    def _openings(self, deadline: float) -> Iterator[Opening]:
        """Those that calls come through; of keys each with all that may follow it."""
        pending: list[TrieNode | None] = [self.structure.start()]
        seen: set[int] = set()
        while pending and time.monotonic() < deadline:
            root = pending.pop()
            if root is None or id(root) in seen:
                continue
            seen.add(id(root))
            for node in root.exits:
                pending.extend(self.structure.behind(node, token_id) for token_id in node.marks)
                if node.resumed:
                    pending.append(self.structure.at(node.resumed))
                for opening in node.openings:
                    variants = _key_variants(self.program, opening.rest)
                    # Behind a mark, no token of the value reaches what differs.
                    for rest in variants[:1] if _has_mark_first(opening.rest) else variants:
                        yield Opening(opening.node, rest, opening.joint)
                    # All values come up at the first key; what is behind the last one is left.
                    pending.append(self.structure.at((variants[-1],)))


def _has_mark_first(rest: Rest) -> bool:
    return rest is not None and isinstance(rest[0], PartsFrame) and any(isinstance(one, int) for one in rest[0].parts)


def _key_variants(program: Program, rest: Rest) -> list[Rest]:
    """``rest``, and the same with only optional keys to come, and with none."""
    if rest is None:
        return [rest]
    frame, behind = rest
    if not isinstance(frame, KeysFrame):
        return [(frame, variant) for variant in _key_variants(program, behind)]
    keys = program.nodes[frame.node]
    assert isinstance(keys, Keys)
    required = sum(1 << position for position, item in enumerate(keys.items) if item.is_required)
    every = (1 << len(keys.items)) - 1
    masks = dict.fromkeys((frame.seen, frame.seen | required, every))
    last = frame.last if keys.is_any_order else len(keys.items)
    return [(KeysFrame(frame.node, mask, last if mask == every else frame.last), behind) for mask in masks]
