"""Calls and tools as the XML-like formats write them: parameter by parameter, a schema on one line."""

from __future__ import annotations

from dataclasses import dataclass

from services.tokenizer.dialects.events import CallText, ToolSpec
from services.tokenizer.dialects.json_text import decode_string, is_string, quote, respace, split_object
from services.tokenizer.dialects.schema import CUSTOM_PARAMETER

_CUSTOM_SCHEMA = (
    f'{{"type": "object", "properties": {{"{CUSTOM_PARAMETER}": {{"type": "string"}}}}, '
    f'"required": ["{CUSTOM_PARAMETER}"]}}'
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of a call to be written: ``text`` is a string's characters, or a JSON value with canonical spacing."""

    key: str
    text: str
    is_string: bool


def parameters_of(call: CallText) -> list[Parameter]:
    """A call's parameters in order, duplicates included.

    Arguments that are no object become one string parameter, as DeepSeek's encoder has it; no text at all is no
    parameter.
    """
    if call.is_custom:
        return [Parameter(CUSTOM_PARAMETER, call.arguments, is_string=True)]
    if not call.arguments.strip():
        return []
    members = split_object(call.arguments)
    if members is None:
        return [Parameter("arguments", call.arguments, is_string=True)]
    return [
        Parameter(member.key, decode_string(member.value), is_string=True)
        if is_string(member.value)
        else Parameter(member.key, respace(member.value), is_string=False)
        for member in members
    ]


def function_json(tool: ToolSpec) -> str:
    """A tool as a JSON object on one line: name, description, parameters; the schema keeps its order and spelling."""
    schema = _CUSTOM_SCHEMA if tool.is_custom else tool.parameters_json
    fields = [f'"name": {quote(tool.name)}']
    if tool.description is not None:
        fields.append(f'"description": {quote(tool.description)}')
    if schema.strip():
        fields.append(f'"parameters": {respace(schema)}')
    return "{" + ", ".join(fields) + "}"
