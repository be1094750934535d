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
from services.tokenizer.dialects.schema import ParameterTypes

_LEAD_IN = "\n\n"
_THINK_TAGS = ThinkTags("<think>", "</think>")

_SPELT_BLOCKS = (*BLOCK_NAMES, " calls")
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

    def parser(self, tools: Sequence[ToolSpec], *, starts_in_reasoning: bool) -> StreamParser:
        """Reads every version's spelling, and the known misspellings."""
        types = ParameterTypes(tools)
        tool_by_name = {tool.name: tool for tool in tools}

        def open_block(opening: str, num_calls: int) -> DsmlBlock:
            return DsmlBlock(opening, num_calls, types, tool_by_name)

        reasoning = ReasoningStage(_THINK_TAGS, _STARTS_IN_THINKING, starts_in_reasoning=starts_in_reasoning)
        return AnswerParser(reasoning, _STARTS, open_block, strays=_STRAYS)

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
        closing = f"</{self._parameter_tag}>"
        if MARKER.lower() not in text.lower():
            return True
        written = f"{text}{closing}\n</{self._invoke_tag}>"
        return find_value_end(written, closing, is_final=True).end == len(text)


DSML_V3_2 = DsmlDialect("deepseek_dsml_v3_2", DsmlVersion.V3_2)
DSML_V4 = DsmlDialect("deepseek_dsml_v4", DsmlVersion.V4)
DSML_V4_1 = DsmlDialect("deepseek_dsml_v4_1", DsmlVersion.V4_1)
