"""The tools of a chat request, and which of them may be called."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.errors import BadRequestError
from services.gateway.fields import Fields, wrong
from services.gateway.tool_definition import MODES, grammar_of, tool_name, wrong_name

NO_PARAMETERS = '{"type": "object", "properties": {}}'
"""The schema of a function whose client gives none."""


def parse_tools(body: Fields) -> list[conversation_pb2.Tool]:
    """In the client's order. Raises BadRequestError."""
    tools: list[conversation_pb2.Tool] = []
    names: set[str] = set()
    for fields in body.objects("tools"):
        kind, definition = _definition(fields)
        tool = _function(definition) if kind == "function" else _custom(definition)
        if tool.name in names:
            raise wrong_name(definition, "is the name of an earlier tool")
        names.add(tool.name)
        tools.append(tool)
    return tools


def parse_tool_choice(body: Fields, tools: list[conversation_pb2.Tool]) -> conversation_pb2.ToolChoice | None:
    """None where the client leaves it open, or has no tools that it could be about. Raises BadRequestError."""
    value = body.values.get("tool_choice")
    if value is None:
        return None
    names = {tool.name for tool in tools}
    choice = _choice(body, value, names)
    if names:
        return choice
    if choice.mode == conversation_pb2.TOOL_CHOICE_MODE_REQUIRED:
        raise BadRequestError("'tool_choice' asks for a call, but there are no 'tools'.", param="tool_choice")
    return None


def _definition(fields: Fields) -> tuple[str, Fields]:
    """A tool's kind and the object of that name, which describes it."""
    kind = fields.text("type") or "function"
    if kind not in ("function", "custom"):
        raise BadRequestError(
            f"'{fields.name('type')}' must be function or custom, not {kind[:40]!r}.", param=fields.name("type")
        )
    return kind, fields.required_object(kind)


def _function(fields: Fields) -> conversation_pb2.Tool:
    return conversation_pb2.Tool(
        name=tool_name(fields),
        description=fields.text("description"),
        kind=conversation_pb2.CALL_KIND_FUNCTION,
        parameters_json=NO_PARAMETERS if fields.object("parameters") is None else fields.raw("parameters"),
        strict=bool(fields.flag("strict")),
    )


def _custom(fields: Fields) -> conversation_pb2.Tool:
    return conversation_pb2.Tool(
        name=tool_name(fields),
        description=fields.text("description"),
        kind=conversation_pb2.CALL_KIND_CUSTOM,
        grammar=_grammar(fields),
    )


def _grammar(fields: Fields) -> conversation_pb2.ToolGrammar | None:
    form = fields.object("format")
    if form is None or form.one_of("type", ("text", "grammar")) == "text":
        return None
    return grammar_of(form.required_object("grammar"))


def _choice(body: Fields, value: Any, names: Collection[str]) -> conversation_pb2.ToolChoice:
    if isinstance(value, str):
        return conversation_pb2.ToolChoice(mode=MODES[body.one_of("tool_choice", MODES)])
    if not isinstance(value, dict):
        raise wrong("tool_choice", "a string or an object", value)
    choice = body.required_object("tool_choice")
    if choice.text("type") != "allowed_tools":
        named = _named(choice, names)
        return conversation_pb2.ToolChoice(mode=conversation_pb2.TOOL_CHOICE_MODE_REQUIRED, allowed_names=[named])
    allowed = choice.required_object("allowed_tools")
    mode = allowed.one_of("mode", ("auto", "required"))
    allowed_names = [_named(tool, names) for tool in allowed.objects("tools")]
    if not allowed_names:
        raise BadRequestError(f"'{allowed.name('tools')}' must name at least one tool.", param=allowed.name("tools"))
    return conversation_pb2.ToolChoice(mode=MODES[mode], allowed_names=allowed_names)


def _named(fields: Fields, names: Collection[str]) -> str:
    _, definition = _definition(fields)
    name = definition.required_text("name")
    if name not in names:
        raise wrong_name(definition, "is none of the names in 'tools'")
    return name
