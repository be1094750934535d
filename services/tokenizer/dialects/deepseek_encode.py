"""Conversation → prompt text for DeepSeek V3.2, V4 and V4.1, whose models come with an encoder and no chat template.

Written after the encoders published with the models (``encoding_dsv32.py``, ``encoding_dsv4.py``, V4.1's
``encoding.py``), for plain chat and tools. Where those leave an assistant turn without a header (behind a system
message in V3.2 and V4, behind another assistant turn), it gets one here: no model has seen turns without.

In thinking mode the prompt ends in ``<think>`` and a turn's reasoning moves into history unchanged, except before the
last user turn: V3.2 drops it there always, V4 and V4.1 unless the request has tools. There the prefix forks by design.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from services.tokenizer.dialects.deepseek_dsml import DsmlDialect, DsmlVersion
from services.tokenizer.dialects.deepseek_prompts import EFFORT_V4_1, MAXIMUM_EFFORT_V4
from services.tokenizer.dialects.events import CallText, ResultText, ToolSpec

BEGIN = "<｜begin▁of▁sentence｜>"
END = "<｜end▁of▁sentence｜>"
_SYSTEM = "<｜System｜>"
_USER = "<｜User｜>"
_ASSISTANT = "<｜Assistant｜>"
_THINK = "<think>"
_END_THINK = "</think>"


class Effort(Enum):
    """How much a thinking model is to think. V3.2 knows no degrees, V4 only the maximum."""

    LOW = auto()
    HIGH = auto()
    MAX = auto()


_BUDGETS = {Effort.LOW: 50, Effort.HIGH: 75, Effort.MAX: 100}


@dataclass(frozen=True, slots=True)
class SystemTurn:
    """Also for developer messages."""

    text: str


@dataclass(frozen=True, slots=True)
class UserTurn:
    """What a user says."""

    text: str


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """An answer of the model. ``call_ids`` are those of ``calls``, in order, or none."""

    text: str
    reasoning: str = ""
    calls: tuple[CallText, ...] = ()
    call_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResultTurn:
    """The result of one call; V4 and V4.1 put consecutive ones into the order of the calls."""

    result: ResultText
    call_id: str | None = None


Turn = SystemTurn | UserTurn | AssistantTurn | ResultTurn


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Consecutive user and result turns, which are one turn to V4 and V4.1."""

    parts: tuple[UserTurn | ResultTurn, ...]


_Block = SystemTurn | AssistantTurn | _Inputs


def render(
    turns: Sequence[Turn],
    tools: Sequence[ToolSpec],
    dialect: DsmlDialect,
    *,
    is_thinking: bool,
    effort: Effort = Effort.HIGH,
    add_generation_prompt: bool = True,
) -> str:
    """The prompt's text. ``effort`` counts in thinking mode only.

    Tools belong to a system message at the beginning; without one there is an empty one.
    """
    return _Encoder(dialect, tools, is_thinking, effort).render(turns, add_generation_prompt)


class _Encoder:
    def __init__(self, dialect: DsmlDialect, tools: Sequence[ToolSpec], is_thinking: bool, effort: Effort) -> None:
        self._dialect = dialect
        self._version = dialect.version
        self._tools = tools
        self._is_thinking = is_thinking
        self._effort = effort

    def render(self, turns: Sequence[Turn], add_generation_prompt: bool) -> str:
        blocks = self._blocks(turns)
        if self._tools and not (blocks and isinstance(blocks[0], SystemTurn)):
            blocks.insert(0, SystemTurn(""))
        last_question = max((index for index, block in enumerate(blocks) if self._asks(index, block)), default=-1)
        written = [BEGIN, self._opening(blocks)]
        for index, block in enumerate(blocks):
            follower = blocks[index + 1] if index + 1 < len(blocks) else None
            is_kept = self._is_thinking and (self._keeps_all or index > last_question)
            answers_thinking = self._is_thinking and (self._keeps_all or index >= last_question)
            written.append(self._block(index, block, is_kept))
            has_header = isinstance(follower, AssistantTurn) or (follower is None and add_generation_prompt)
            # V3.2's template of a user turn includes the header.
            if has_header or (follower is not None and self._version is DsmlVersion.V3_2 and _is_input(block)):
                written.append(self._header(block, answers_thinking))
        return "".join(written)

    @property
    def _keeps_all(self) -> bool:
        """Reasoning stays in all of history."""
        return self._version is not DsmlVersion.V3_2 and bool(self._tools)

    def _blocks(self, turns: Sequence[Turn]) -> list[_Block]:
        blocks: list[_Block] = []
        for turn in turns:
            if not isinstance(turn, UserTurn | ResultTurn):
                blocks.append(turn)
                continue
            last = blocks[-1] if blocks else None
            if isinstance(last, _Inputs) and self._joins(last.parts[-1], turn):
                blocks[-1] = _Inputs((*last.parts, turn))
            else:
                blocks.append(_Inputs((turn,)))
        return blocks if self._version is DsmlVersion.V3_2 else _in_call_order(blocks)

    def _joins(self, first: UserTurn | ResultTurn, second: UserTurn | ResultTurn) -> bool:
        if self._version is not DsmlVersion.V3_2:
            return True
        return isinstance(first, ResultTurn) and isinstance(second, ResultTurn)

    def _asks(self, index: int, block: _Block) -> bool:
        """Whether a block begins what the model is to answer now, if it is the last such block."""
        match block:
            case _Inputs(parts):
                return self._version is not DsmlVersion.V3_2 or isinstance(parts[0], UserTurn)
            case SystemTurn():
                return self._version is DsmlVersion.V4_1 and index > 0
            case AssistantTurn():
                return False

    def _opening(self, blocks: Sequence[_Block]) -> str:
        """What stands before the first turn's own text."""
        effort = ""
        if self._is_thinking and self._version is DsmlVersion.V4 and self._effort is Effort.MAX:
            effort = MAXIMUM_EFFORT_V4
        elif self._is_thinking and self._version is DsmlVersion.V4_1:
            effort = EFFORT_V4_1.replace("{budget}", str(_BUDGETS[self._effort]))
        begins_with_system = bool(blocks) and isinstance(blocks[0], SystemTurn)
        has_role = self._version is DsmlVersion.V4_1 and (effort or begins_with_system)
        return f"{_SYSTEM if has_role else ''}{effort}"

    def _block(self, index: int, block: _Block, is_kept: bool) -> str:
        match block:
            case SystemTurn(text):
                role = _SYSTEM if self._version is DsmlVersion.V4_1 and index > 0 else ""
                section = f"\n\n{self._dialect.write_tools(self._tools)}" if self._tools and index == 0 else ""
                return f"{role}{text}{section}"
            case AssistantTurn(text, reasoning, calls):
                thought = f"{reasoning}{_END_THINK}" if is_kept else ""
                return f"{thought}{self._dialect.write_calls(text, calls)}{END}"
            case _Inputs(parts):
                return self._inputs(parts)

    def _inputs(self, parts: Sequence[UserTurn | ResultTurn]) -> str:
        results = [part.result for part in parts if isinstance(part, ResultTurn)]
        if self._version is DsmlVersion.V3_2 and results:
            return f"\n\n{self._dialect.write_results(results)}"
        texts = [
            part.text if isinstance(part, UserTurn) else self._dialect.write_results([part.result]) for part in parts
        ]
        return _USER + "\n\n".join(texts)

    def _header(self, block: _Block, answers_thinking: bool) -> str:
        """Before an answer to ``block``."""
        think = _THINK if answers_thinking else _END_THINK
        is_result = isinstance(block, _Inputs) and isinstance(block.parts[0], ResultTurn)
        return f"\n\n{think}" if self._version is DsmlVersion.V3_2 and is_result else f"{_ASSISTANT}{think}"


def _is_input(block: _Block) -> bool:
    return isinstance(block, _Inputs)


def _in_call_order(blocks: Sequence[_Block]) -> list[_Block]:
    """Results of each turn sorted as the calls before were; other parts keep their places."""
    order: Mapping[str, int] = {}
    sorted_blocks: list[_Block] = []
    for block in blocks:
        if isinstance(block, AssistantTurn) and block.call_ids:
            order = {call_id: index for index, call_id in enumerate(block.call_ids)}
        if isinstance(block, _Inputs):
            results = [part for part in block.parts if isinstance(part, ResultTurn)]
            ranks = [0 if result.call_id is None else order.get(result.call_id, 0) for result in results]
            ranked = iter([result for _, result in sorted(zip(ranks, results, strict=True), key=lambda pair: pair[0])])
            parts = tuple(next(ranked) if isinstance(part, ResultTurn) else part for part in block.parts)
            sorted_blocks.append(replace(block, parts=parts))
        else:
            sorted_blocks.append(block)
    return sorted_blocks
