"""Input items, one after the other, as turns of the conversation.

What clients put around them stays outside: ids, statuses, annotations, phases.
"""

from __future__ import annotations

import base64
import binascii

from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.errors import BadRequestError
from services.gateway.fields import Fields, wrong
from services.gateway.responses import compaction, local_shell
from services.gateway.responses.hosted_items import read_hosted
from services.gateway.responses.parts import read_content, text_part
from services.gateway.responses.turns import Turns

_ROLES = {
    "user": conversation_pb2.ROLE_USER,
    "assistant": conversation_pb2.ROLE_ASSISTANT,
    "system": conversation_pb2.ROLE_SYSTEM,
    "developer": conversation_pb2.ROLE_DEVELOPER,
}
_TYPE_BY_KEY = (
    ("role", "message"),
    ("output", "function_call_output"),
    ("arguments", "function_call"),
    ("input", "custom_tool_call"),
    ("action", "local_shell_call"),
    ("summary", "reasoning"),
    ("encrypted_content", "reasoning"),
    ("tools", "additional_tools"),
    ("id", "item_reference"),
)
"""What an item without a type is: the first of these that it has."""


def item_type(fields: Fields) -> str:
    """The type that the item has or must have. Raises BadRequestError."""
    kind = fields.text("type")
    if kind is None:
        kind = next((kind for key, kind in _TYPE_BY_KEY if fields.values.get(key) is not None), None)
    return fields.required_text("type") if kind is None else kind


def read_item(fields: Fields, turns: Turns) -> None:
    """Add what the item says. Raises BadRequestError, never for a type that is not known."""
    match kind := item_type(fields):
        case "message":
            _message(fields, turns)
        case "reasoning":
            _reasoning(fields, turns)
        case "function_call" | "custom_tool_call":
            _call(fields, turns, is_custom=kind == "custom_tool_call")
        case "local_shell_call":
            _local_shell_call(fields, turns)
        case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
            _output(fields, kind, turns)
        case "compaction" | "compaction_summary":
            _compaction(fields, turns)
        case _:
            read_hosted(fields, kind, turns)


def _message(fields: Fields, turns: Turns) -> None:
    role = _ROLES[fields.one_of("role", _ROLES)]
    if role == conversation_pb2.ROLE_ASSISTANT:
        turns.say(read_content(fields, "content"))
    else:
        fields.required("content")
        turns.speak(role, read_content(fields, "content"))


def _reasoning(fields: Fields, turns: Turns) -> None:
    """The model saw ``content``; clients that leave it out still have the summary, which may be the same."""
    parts = read_content(fields, "content") or read_content(fields, "summary")
    text = "\n".join(part.text.text for part in parts)
    capsule = _capsule(fields.text("encrypted_content"))
    if text or capsule:
        turns.think(conversation_pb2.Part(reasoning=conversation_pb2.ReasoningPart(text=text, capsule=capsule or None)))


def _capsule(encoded: str | None) -> bytes:
    """Empty for what another server wrote in another alphabet: thinking of its own is no error of the client's."""
    try:
        return base64.b64decode(encoded or "", validate=True)
    except (binascii.Error, ValueError):
        return b""


def _call(fields: Fields, turns: Turns, *, is_custom: bool) -> None:
    turns.call(
        conversation_pb2.Call(
            call_id=fields.nonempty_text("call_id"),
            namespace=fields.text("namespace") or None,
            name=fields.nonempty_text("name"),
            kind=conversation_pb2.CALL_KIND_CUSTOM if is_custom else conversation_pb2.CALL_KIND_FUNCTION,
            arguments=fields.required_text("input") if is_custom else _arguments(fields),
        )
    )


def _arguments(fields: Fields) -> str:
    """Some clients send the object itself instead of its text."""
    value = fields.required("arguments")
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return fields.raw("arguments")
    raise wrong(fields.name("arguments"), "a string of JSON", value)


def _local_shell_call(fields: Fields, turns: Turns) -> None:
    turns.call(
        conversation_pb2.Call(
            call_id=fields.text("call_id") or fields.nonempty_text("id"),
            name=local_shell.NAME,
            kind=conversation_pb2.CALL_KIND_FUNCTION,
            arguments=local_shell.arguments_of(fields.required_object("action")),
        )
    )


def _output(fields: Fields, kind: str, turns: Turns) -> None:
    # The oldest local_shell items have only their ids to point with.
    by_id = fields.text("id") if kind == "local_shell_call_output" else None
    call_id = fields.text("call_id") or by_id or fields.nonempty_text("call_id")
    if not turns.has_call(call_id):
        what = kind.replace("_", " ")
        raise BadRequestError(f"No tool call found for {what} with call_id {call_id[:100]}.", param="input")
    if isinstance(fields.values.get("output"), dict):
        parts = [text_part(fields.raw("output"))]
    else:
        parts = read_content(fields, "output")
    turns.speak(conversation_pb2.ROLE_TOOL, parts, call_id)


def _compaction(fields: Fields, turns: Turns) -> None:
    summary = compaction.unseal(fields.text("encrypted_content") or "")
    if summary is not None:
        turns.speak(conversation_pb2.ROLE_USER, [text_part(summary)])
