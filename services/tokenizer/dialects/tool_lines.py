"""Tools as models have mostly seen them: OpenAI's JSON form, one tool a line."""

from __future__ import annotations

from collections.abc import Sequence

from services.tokenizer.dialects.events import ToolSpec
from services.tokenizer.dialects.json_text import quote, respace
from services.tokenizer.dialects.schema import CUSTOM_PARAMETER

_NO_PARAMETERS = '{"type": "object", "properties": {}}'


def write_tool_lines(tools: Sequence[ToolSpec]) -> str:
    """Schemas keep their key order and spelling; only whitespace between their tokens is made uniform."""
    return "\n".join(map(_tool_line, tools))


def _tool_line(tool: ToolSpec) -> str:
    description = "" if tool.description is None else f'"description": {quote(tool.description)}, '
    return (
        f'{{"type": "function", "function": {{"name": {quote(tool.name)}, {description}'
        f'"parameters": {_parameters(tool)}}}}}'
    )


def _parameters(tool: ToolSpec) -> str:
    if tool.is_custom:
        parameter = quote(CUSTOM_PARAMETER)
        return f'{{"type": "object", "properties": {{{parameter}: {{"type": "string"}}}}, "required": [{parameter}]}}'
    return respace(tool.parameters_json) if tool.parameters_json.strip() else _NO_PARAMETERS
