"""GLM's markup for tools: keys and values in tags, with newlines between them up to 4.6 and without from 4.7 on.

Strings are raw, all other values JSON, and nothing marks which is which: the tool's schema says it. Hence what a
schema does not declare is read back as a string only if it is no JSON. Nothing can be escaped either: a string that
spells the tag behind a value *and* the one that must follow it ends there for every reader, and is written all the
same. In a JSON value ``<`` is escaped then.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto

from services.tokenizer.dialects.answer import AnswerParser, block_starts
from services.tokenizer.dialects.call_text import parameters_of
from services.tokenizer.dialects.call_writer import CallWriter, Marking
from services.tokenizer.dialects.dialect import StreamParser
from services.tokenizer.dialects.events import CallText, Malformed, ParseEvent, ResultText, ToolSpec
from services.tokenizer.dialects.markers import Markers
from services.tokenizer.dialects.reasoning import ReasoningStage, ThinkTags
from services.tokenizer.dialects.schema import ParameterTypes
from services.tokenizer.dialects.tool_lines import write_tool_lines
from services.tokenizer.fence.callable import CallableTool
from services.tokenizer.fence.calls import CallRules, Markup, distinct, write_program
from services.tokenizer.fence.program import (
    NOTHING,
    Branch,
    KeyItem,
    Keys,
    Literal,
    ProgramDraft,
    Raw,
    Repeat,
    sequence,
)
from services.tokenizer.fence.values import ValueWriter

_CALL, _END_CALL = "<tool_call>", "</tool_call>"
_KEY, _END_KEY = "<arg_key>", "</arg_key>"
_VALUE, _END_VALUE = "<arg_value>", "</arg_value>"
_BEHIND_VALUE = (_KEY, _END_CALL, _CALL)
_MAX_NAME_CHARS = 256
_ANY_KEY = r"[^<>\n]+"

_VALUE_END = re.compile(f"{_END_VALUE}\\s*(?:{'|'.join(_BEHIND_VALUE)})")
_NAME_ENDS = Markers(["\n", _KEY, _END_CALL, _CALL])
_CALL_ENDS = Markers([_END_CALL, _CALL])
_END_KEYS = Markers([_END_KEY])
_STARTS_IN_THINKING = [f"{_CALL}{first}" for first in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"]

_INSTRUCTIONS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{schemas}
</tools>

For each function call, output the function name and arguments within the following XML format:
{example}"""


class GlmDialect:
    """A ``Dialect``; immutable."""

    def __init__(self, name: str, newline: str) -> None:
        """``newline``: what the form puts between tags, a newline or nothing."""
        self.name = name
        self._newline = newline
        self.think_tags = ThinkTags(f"{newline}<think>", f"</think>{newline}")
        self._starts = block_starts([_CALL], newline)
        self._markup = Markup(
            lead_in=newline,
            is_bare_at_start=False,
            behind_thinking="",
            tag=_CALL,
            first_call="",
            next_call=f"{newline}{_CALL}",
            end="",
            think_tags=self.think_tags,
            markers=(_CALL, _END_CALL, _KEY, _END_KEY, _VALUE, _END_VALUE),
        )

    def write_tools(self, tools: Sequence[ToolSpec]) -> str:
        """As GLM's own templates have it, which know tools."""
        arguments = [("{arg-key-1}", "{arg-value-1}"), ("{arg-key-2}", "{arg-value-2}")]
        pairs = "".join(map(self._write_argument, *zip(*arguments, strict=True)))
        example = f"{_CALL}{{function-name}}{self._newline}{pairs}...{self._newline}{_END_CALL}"
        return _INSTRUCTIONS.replace("{example}", example).replace("{schemas}", write_tool_lines(tools))

    def write_calls(self, text: str, calls: Sequence[CallText]) -> str:
        """The next role's token follows at once."""
        return text + "".join(map(self._write_call, calls))

    def write_results(self, results: Sequence[ResultText]) -> str:
        """What follows ``<|observation|>``."""
        newline = self._newline
        return "".join(f"{newline}<tool_response>{newline}{result.text}{newline}</tool_response>" for result in results)

    def parser(
        self, tools: Sequence[ToolSpec], *, starts_in_reasoning: bool, calls_end_thinking: bool = True
    ) -> StreamParser:
        """Reads both forms."""
        types = ParameterTypes(tools)

        def open_block(_opening: str, num_calls: int) -> _GlmCall:
            return _GlmCall(num_calls, types)

        reasoning = ReasoningStage(
            self.think_tags,
            _STARTS_IN_THINKING,
            starts_in_reasoning=starts_in_reasoning,
            calls_end_thinking=calls_end_thinking,
        )
        return AnswerParser(reasoning, self._starts, open_block)

    def fence(self, tools: Sequence[CallableTool], rules: CallRules) -> ProgramDraft | None:
        """A string ends at its closing tag, even where no other tag follows."""
        # With a newline behind the tag, the tag alone does not end a string, and must not be what another reader takes
        # for its end.
        forbidden = [f"{_END_VALUE}{char}" for char in "< \t\r"] if self._newline else []
        values = ValueWriter(f"{_END_VALUE}{self._newline}", forbidden)
        names = [tool.name for tool in tools]
        branches = distinct(branch for tool in tools for branch in self._branches(tool, names, values))
        relaxed = [*(one for tool in tools for one in tool.arguments.relaxed), *values.relaxed]
        return write_program(self._markup, branches, rules, relaxed)

    def _branches(self, tool: CallableTool, names: Sequence[str], values: ValueWriter) -> list[Branch]:
        """From a call's name to its end; where a longer name may go on, one branch for each first parameter."""
        start = f"{tool.name}{self._newline}"
        behind_key = f"{_END_KEY}{self._newline}{_VALUE}"
        parameters = tool.arguments.parameters
        if tool.arguments.is_open:
            (any_one,) = parameters
            key = Raw(behind_key, any_one.place, 1, pattern=_ANY_KEY)
            rest = sequence(key, values.untyped(any_one))
            more = Repeat(sequence(Literal(_KEY), rest))
            if self._newline:
                return [Branch(start, sequence(more, Literal(_END_CALL)))]
            first = sequence(rest, more, Literal(_END_CALL))
            return [Branch(f"{start}{_KEY}", first), Branch(f"{start}{_END_CALL}", NOTHING)]
        items = [KeyItem(f"{_KEY}{one.key}{behind_key}", values.untyped(one), one.is_required) for one in parameters]
        if self._newline or not any(name.startswith(tool.name) and name != tool.name for name in names):
            return [Branch(start, Keys(tuple(items), "", _END_CALL))]
        firsts = [
            Branch(
                start + item.key,
                sequence(item.value, Keys(tuple(other for other in items if other is not item), "", _END_CALL)),
            )
            for item in items
        ]
        is_optional = not any(item.is_required for item in items)
        return [*firsts, *([Branch(f"{start}{_END_CALL}", NOTHING)] if is_optional else [])]

    def _write_call(self, call: CallText) -> str:
        arguments = "".join(
            self._write_argument(one.key, one.text if one.is_string else _sheltered(one.text))
            for one in parameters_of(call)
        )
        return f"{self._newline}{_CALL}{call.name}{self._newline}{arguments}{_END_CALL}"

    def _write_argument(self, key: str, value: str) -> str:
        newline = self._newline
        return f"{_KEY}{key}{_END_KEY}{newline}{_VALUE}{value}{_END_VALUE}{newline}"


class _Place(Enum):
    NAME = auto()
    ARGUMENTS = auto()
    KEY = auto()
    BEHIND_KEY = auto()
    VALUE = auto()
    LOST = auto()
    """In a call that cannot be read any more."""


class _GlmCall:
    """A ``BlockReader``: every call is its own block."""

    def __init__(self, index: int, types: ParameterTypes) -> None:
        self.rest: str | None = None
        self._index = index
        self._types = types
        self._place = _Place.NAME
        self._call: CallWriter | None = None
        self._fault: str | None = None
        self._seen = [_CALL]
        self._held = ""
        self._waits = False
        """More text decides what the beginning of ``_held`` is."""

    def push(self, text: str) -> list[ParseEvent]:
        """More of the call."""
        self._held += text
        self._waits = False
        events: list[ParseEvent] = []
        while self.rest is None and self._held and not self._waits:
            events.extend(self._step())
        return events

    def finish(self) -> list[ParseEvent]:
        """The answer is over, and so an unfinished call is lost."""
        self._take(len(self._held))
        return self._leave("the answer ends inside the call")

    def _step(self) -> list[ParseEvent]:
        match self._place:
            case _Place.NAME:
                return self._read_name()
            case _Place.ARGUMENTS:
                return self._read_arguments()
            case _Place.KEY:
                return self._read_key()
            case _Place.BEHIND_KEY:
                if self._find(_VALUE) == _VALUE:
                    self._place = _Place.VALUE
                return []
            case _Place.VALUE:
                return self._read_value()
            case _Place.LOST:
                return self._skip()

    def _read_name(self) -> list[ParseEvent]:
        split = _NAME_ENDS.split(self._held)
        name = split.before.strip()
        if len(split.before) > _MAX_NAME_CHARS or (split.marker is not None and not name):
            self._lose("the call has no name")
            return []
        if split.marker is None:
            self._waits = True
            return []
        self._take(len(split.before))
        self._call = CallWriter(self._index, name, self._types)
        self._place = _Place.ARGUMENTS
        return [self._call.started]

    def _read_arguments(self) -> list[ParseEvent]:
        assert self._call is not None
        match self._find(_KEY, _END_CALL):
            case "<arg_key>":
                self._place = _Place.KEY
            case "</tool_call>":
                events = self._call.finish()
                return [*events, *self._leave(self._call.fault)]
            case _:
                pass
        return []

    def _read_key(self) -> list[ParseEvent]:
        assert self._call is not None
        split = _END_KEYS.split(self._held)
        if split.marker is None:
            self._waits = True
            return []
        self._take(len(split.before) + len(split.marker))
        self._place = _Place.BEHIND_KEY
        return self._call.begin(split.before, Marking.NONE)

    def _read_value(self) -> list[ParseEvent]:
        assert self._call is not None
        end, is_over = _find_value_end(self._held)
        events = self._call.add(self._take(end))
        if not is_over:
            self._waits = True
            return events
        self._take(len(_END_VALUE))
        events.extend(self._call.end())
        self._place = _Place.ARGUMENTS
        if self._call.fault is not None:
            self._lose(self._call.fault)
        return events

    def _skip(self) -> list[ParseEvent]:
        split = _CALL_ENDS.split(self._held)
        self._take(len(split.before))
        if split.marker is None:
            self._waits = True
            return []
        if split.marker == _END_CALL:
            self._take(len(_END_CALL))
        return self._leave("")

    def _find(self, *tags: str) -> str | None:
        """Take one of ``tags`` and the whitespace before it; where there is something else, the call is lost."""
        start = len(self._held) - len(self._held.lstrip())
        found = next((tag for tag in tags if self._held.startswith(tag, start)), None)
        if found is not None:
            self._take(start + len(found))
        elif any(tag.startswith(self._held[start:]) for tag in tags):
            self._waits = True
        else:
            self._lose(f"{' or '.join(tags)} expected")
        return found

    def _lose(self, reason: str) -> None:
        self._fault = reason
        self._place = _Place.LOST

    def _leave(self, fault: str | None) -> list[ParseEvent]:
        """The call is over, for the reason known or ``fault``, or well."""
        self.rest, self._held = self._held, ""
        fault = self._fault or fault
        return [] if fault is None else [Malformed("".join(self._seen), fault)]

    def _take(self, num_chars: int) -> str:
        taken, self._held = self._held[:num_chars], self._held[num_chars:]
        self._seen.append(taken)
        return taken


def _find_value_end(text: str) -> tuple[int, bool]:
    """How much of ``text`` certainly belongs to the value, and whether that is all of it.

    The tag ends a value only where a tag follows that may: a value may speak of tags.
    """
    match = _VALUE_END.search(text)
    if match is not None:
        return match.start(), True
    position = text.rfind(_END_VALUE)
    if position >= 0 and any(tag.startswith(text[position + len(_END_VALUE) :].lstrip()) for tag in _BEHIND_VALUE):
        return position, False
    position = text.rfind("<", max(0, len(text) - len(_END_VALUE) + 1))
    if position >= 0 and _END_VALUE.startswith(text[position:]):
        return position, False
    return len(text), False


def _sheltered(value: str) -> str:
    """A JSON value in which no tag ends it."""
    return value.replace("<", "\\u003c") if _VALUE_END.search(value) else value


GLM_4_5 = GlmDialect("glm_xml_4_5", "\n")
GLM_4_7 = GlmDialect("glm_xml_4_7", "")
