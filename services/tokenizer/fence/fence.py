"""What a request's answer must be like, with the token ids of this model's markers.

Derived from what the caller asked and from where the prompt ends. The result depends on nothing else, so it is kept:
an agent asks with the same tools again and again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from services.tokenizer.conversation import Conversation, OutputFormat, Role, ToolMode
from services.tokenizer.dialects.dialect import Dialect
from services.tokenizer.dialects.events import ToolSpec
from services.tokenizer.errors import InvalidRequestError
from services.tokenizer.fence.callable import CallableTool, callable_tool
from services.tokenizer.fence.calls import THINK_MARKERS, CallRules, Thinking
from services.tokenizer.fence.flat import FlatProgram, describe
from services.tokenizer.fence.output import write_output_program
from services.tokenizer.fence.program import ProgramDraft, Relaxed, Trigger, literal, sequence

_MAX_KEPT = 256
_MAX_TOOLS_KEPT = 4_096


@dataclass(frozen=True, slots=True)
class Start:
    """What begins the program out of free text: ``lead_in``, and the marker where one is a token."""

    lead_in: str
    marker_id: int | None
    is_bare_at_start: bool
    """At the answer's beginning the whitespace at ``lead_in``'s beginning is not there."""


@dataclass(frozen=True, slots=True, eq=False)
class Fence:
    """A program for one model; equal requests get the same object."""

    program: FlatProgram
    start: Start | None
    """None: the program begins with the answer, or behind its gate."""
    text_starts: tuple[str, ...]
    """Each begins the program, too, at an entry of its own: those behind the first one, in order."""
    has_reasoning_gate: bool
    marker_ids: tuple[int, ...]
    thinking_ids: tuple[int, int] | None
    """Tokens that open and close the model's thinking."""
    warnings: tuple[str, ...]
    """What of the request it cannot keep, for people."""
    relaxed: tuple[Relaxed, ...]
    """What the program leaves out; the engine may find more that it cannot keep."""
    tool_names: frozenset[str]
    """Of the tools that it lets the model call."""

    def has_begun(self, ids: Sequence[int], text: str) -> bool:
        """Whether the program began in an answer. Calls without that are ones that a parser was lenient with."""
        if self.start is None:
            return True
        # In thinking it is a thought.
        answer = text.rpartition(THINK_MARKERS[1])[2]
        if any(start in answer for start in self.text_starts):
            return True
        marker_id = self.start.marker_id
        return self.start.lead_in.strip() in answer if marker_id is None else marker_id in ids

    @property
    def marks_thinking(self) -> bool:
        """Whether an answer's thinking ends where it is closed, and nowhere else: no call can begin in it."""
        return self.start is None or self.thinking_ids is not None


@dataclass(frozen=True, slots=True)
class PromptEnd:
    """Where the answer begins."""

    starts_in_reasoning: bool
    may_think: bool
    """The model may open thinking itself."""
    follows_text: bool
    """The answer goes on with text that is there already."""


class Fences:
    """One model's. Safe to use from several threads."""

    def __init__(self, dialect: Dialect, id_by_added_token: Mapping[str, int]) -> None:
        self._dialect = dialect
        self._ids = dict(id_by_added_token)
        self._think_ids = tuple(self._ids[marker] for marker in THINK_MARKERS if marker in self._ids)
        self._callable = lru_cache(_MAX_TOOLS_KEPT)(partial(callable_tool, dialect))
        self._of_calls = lru_cache(_MAX_KEPT)(self._write_calls)
        self._of_output = lru_cache(_MAX_KEPT)(self._write_output)

    def derive(self, conversation: Conversation, end: PromptEnd) -> Fence | None:
        """None where the answer may be anything. Raises InvalidRequestError where no answer could be right."""
        thinking = self._thinking(end)
        mode, tools = conversation.tool_mode, conversation.allowed_tools
        if tools and mode is not ToolMode.NONE:
            is_required = mode is ToolMode.REQUIRED
            max_calls = None if conversation.parallel_calls else 1
            rules = CallRules(is_required, max_calls, thinking, end.follows_text)
            fence = self._of_calls(tools, rules)
            if fence is None and is_required:
                names = ", ".join(tool.name for tool in tools)
                raise InvalidRequestError(
                    "conversation.tool_choice", f"a call is required, and none can be right: {names}"
                )
            return fence
        if conversation.output_format is not None and not end.follows_text:
            return self._of_output(conversation.output_format, thinking)
        return None

    def keeps_format(self, conversation: Conversation, end: PromptEnd) -> bool:
        """Whether an answer that ``derive`` allows has the output format, if it has text at all."""
        if conversation.allowed_tools and conversation.tool_mode is not ToolMode.NONE:
            return conversation.tool_mode is ToolMode.REQUIRED
        return not end.follows_text

    def _thinking(self, end: PromptEnd) -> Thinking:
        if end.starts_in_reasoning:
            return Thinking.GATED if len(self._think_ids) == len(THINK_MARKERS) else Thinking.SPELT
        return Thinking.POSSIBLE if end.may_think else Thinking.OVER

    def _write_calls(self, tools: tuple[ToolSpec, ...], rules: CallRules) -> Fence | None:
        fenced: list[CallableTool] = []
        warnings: list[str] = []
        for tool in tools:
            found = self._callable(tool)
            if found is None:
                warnings.append(
                    f"{tool.name} cannot be called: its name, or a parameter it requires, cannot be written"
                )
            else:
                fenced.append(found)
        draft = self._dialect.fence(fenced, rules)
        names = frozenset(tool.name for tool in fenced)
        return None if draft is None else self._fence(draft, warnings, names)

    def _write_output(self, output_format: OutputFormat, thinking: Thinking) -> Fence:
        return self._fence(write_output_program(output_format, thinking, self._dialect.think_tags), [], frozenset())

    def _fence(self, draft: ProgramDraft, warnings: list[str], tool_names: frozenset[str]) -> Fence:
        relaxed = tuple(dict.fromkeys(draft.relaxed))
        warnings += map(describe, relaxed)
        markers = [marker for marker in draft.markers if marker in self._ids]
        has_think_ids = len(self._think_ids) == len(THINK_MARKERS)
        # Where text tells thinking from the answer, the engine cannot: there these would be found in thoughts.
        others = draft.text_triggers if has_think_ids else ()
        start, entry = None, draft.entry
        if draft.trigger is not None:
            start, rest = self._start(draft.trigger, markers)
            entry = sequence(literal(rest), entry)
        return Fence(
            FlatProgram(entry, *(one.entry for one in others)),
            start,
            tuple(one.text for one in others),
            draft.has_reasoning_gate,
            tuple(self._ids[marker] for marker in markers),
            (self._think_ids[0], self._think_ids[1]) if has_think_ids else None,
            tuple(warnings),
            relaxed,
            tool_names,
        )

    def _start(self, trigger: Trigger, markers: Sequence[str]) -> tuple[Start, str]:
        """And what is left of the tag behind the marker."""
        is_bare = trigger.is_bare_at_start
        for marker in markers:
            before, found, rest = trigger.tag.partition(marker)
            if found:
                return Start(trigger.lead_in + before, self._ids[marker], is_bare), rest
        return Start(trigger.lead_in + trigger.tag, None, is_bare), ""


def follows_text(conversation: Conversation) -> bool:
    """Whether the model goes on with an assistant's text (``prompt/continuation.py``)."""
    last = conversation.messages[-1]
    return last.role is Role.ASSISTANT and not last.calls and bool(last.content.strip())
