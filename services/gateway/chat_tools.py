"""The tools of a chat request, and which of them may be called."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.errors import BadRequestError
from services.gateway.fields import Fields, wrong

MAX_NAME_CHARACTERS = 256
NO_PARAMETERS = '{"type": "object", "properties": {}}'
"""The schema of a function whose client gives none."""

_MODES = {
    "none": conversation_pb2.TOOL_CHOICE_MODE_NONE,
    "auto": conversation_pb2.TOOL_CHOICE_MODE_AUTO,
    "required": conversation_pb2.TOOL_CHOICE_MODE_REQUIRED,
}
_SYNTAXES = {
    "lark": conversation_pb2.TOOL_GRAMMAR_SYNTAX_LARK,
    "regex": conversation_pb2.TOOL_GRAMMAR_SYNTAX_REGEX,
}


def parse_tools(body: Fields) -> list[conversation_pb2.Tool]:
    """In the client's order. Raises BadRequestError."""
    tools: list[conversation_pb2.Tool] = []
    names: set[str] = set()
    for fields in body.objects("tools"):
        kind, definition = _definition(fields)
        tool = _function(definition) if kind == "function" else _custom(definition)
        if tool.name in names:
            raise _wrong_name(definition, "is the name of an earlier tool")
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
        name=_name(fields),
        description=fields.text("description"),
        kind=conversation_pb2.CALL_KIND_FUNCTION,
        parameters_json=NO_PARAMETERS if fields.object("parameters") is None else fields.raw("parameters"),
        strict=bool(fields.flag("strict")),
    )


def _custom(fields: Fields) -> conversation_pb2.Tool:
    return conversation_pb2.Tool(
        name=_name(fields),
        description=fields.text("description"),
        kind=conversation_pb2.CALL_KIND_CUSTOM,
        grammar=_grammar(fields),
    )


def _grammar(fields: Fields) -> conversation_pb2.ToolGrammar | None:
    form = fields.object("format")
    if form is None or one_of(form, "type", ("text", "grammar")) == "text":
        return None
    grammar = form.required_object("grammar")
    return conversation_pb2.ToolGrammar(
        syntax=_SYNTAXES[one_of(grammar, "syntax", _SYNTAXES)], text=grammar.required_text("definition")
    )


def _name(fields: Fields) -> str:
    name = fields.required_text("name")
    if not 1 <= len(name) <= MAX_NAME_CHARACTERS:
        raise _wrong_name(fields, f"must be 1 to {MAX_NAME_CHARACTERS} characters long, not {len(name)}")
    return name


def _choice(body: Fields, value: Any, names: Collection[str]) -> conversation_pb2.ToolChoice:
    if isinstance(value, str):
        return conversation_pb2.ToolChoice(mode=_MODES[one_of(body, "tool_choice", _MODES)])
    if not isinstance(value, dict):
        raise wrong("tool_choice", "a string or an object", value)
    choice = body.required_object("tool_choice")
    if choice.text("type") != "allowed_tools":
        named = _named(choice, names)
        return conversation_pb2.ToolChoice(mode=conversation_pb2.TOOL_CHOICE_MODE_REQUIRED, allowed_names=[named])
    allowed = choice.required_object("allowed_tools")
    mode = one_of(allowed, "mode", ("auto", "required"))
    allowed_names = [_named(tool, names) for tool in allowed.objects("tools")]
    if not allowed_names:
        raise BadRequestError(f"'{allowed.name('tools')}' must name at least one tool.", param=allowed.name("tools"))
    return conversation_pb2.ToolChoice(mode=_MODES[mode], allowed_names=allowed_names)


def _named(fields: Fields, names: Collection[str]) -> str:
    _, definition = _definition(fields)
    name = definition.required_text("name")
    if name not in names:
        raise _wrong_name(definition, "is none of the names in 'tools'")
    return name


def _wrong_name(fields: Fields, what: str) -> BadRequestError:
    return BadRequestError(f"'{fields.name('name')}' {what}.", param=fields.name("name"))


def one_of(fields: Fields, key: str, choices: Collection[str]) -> str:
    """A text that must be there and be one of these. Raises BadRequestError."""
    value = fields.required_text(key)
    if value not in choices:
        raise BadRequestError(
            f"'{fields.name(key)}' must be one of {', '.join(choices)}, not {value[:40]!r}.", param=fields.name(key)
        )
    return value
