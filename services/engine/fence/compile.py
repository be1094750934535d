"""From a program to a fence that can be pushed: checks, and the programs that are kept."""

from __future__ import annotations

import time
from collections.abc import Iterator

from services.engine.fence.compiled import CompiledFence
from services.engine.fence.errors import FenceError
from services.engine.fence.expansion import Expander, own_terminator
from services.engine.fence.program import Choose, Keys, Literal, Mark, Node, Program, Raw, Repeat, Value
from services.engine.fence.token_rows import TokenRows
from services.engine.fence.trie import Structure
from services.engine.fence.validation import validate
from services.engine.fence.values import ValueCompiler

_MAX_FENCES = 64
_MAX_GOOD_LITERALS = 100_000
COMPILE_BUDGET_S = 0.25
"""Seconds for one program. Each grammar has a limit of its own besides, beyond which it is relaxed."""


class FenceCompiler:
    """Compiles programs for one model; values stay compiled between them.

    One thread at a time; the fences that it has made may be pushed on another one meanwhile.
    """

    def __init__(self, rows: TokenRows) -> None:
        self.rows = rows
        self.tokens = rows.tokens
        self.values = ValueCompiler(rows)
        self._fences: dict[tuple[Program, int | None, int | None], CompiledFence] = {}
        self._good_literals: set[str] = set()
        self._good_markers: set[int] = set()

    def compile(
        self, program: Program, reasoning_end_id: int | None = None, reasoning_start_id: int | None = None
    ) -> CompiledFence:
        """``reasoning_end_id``: the token that ends the model's thinking; needed behind a gate. ``reasoning_start_id``:
        the one with which the model may open it itself, before the free text in which the trigger may come.

        Raises FenceError where the program cannot be kept with this tokenizer. Values that cannot be enforced are
        relaxed instead (``CompiledFence.relaxed``). The turns of a session bring the same tools: the last programs are
        kept.
        """
        key = (program, reasoning_end_id, reasoning_start_id)
        fence = self._fences.pop(key, None)
        if fence is None:
            fence = self._compile(program, reasoning_end_id, reasoning_start_id)
        self._fences[key] = fence
        if len(self._fences) > _MAX_FENCES:
            self._fences.pop(next(iter(self._fences)))
        return fence

    def _compile(self, program: Program, reasoning_end_id: int | None, reasoning_start_id: int | None) -> CompiledFence:
        validate(program)
        if program.has_reasoning_gate and reasoning_end_id is None:
            raise FenceError("reasoning_gate: the model has no end of reasoning")
        self._check_markers(program)
        expander = Expander(program, self.tokens)
        for index, node in enumerate(program.nodes):
            end = own_terminator(expander.parts(node.after)) if isinstance(node, Raw) else ""
            if isinstance(node, Raw) and any(text in end[:-1] for text in node.forbidden):
                raise FenceError(f"nodes[{index}].raw.forbidden: the terminator contains such a text")
        self._check_literals(program, expander)
        fence = CompiledFence(
            program, Structure(expander, self.tokens), self.values, reasoning_end_id, reasoning_start_id
        )
        fence.prepare(time.monotonic() + COMPILE_BUDGET_S)
        return fence

    def _check_markers(self, program: Program) -> None:
        marks = {node.token_id for node in program.nodes if isinstance(node, Mark)}
        trigger = program.trigger
        if trigger is not None and trigger.marker_id is not None:
            marks.add(trigger.marker_id)
        for token_id in {*marks, *program.marker_ids} - self._good_markers:
            if token_id >= self.tokens.num_ids:
                raise FenceError(f"marker {token_id} is beyond the vocabulary")
            self.tokens.check_marker(token_id)
            self._good_markers.add(token_id)

    def _check_literals(self, program: Program, expander: Expander) -> None:
        texts = [text for node in program.nodes for text in _texts(node)]
        if program.trigger is not None:
            texts += [program.trigger.lead_in, *(one.text for one in program.text_triggers)]
        parts = {part for text in texts for part in expander.parts(text) if isinstance(part, str)}
        unknown = sorted(parts - self._good_literals)
        self.tokens.check_literals(unknown)
        if len(self._good_literals) > _MAX_GOOD_LITERALS:
            self._good_literals.clear()
        self._good_literals.update(unknown)


def _texts(node: Node) -> Iterator[str]:
    match node:
        case Literal(text):
            yield text
        case Choose(branches):
            yield from (branch.key for branch in branches)
        case Keys():
            yield from (item.key for item in node.items)
            yield from (node.between, node.close)
        case Value():
            yield from (node.before, node.after)
        case Raw():
            yield node.after
        case Repeat():
            yield node.separator
        case _:
            pass
