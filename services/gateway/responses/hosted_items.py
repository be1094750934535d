"""Items of tools that run elsewhere, and of types that are not known here.

Other servers made them. Calls that hold their result, or get it from an item of its own, become calls and results;
what else has text is text; the rest is skipped. None is ever an error.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

import orjson
from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.errors import BadRequestError
from services.gateway.fields import Fields
from services.gateway.responses.parts import read_content, read_part, text_part
from services.gateway.responses.turns import Turns

_SILENT = frozenset(
    (
        "additional_tools",
        "compaction_trigger",
        "configuration_update",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_list_tools",
    )
)
_RESULTS = ("output", "outputs", "results", "result", "error")
_TEXTS = ("content", "text", "summary", "message", "output")
_ENVELOPE = frozenset(
    (
        "acknowledged_safety_checks",
        "caller",
        "container_id",
        "encrypted_content",
        "environment",
        "execution",
        "id",
        "call_id",
        "name",
        "namespace",
        "pending_safety_checks",
        "server_label",
        "status",
        "type",
        *_RESULTS,
    )
)
_ROLES = {
    "assistant": conversation_pb2.ROLE_ASSISTANT,
    "developer": conversation_pb2.ROLE_DEVELOPER,
    "system": conversation_pb2.ROLE_SYSTEM,
}


def read_hosted(fields: Fields, kind: str, turns: Turns) -> None:
    """Add what an item of another type than this server's own says."""
    if kind in _SILENT:
        return
    call_id = _text(fields, "call_id")
    if kind.endswith("_output") and call_id:
        if turns.has_call(call_id):
            turns.speak(conversation_pb2.ROLE_TOOL, _parts(fields, (*_RESULTS, "tools")), call_id)
    elif kind.endswith("_call") or kind == "program":
        result = _image(fields) if kind == "image_generation_call" else _parts(fields, _RESULTS)
        own_id = call_id or (_text(fields, "id") if result else None)
        if own_id:
            turns.call(_call(fields, kind, own_id))
        if own_id and result:
            turns.speak(conversation_pb2.ROLE_TOOL, result, own_id)
    elif parts := _parts(fields, _TEXTS):
        _speak(_ROLES.get(_text(fields, "role") or "", conversation_pb2.ROLE_USER), parts, turns)


def _speak(role: conversation_pb2.Role.ValueType, parts: list[conversation_pb2.Part], turns: Turns) -> None:
    if role == conversation_pb2.ROLE_ASSISTANT:
        turns.say(parts)
    else:
        turns.speak(role, parts)


def _call(fields: Fields, kind: str, call_id: str) -> conversation_pb2.Call:
    is_custom = isinstance(fields.values.get("input"), str)
    return conversation_pb2.Call(
        call_id=call_id,
        namespace=_text(fields, "namespace") or _text(fields, "server_label"),
        name=_text(fields, "name") or kind.removesuffix("_call"),
        kind=conversation_pb2.CALL_KIND_CUSTOM if is_custom else conversation_pb2.CALL_KIND_FUNCTION,
        arguments=fields.values["input"] if is_custom else _arguments(fields),
    )


def _arguments(fields: Fields) -> str:
    """The one object that the item is about, else an object of all that is not around it, its keys in order."""
    arguments = fields.values.get("arguments")
    if isinstance(arguments, str):
        return arguments
    keys = sorted(key for key, value in fields.values.items() if value is not None and key not in _ENVELOPE)
    if len(keys) == 1 and isinstance(fields.values[keys[0]], dict):
        return fields.raw(keys[0])
    return "{" + ", ".join(f"{orjson.dumps(key).decode()}: {fields.raw(key)}" for key in keys) + "}"


def _parts(fields: Fields, keys: Iterable[str]) -> list[conversation_pb2.Part]:
    """The first of the fields that has something: text, parts, or else its JSON."""
    for key in keys:
        value = fields.values.get(key)
        if value is None or value in ("", [], {}):
            continue
        try:
            return [read_part(fields.required_object(key))] if isinstance(value, dict) else read_content(fields, key)
        except BadRequestError:
            return [text_part(fields.raw(key))]
    return []


def _image(fields: Fields) -> list[conversation_pb2.Part]:
    try:
        data = base64.b64decode(_text(fields, "result") or "", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if not data:
        return []
    image = conversation_pb2.ImagePart(media_type=f"image/{_text(fields, 'output_format') or 'png'}", data=data)
    return [conversation_pb2.Part(image=image)]


def _text(fields: Fields, key: str) -> str | None:
    value = fields.values.get(key)
    return value if isinstance(value, str) and value else None
