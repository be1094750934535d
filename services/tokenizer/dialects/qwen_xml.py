"""Qwen3-Coder, Qwen3.5: parameters between tags, strings without quotation marks.

    <tool_call>
    <function=N>
    <parameter=K>
    V
    </parameter>
    </function>
    </tool_call>

Calls are joined by a newline; an empty line stands between an answer's text and its first call. Containers are JSON,
strings are raw, and scalars are JSON or, in the original Coder models, ``True``, ``False`` and ``None``. Nothing marks
a value's type: the tool's schema decides (see ``schema.read_value``). The format has no escapes: a string that
contains a closing tag with the next tag behind it ends there for every reader. In a container ``<`` is escaped then.

Read besides the canonical form: missing newlines, a missing ``<tool_call>`` before ``<function=``, missing
``</function>`` or ``</tool_call>``, several functions in one block. A call is finished by its closing tag; a block
that ends or breaks before gets ``Malformed``, and a call begun in it, of which deltas may have gone out, never gets
``CallFinished``.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.tokenizer.dialects.answer import AnswerParser, block_starts
from services.tokenizer.dialects.block_text import BlockText
from services.tokenizer.dialects.call_text import Parameter, parameters_of
from services.tokenizer.dialects.dialect import StreamParser
from services.tokenizer.dialects.events import CallText, ResultText, ToolSpec
from services.tokenizer.dialects.reasoning import ReasoningStage, ThinkTags
from services.tokenizer.dialects.schema import PYTHON_LITERALS, ParameterTypes
from services.tokenizer.dialects.tool_lines import write_tool_lines
from services.tokenizer.dialects.xml_block import FUNCTION, VALUE_ENDS, XmlBlockReader, ends_value
from services.tokenizer.fence.callable import CallableTool
from services.tokenizer.fence.calls import CallRules, Markup, Untagged, distinct, write_program
from services.tokenizer.fence.program import (
    Branch,
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

_OPENING = "<tool_call>"
_CLOSING = "</tool_call>"
_FUNCTION_END = "</function>"
_OPENINGS = (_OPENING, FUNCTION)
_LEAD_IN = "\n\n"
_STARTS = block_starts(_OPENINGS, _LEAD_IN)
_THINKING = ThinkTags("<think>\n", "\n</think>\n\n")
# In thinking only the tag with a call behind it counts, so that a model may think about the tag.
_STARTS_IN_THINKING = (f"{_OPENING}\n{FUNCTION}", f"{_OPENING}{FUNCTION}")
_STRAYS = (_CLOSING, _FUNCTION_END, "</think>")
_FIRST_CALL = f"\n{FUNCTION}"
_MARKUP = Markup(
    lead_in=_LEAD_IN,
    is_bare_at_start=True,
    behind_thinking="\n\n",
    tag=_OPENING,
    first_call=_FIRST_CALL,
    next_call=f"\n{_CLOSING}\n{_OPENING}{_FIRST_CALL}",
    end=f"\n{_CLOSING}",
    think_tags=_THINKING,
    markers=(_OPENING, _CLOSING),
    # Coder models are known to leave out the opening tag, with or without the closing one.
    untagged=Untagged(
        start=FUNCTION,
        name_end=">",
        next_calls=tuple(
            f"{closing}{opening}{_FIRST_CALL}" for closing in ("", f"\n{_CLOSING}") for opening in ("", f"\n{_OPENING}")
        ),
        end=f"\n{_CLOSING}",
    ),
)
_ANY_KEY = r"[^<>\n]+"
_PYTHON_BY_JSON = {value: literal for literal, value in PYTHON_LITERALS.items()}


class QwenXml:
    """A ``Dialect``; immutable."""

    def __init__(self, *, has_python_scalars: bool = False) -> None:
        """``has_python_scalars``: the model was trained on a template that prints scalars as Python does."""
        self.name = "qwen_xml_python" if has_python_scalars else "qwen_xml"
        self._has_python_scalars = has_python_scalars
        self.think_tags = _THINKING

    def write_tools(self, tools: Sequence[ToolSpec]) -> str:
        """Instructions for the system message, for chat templates that know no tools."""
        return (
            "# Tools\n\n"
            "You can call functions to do what the user asks. These are their signatures, one JSON object a line:\n"
            f"<tools>\n{write_tool_lines(tools)}\n</tools>\n\n"
            "To call one, answer in this form, one parameter after the other, strings without quotation marks and "
            "everything else as JSON:\n"
            f"{_OPENING}\n{FUNCTION}function-name>\n<parameter=parameter-name>\nvalue\n</parameter>\n</function>\n"
            f"{_CLOSING}\n"
            "To call several, write one such block after the other. Results come back between <tool_response> and "
            "</tool_response>."
        )

    def write_calls(self, text: str, calls: Sequence[CallText]) -> str:
        """An assistant turn: text, then the calls."""
        if not calls:
            return text
        lead_in = _LEAD_IN if text else ""
        return text + lead_in + "\n".join(f"{_OPENING}\n{self._function(call)}\n{_CLOSING}" for call in calls)

    def write_results(self, results: Sequence[ResultText]) -> str:
        """Results as the content of a user turn."""
        return "\n".join(f"<tool_response>\n{result.text}\n</tool_response>" for result in results)

    def parser(
        self, tools: Sequence[ToolSpec], *, starts_in_reasoning: bool, calls_end_thinking: bool = True
    ) -> StreamParser:
        """A parser for one answer; ``tools`` decide the values' types."""
        types = ParameterTypes(tools)

        def open_block(opening: str, index: int) -> XmlBlockReader:
            has_tag = opening == _OPENING
            # Without its tag it may be prose about calls: any call behind it is one.
            block = BlockText(opening if has_tag else "", _CLOSING, (_OPENING,) if has_tag else _OPENINGS)
            reader = XmlBlockReader(block, _CLOSING, index, types, reads_python=self._has_python_scalars)
            if not has_tag:
                reader.push(opening)
            return reader

        reasoning = ReasoningStage(
            _THINKING,
            _STARTS_IN_THINKING,
            starts_in_reasoning=starts_in_reasoning,
            calls_end_thinking=calls_end_thinking,
        )
        return AnswerParser(reasoning, _STARTS, open_block, strays=_STRAYS)

    def fence(self, tools: Sequence[CallableTool], rules: CallRules) -> ProgramDraft | None:
        """A string ends at its closing tag on a line of its own, even where no other tag follows."""
        spelling = _python_spelling if self._has_python_scalars else None
        values = ValueWriter("\n</parameter>\n", VALUE_ENDS, spelling=spelling)
        branches = distinct(Branch(f"{tool.name}>\n", _fenced(tool, values)) for tool in tools)
        relaxed = [*(one for tool in tools for one in tool.arguments.relaxed), *values.relaxed]
        return write_program(_MARKUP, branches, rules, relaxed)

    def _function(self, call: CallText) -> str:
        parameters = "".join(
            f"<parameter={parameter.key}>\n{self._value(parameter)}\n</parameter>\n"
            for parameter in parameters_of(call)
        )
        return f"{FUNCTION}{call.name}>\n{parameters}</function>"

    def _value(self, parameter: Parameter) -> str:
        if parameter.is_string:
            return parameter.text
        if self._has_python_scalars and parameter.text in _PYTHON_BY_JSON:
            return _PYTHON_BY_JSON[parameter.text]
        if ends_value(parameter.text, _CLOSING):
            return parameter.text.replace("<", "\\u003c")
        return parameter.text


def _python_spelling(text: str) -> str:
    return _PYTHON_BY_JSON.get(text, text)


def _fenced(tool: CallableTool, values: ValueWriter) -> Node:
    """From behind the name to the end of the call."""
    parameters = tool.arguments.parameters
    if tool.arguments.is_open:
        (any_one,) = parameters
        key = Raw(">\n", any_one.place, 1, pattern=_ANY_KEY)
        one = sequence(Literal("<parameter="), key, values.untyped(any_one))
        return sequence(Repeat(one), Literal(_FUNCTION_END))
    items = [KeyItem(f"<parameter={one.key}>\n", values.untyped(one), one.is_required) for one in parameters]
    return Keys(tuple(items), "", _FUNCTION_END)
