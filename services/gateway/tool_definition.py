"""What the tools of OpenAI's protocols have in common, wherever each of them puts it."""

from __future__ import annotations

from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.errors import BadRequestError
from services.gateway.fields import Fields

MAX_NAME_CHARACTERS = 256
MODES = {
    "none": conversation_pb2.TOOL_CHOICE_MODE_NONE,
    "auto": conversation_pb2.TOOL_CHOICE_MODE_AUTO,
    "required": conversation_pb2.TOOL_CHOICE_MODE_REQUIRED,
}
"""What ``tool_choice`` may be as a word."""

_SYNTAXES = {
    "lark": conversation_pb2.TOOL_GRAMMAR_SYNTAX_LARK,
    "regex": conversation_pb2.TOOL_GRAMMAR_SYNTAX_REGEX,
}


def tool_name(fields: Fields) -> str:
    """A tool's name, not empty and not too long. Raises BadRequestError."""
    name = fields.required_text("name")
    if not 1 <= len(name) <= MAX_NAME_CHARACTERS:
        raise wrong_name(fields, f"must be 1 to {MAX_NAME_CHARACTERS} characters long, not {len(name)}")
    return name


def wrong_name(fields: Fields, what: str) -> BadRequestError:
    """The error for a tool's name."""
    return BadRequestError(f"'{fields.name('name')}' {what}.", param=fields.name("name"))


def grammar_of(fields: Fields) -> conversation_pb2.ToolGrammar:
    """A grammar from its ``syntax`` and ``definition``. Raises BadRequestError."""
    syntax = _SYNTAXES[fields.one_of("syntax", _SYNTAXES)]
    return conversation_pb2.ToolGrammar(syntax=syntax, text=fields.required_text("definition"))
