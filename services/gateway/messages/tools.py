"""The tools of a request, and which of them may be called."""

from __future__ import annotations

from collections.abc import Collection

from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.errors import BadRequestError
from services.gateway.fields import Fields

_MODES = {
    "auto": conversation_pb2.TOOL_CHOICE_MODE_AUTO,
    "any": conversation_pb2.TOOL_CHOICE_MODE_REQUIRED,
    "tool": conversation_pb2.TOOL_CHOICE_MODE_REQUIRED,
    "none": conversation_pb2.TOOL_CHOICE_MODE_NONE,
}


def read_tools(body: Fields) -> list[conversation_pb2.Tool]:
    """In the client's order; those that a server would run itself are left out. Raises BadRequestError."""
    tools: list[conversation_pb2.Tool] = []
    for fields in body.objects("tools"):
        if _is_server_tool(fields):
            continue
        name = fields.nonempty_text("name")
        if any(tool.name == name for tool in tools):
            raise BadRequestError(f"'{fields.name('name')}' is the name of an earlier tool.", param=fields.name("name"))
        fields.required_object("input_schema")
        tools.append(
            conversation_pb2.Tool(
                name=name,
                description=fields.text("description"),
                kind=conversation_pb2.CALL_KIND_FUNCTION,
                parameters_json=fields.raw("input_schema"),
                strict=bool(fields.flag("strict")),
            )
        )
    return tools


def read_tool_choice(
    body: Fields, tools: Collection[conversation_pb2.Tool]
) -> tuple[conversation_pb2.ToolChoice | None, bool | None]:
    """Which calls may be made, and whether several at once; None where it is left open. Raises BadRequestError."""
    fields = body.object("tool_choice")
    if fields is None:
        return None, None
    kind = fields.one_of("type", _MODES)
    names = {tool.name for tool in tools}
    allowed_names = [fields.nonempty_text("name")] if kind == "tool" else []
    if kind in ("any", "tool") and not (names.intersection(allowed_names) if allowed_names else names):
        if any(_is_server_tool(tool) for tool in body.objects("tools")):
            # The call that is wanted may be one of theirs: the model does without.
            return None, None
        raise BadRequestError("'tool_choice' asks for a call of what is not in 'tools'.", param="tool_choice")
    if not names:
        return None, None
    is_single = fields.flag("disable_parallel_tool_use")
    choice = conversation_pb2.ToolChoice(mode=_MODES[kind], allowed_names=allowed_names)
    return choice, None if is_single is None else not is_single


def _is_server_tool(fields: Fields) -> bool:
    """Such as web_search_20250305: there is no schema, since only their server runs it."""
    return fields.text("type") not in (None, "custom") and fields.values.get("input_schema") is None
