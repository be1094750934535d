"""Hermes, Qwen2.5, Qwen3, SmolLM: a JSON object between tags.

    <tool_call>
    {"name": "N", "arguments": {…}}
    </tool_call>

Calls are joined by a newline; one more stands between an answer's text and its first call. A custom tool is written
as a function with one string parameter.

Read besides the canonical form: missing newlines, ``parameters`` for ``arguments`` and either before the name,
arguments in a string or missing, markdown fences and arrays inside the tags, several calls in one block, a missing
closing tag. A bare object without tags is text. A call is finished when its object is; a block that ends or breaks
before gets ``Malformed``, and a call begun in it, of which deltas may have gone out, never gets ``CallFinished``.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.tokenizer.dialects.answer import AnswerParser, block_starts
from services.tokenizer.dialects.block_text import BlockText
from services.tokenizer.dialects.dialect import StreamParser
from services.tokenizer.dialects.events import CallText, ResultText, ToolSpec
from services.tokenizer.dialects.json_block import JsonBlockReader
from services.tokenizer.dialects.json_text import quote, respace, split_object
from services.tokenizer.dialects.reasoning import ReasoningStage, ThinkTags
from services.tokenizer.dialects.schema import CUSTOM_PARAMETER, ParameterTypes
from services.tokenizer.dialects.tool_lines import write_tool_lines
from services.tokenizer.fence.callable import CallableTool
from services.tokenizer.fence.calls import CallRules, Markup, distinct, write_program
from services.tokenizer.fence.parameters import Parameter
from services.tokenizer.fence.program import (
    Branch,
    GrammarSyntax,
    KeyItem,
    Keys,
    Literal,
    Node,
    ProgramDraft,
    Relaxed,
    Value,
    sequence,
)

_OPENING = "<tool_call>"
_CLOSING = "</tool_call>"
_LEAD_IN = "\n"
_STARTS = block_starts([_OPENING], _LEAD_IN)
_THINKING = ThinkTags("<think>\n", "\n</think>\n\n")
# In thinking only the tag with a call behind it counts, so that a model may think about the tag.
_STARTS_IN_THINKING = (f"{_OPENING}\n{{", f"{_OPENING}{{")
_STRAYS = (_CLOSING, "</think>")
_FIRST_CALL = '\n{"name": '
_MARKUP = Markup(
    lead_in=_LEAD_IN,
    is_bare_at_start=True,
    behind_thinking="\n\n",
    tag=_OPENING,
    first_call=_FIRST_CALL,
    next_call=f"\n{_OPENING}{_FIRST_CALL}",
    end="",
    think_tags=_THINKING,
    markers=(_OPENING, _CLOSING),
)


class ChatmlJson:
    """A ``Dialect``; immutable."""

    def __init__(self) -> None:
        self.name = "chatml_json"
        self.think_tags = _THINKING

    def write_tools(self, tools: Sequence[ToolSpec]) -> str:
        """Instructions for the system message, for chat templates that know no tools."""
        return (
            "# Tools\n\n"
            "You can call functions to do what the user asks. These are their signatures, one JSON object a line:\n"
            f"<tools>\n{write_tool_lines(tools)}\n</tools>\n\n"
            "To call one, answer with a JSON object that has its name and its arguments, between these tags:\n"
            f'{_OPENING}\n{{"name": "function-name", "arguments": {{"argument-name": "value"}}}}\n{_CLOSING}\n'
            "To call several, write one such block after the other. Results come back between <tool_response> and "
            "</tool_response>."
        )

    def write_calls(self, text: str, calls: Sequence[CallText]) -> str:
        """An assistant turn: text, then the calls. Arguments are re-spaced and otherwise left as they are."""
        if not calls:
            return text
        lead_in = _LEAD_IN if text else ""
        return text + lead_in + "\n".join(f"{_OPENING}\n{_call_object(call)}\n{_CLOSING}" for call in calls)

    def write_results(self, results: Sequence[ResultText]) -> str:
        """Results as the content of a user turn."""
        return "\n".join(f"<tool_response>\n{result.text}\n</tool_response>" for result in results)

    def parser(
        self, tools: Sequence[ToolSpec], *, starts_in_reasoning: bool, calls_end_thinking: bool = True
    ) -> StreamParser:
        """A parser for one answer; ``tools`` say which of them are custom."""
        types = ParameterTypes(tools)

        def open_block(opening: str, index: int) -> JsonBlockReader:
            return JsonBlockReader(BlockText(opening, _CLOSING, (_OPENING,)), index, types)

        reasoning = ReasoningStage(
            _THINKING,
            _STARTS_IN_THINKING,
            starts_in_reasoning=starts_in_reasoning,
            calls_end_thinking=calls_end_thinking,
        )
        return AnswerParser(reasoning, _STARTS, open_block, strays=_STRAYS)

    def fence(self, tools: Sequence[CallableTool], rules: CallRules) -> ProgramDraft | None:
        """All values are JSON, of open arguments the whole object."""
        branches = distinct(Branch(f'{quote(tool.name)}, "arguments": ', _fenced(tool)) for tool in tools)
        relaxed = [one for tool in tools for one in _relaxed(tool)]
        return write_program(_MARKUP, branches, rules, relaxed)


def _call_object(call: CallText) -> str:
    return f'{{"name": {quote(call.name)}, "arguments": {_arguments(call)}}}'


def _arguments(call: CallText) -> str:
    """As a JSON value. A function's arguments that are no object go into a string: the turn stays readable."""
    if call.is_custom:
        return f"{{{quote(CUSTOM_PARAMETER)}: {quote(call.arguments)}}}"
    if not call.arguments.strip():
        return "{}"
    return respace(call.arguments) if split_object(call.arguments) is not None else quote(call.arguments)


def _fenced(tool: CallableTool) -> Node:
    closing = f"}}\n{_CLOSING}"
    arguments = tool.arguments
    if arguments.is_open:
        return Value(arguments.json_schema, f"tools.{tool.name}", closing)
    items = [KeyItem(f"{quote(one.key)}: ", _value(one), one.is_required) for one in arguments.parameters]
    return sequence(Literal("{"), Keys(tuple(items), ", ", "}"), Literal(closing))


def _value(parameter: Parameter) -> Value:
    grammar = parameter.grammar
    if grammar is not None and grammar.syntax is GrammarSyntax.REGEX:
        pattern = f'{{"type": "string", "pattern": {quote(f"^(?:{grammar.text})$")}}}'
        return Value(pattern, parameter.place)
    return Value(parameter.json_schema(), parameter.place)


def _relaxed(tool: CallableTool) -> list[Relaxed]:
    """In a JSON string, a Lark grammar has no place."""
    grammars = [
        Relaxed(one.place, "grammar")
        for one in tool.arguments.parameters
        if one.grammar is not None and one.grammar.syntax is GrammarSyntax.LARK
    ]
    return [*tool.arguments.relaxed, *grammars]
