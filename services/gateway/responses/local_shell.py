"""The local_shell tool: to the model a function, to the client an item of its own with an ``action``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import orjson
from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.fields import Fields

NAME = "local_shell"
_PARAMETERS = (
    '{"type": "object", "properties": {'
    '"command": {"type": "array", "items": {"type": "string"}, "description": "The program and its arguments."}, '
    '"working_directory": {"type": "string", "description": "Where to run it."}, '
    '"timeout_ms": {"type": "integer", "description": "When to stop it, in milliseconds."}, '
    '"env": {"type": "object", "additionalProperties": {"type": "string"}, "description": "Environment variables."}'
    '}, "required": ["command"]}'
)


def tool() -> conversation_pb2.Tool:
    """What the model is offered."""
    return conversation_pb2.Tool(
        name=NAME,
        description="Runs a command on the user's machine and returns its output.",
        kind=conversation_pb2.CALL_KIND_FUNCTION,
        parameters_json=_PARAMETERS,
    )


def action_of(arguments: str) -> dict[str, Any]:
    """The action of a call that the model made. Text without one is given to a shell, which says what is wrong."""
    try:
        read: Any = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        read = {"command": arguments}
    values = cast(dict[str, Any], read) if isinstance(read, dict) else {"command": arguments}
    environment, timeout = values.get("env"), values.get("timeout_ms")
    return {
        "type": "exec",
        "command": _command(values.get("command"), arguments),
        "env": _texts(cast(dict[str, Any], environment)) if isinstance(environment, dict) else {},
        "timeout_ms": timeout if isinstance(timeout, int) and not isinstance(timeout, bool) else None,
        "user": _text(values.get("user")),
        "working_directory": _text(values.get("working_directory")),
    }


def arguments_of(action: Fields) -> str:
    """The arguments of a call that the client echoes: equal as JSON to those that ``action_of`` was made from."""
    given = {key: value for key, value in action.values.items() if key != "type" and value not in (None, {})}
    members = (f'"{key}": {action.raw(key)}' for key in _KEYS if key in given)
    return "{" + ", ".join(members) + "}"


_KEYS = ("command", "working_directory", "timeout_ms", "env", "user")


def _command(value: Any, arguments: str) -> list[str]:
    if isinstance(value, list) and value:
        return [word if isinstance(word, str) else orjson.dumps(word).decode() for word in cast(list[Any], value)]
    return ["bash", "-lc", value if isinstance(value, str) else arguments]


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: value for key, value in values.items() if isinstance(value, str)}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
