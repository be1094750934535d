"""Which tools may be called."""

from __future__ import annotations

from collections.abc import Collection

from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.errors import BadRequestError
from services.gateway.fields import Fields, wrong
from services.gateway.responses.tools import definition_of
from services.gateway.tool_definition import MODES, wrong_name

_OWN_TYPES = ("function", "custom")

_Keys = Collection[tuple[str, str]]


def parse_tool_choice(body: Fields, keys: _Keys) -> conversation_pb2.ToolChoice | None:
    """``keys`` are the namespaces and names of the tools that there are.

    None where the client leaves it open, or has no tools that it could be about. Raises BadRequestError.
    """
    value = body.values.get("tool_choice")
    if value is None:
        return None
    if isinstance(value, str):
        choice = conversation_pb2.ToolChoice(mode=MODES[body.one_of("tool_choice", MODES)])
    elif isinstance(value, dict):
        choice = _choice(body.required_object("tool_choice"), keys)
    else:
        raise wrong("tool_choice", "a string or an object", value)
    if keys:
        return choice
    # Where all tools are of types that are skipped, nothing can be required.
    if choice.mode == conversation_pb2.TOOL_CHOICE_MODE_REQUIRED and not body.values.get("tools"):
        raise BadRequestError("'tool_choice' asks for a call, but there are no 'tools'.", param="tool_choice")
    return None


def _choice(fields: Fields, keys: _Keys) -> conversation_pb2.ToolChoice:
    match fields.required_text("type"):
        case "allowed_tools":
            return _allowed(fields.object("allowed_tools") or fields, keys)
        case "function" | "custom":
            mode, names = conversation_pb2.TOOL_CHOICE_MODE_REQUIRED, [_named(fields, keys)]
            return conversation_pb2.ToolChoice(mode=mode, allowed_names=names)
        case _:
            return conversation_pb2.ToolChoice(mode=conversation_pb2.TOOL_CHOICE_MODE_AUTO)


def _allowed(fields: Fields, keys: _Keys) -> conversation_pb2.ToolChoice:
    mode = fields.one_of("mode", ("auto", "required"))
    tools = list(fields.objects("tools"))
    if not tools:
        raise BadRequestError(f"'{fields.name('tools')}' must name at least one tool.", param=fields.name("tools"))
    names = [_named(tool, keys) for tool in tools if (tool.text("type") or "function") in _OWN_TYPES]
    if not names:
        # All that is allowed runs elsewhere.
        return conversation_pb2.ToolChoice(mode=conversation_pb2.TOOL_CHOICE_MODE_NONE)
    return conversation_pb2.ToolChoice(mode=MODES[mode], allowed_names=names)


def _named(fields: Fields, keys: _Keys) -> str:
    """A tool as the model knows it. Where no namespace is given, the only tool of that name is meant."""
    definition = definition_of(fields)
    name, namespace = definition.required_text("name"), definition.text("namespace")
    found = [key for key in keys if key[1] == name and namespace in (None, key[0])]
    if namespace is None and ("", name) in found:
        return name
    if len(found) != 1:
        raise wrong_name(definition, "is none of the names in 'tools'")
    return "__".join(part for part in found[0] if part)
