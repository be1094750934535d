"""DeepSeek's markup for tools, in the spelling of V3.2, V4 and V4.1.

String values are raw, all others JSON. A string that spells the tag behind a value is the one thing that cannot stand
raw: it is written as JSON with ``<`` escaped, so that it is read back as the same string from another text.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from services.tokenizer.dialects.answer import AnswerParser, block_starts
from services.tokenizer.dialects.call_text import Parameter, function_json, parameters_of
from services.tokenizer.dialects.deepseek_prompts import TOOLS_V3_2, TOOLS_V4
from services.tokenizer.dialects.dialect import StreamParser
from services.tokenizer.dialects.dsml_block import DsmlBlock
from services.tokenizer.dialects.dsml_tags import BLOCK_NAMES, MARKER, find_value_end
from services.tokenizer.dialects.events import CallText, ResultText, ToolSpec
from services.tokenizer.dialects.json_text import quote
from services.tokenizer.dialects.reasoning import ReasoningStage, ThinkTags
from services.tokenizer.dialects.schema import STRING_ONLY, ParameterTypes
from services.tokenizer.fence import parameters as schema_of
from services.tokenizer.fence.callable import CallableTool
from services.tokenizer.fence.calls import CallRules, Markup, distinct, write_program
from services.tokenizer.fence.program import (
    Branch,
    Choose,
    KeyItem,
    Keys,
    Literal,
    Node,
    ProgramDraft,
    Raw,
    Repeat,
    sequence,
)
from services.tokenizer.fence.values import ValueWriter

_LEAD_IN = "\n\n"
_THINK_TAGS = ThinkTags("<think>", "</think>")

_SPELT_BLOCKS = (*BLOCK_NAMES, " calls")
_ANY_KEY = r'[^"<>\n]+'
_OPENINGS = [
    escape + opening
    for escape in ("", "\\")
    for opening in (
        *(f"<{MARKER}{name}>" for name in _SPELT_BLOCKS),
        f'<{MARKER}invoke name="',
        f'<{MARKER} invoke name="',
    )
]
_STRAYS = tuple(f"</{MARKER}{name}>" for name in (*_SPELT_BLOCKS, "invoke", " invoke", "parameter", " parameter"))
_STARTS = block_starts(_OPENINGS, _LEAD_IN, ignore_case=True)
_STARTS_IN_THINKING = [
    f"{_LEAD_IN[start:]}<{MARKER}{name}>{follower}"
    for start in range(len(_LEAD_IN) + 1)
    for name in _SPELT_BLOCKS
    for follower in ("\n", "<")
]


class DsmlVersion(Enum):
    """Of the model family; each has its own tags."""

    V3_2 = auto()
    V4 = auto()
    V4_1 = auto()


_BLOCK_TAGS = {DsmlVersion.V3_2: "function_calls", DsmlVersion.V4: "tool_calls", DsmlVersion.V4_1: " calls"}


class DsmlDialect:
    """A ``Dialect``; immutable."""

    def __init__(self, name: str, version: DsmlVersion) -> None:
        self.name = name
        self.version: Final = version
        space = " " if version is DsmlVersion.V4_1 else ""
        self._block_tag = f"{MARKER}{_BLOCK_TAGS[version]}"
        self._invoke_tag = f"{MARKER}{space}invoke"
        self._parameter_tag = f"{MARKER}{space}parameter"
        self._closing = f"</{self._parameter_tag}>"
        self.think_tags = _THINK_TAGS
        self._markup = Markup(
            lead_in=_LEAD_IN,
            is_bare_at_start=False,
            behind_thinking="",
            tag=f"<{self._block_tag}>",
            first_call=f'\n<{self._invoke_tag} name="',
            next_call=f'\n<{self._invoke_tag} name="',
            end=f"\n</{self._block_tag}>",
            think_tags=_THINK_TAGS,
            markers=(MARKER,),
        )

    def write_tools(self, tools: Sequence[ToolSpec]) -> str:
        """The section behind the system message's text and an empty line; it ends with a newline."""
        template = TOOLS_V3_2 if self.version is DsmlVersion.V3_2 else TOOLS_V4
        section = template.replace("{calls}", self._block_tag)
        section = section.replace("{invoke}", self._invoke_tag).replace("{parameter}", self._parameter_tag)
        return section.replace("{schemas}", "\n".join(map(function_json, tools)))

    def write_calls(self, text: str, calls: Sequence[CallText]) -> str:
        """The end-of-sentence token follows at once."""
        if not calls:
            return text
        written = "\n".join(map(self._write_call, calls))
        return f"{text}{_LEAD_IN}<{self._block_tag}>\n{written}\n</{self._block_tag}>"

    def write_results(self, results: Sequence[ResultText]) -> str:
        """V3.2: what stands behind the calls' turn and an empty line. Later: (part of) a user turn's content."""
        if self.version is DsmlVersion.V3_2:
            lines = "".join(f"<result>{result.text}</result>\n" for result in results)
            return f"<function_results>\n{lines}</function_results>"
        return "\n\n".join(f"<tool_result>{result.text}</tool_result>" for result in results)

    def parser(
        self, tools: Sequence[ToolSpec], *, starts_in_reasoning: bool, calls_end_thinking: bool = True
    ) -> StreamParser:
        """Reads every version's spelling, and the known misspellings."""
        types = ParameterTypes(tools)
        tool_by_name = {tool.name: tool for tool in tools}

        def open_block(opening: str, num_calls: int) -> DsmlBlock:
            return DsmlBlock(opening, num_calls, types, tool_by_name)

        reasoning = ReasoningStage(
            _THINK_TAGS,
            _STARTS_IN_THINKING,
            starts_in_reasoning=starts_in_reasoning,
            calls_end_thinking=calls_end_thinking,
        )
        return AnswerParser(reasoning, _STARTS, open_block, strays=_STRAYS)

    def fence(self, tools: Sequence[CallableTool], rules: CallRules) -> ProgramDraft | None:
        """A string that could not stand raw is not allowed; as JSON, which ``write_calls`` makes of it, neither."""
        # What a reader might take for the closing tag if another tag came behind it, or for an opening one.
        other_space = "p" if self.version is DsmlVersion.V4_1 else " "
        forbidden = [f"<{MARKER}", f"<\\{MARKER}", f"<\\/{MARKER}", f"</{MARKER}{other_space}"]
        values = ValueWriter(
            self._closing, [*forbidden, f"{self._closing[:-1]} "], reserved=lambda text: not self._can_stand(text)
        )
        branches = distinct(Branch(f'{tool.name}">\n', self._fenced(tool, values)) for tool in tools)
        relaxed = [*(one for tool in tools for one in tool.arguments.relaxed), *values.relaxed]
        return write_program(self._markup, branches, rules, relaxed)

    def _fenced(self, tool: CallableTool, values: ValueWriter) -> Node:
        start, end = f'<{self._parameter_tag} name="', f"\n</{self._invoke_tag}>"
        parameters = tool.arguments.parameters
        if tool.arguments.is_open:
            (any_one,) = parameters
            key = Raw('" string="', any_one.place, 1, pattern=_ANY_KEY)
            one = sequence(Literal(start), key, self._fenced_value(any_one, values))
            return sequence(Repeat(one, separator="\n"), Literal(end))
        items = [
            KeyItem(f'{start}{one.key}" string="', self._fenced_value(one, values), one.is_required)
            for one in parameters
        ]
        return Keys(tuple(items), "\n", end)

    def _fenced_value(self, parameter: schema_of.Parameter, values: ValueWriter) -> Node:
        types = parameter.types
        branches = [Branch('true">', values.text(parameter))] if "string" in types else []
        if types - STRING_ONLY:
            branches.append(Branch('false">', values.other(parameter)))
        return Choose(tuple(branches))

    def _write_call(self, call: CallText) -> str:
        parameters = "\n".join(map(self._write_parameter, parameters_of(call)))
        return f'<{self._invoke_tag} name="{call.name}">\n{parameters}\n</{self._invoke_tag}>'

    def _write_parameter(self, parameter: Parameter) -> str:
        text, is_string = parameter.text, parameter.is_string
        if not self._can_stand(text):
            text = (quote(text) if is_string else text).replace("<", "\\u003c")
            is_string = False
        marked = "true" if is_string else "false"
        return f'<{self._parameter_tag} name="{parameter.key}" string="{marked}">{text}</{self._parameter_tag}>'

    def _can_stand(self, text: str) -> bool:
        """Whether a reader finds the end of ``text`` where it is."""
        closing = self._closing
        if MARKER.lower() not in text.lower():
            return True
        written = f"{text}{closing}\n</{self._invoke_tag}>"
        return find_value_end(written, closing, is_final=True).end == len(text)


DSML_V3_2 = DsmlDialect("deepseek_dsml_v3_2", DsmlVersion.V3_2)
DSML_V4 = DsmlDialect("deepseek_dsml_v4", DsmlVersion.V4)
DSML_V4_1 = DsmlDialect("deepseek_dsml_v4_1", DsmlVersion.V4_1)
