"""Items on their way through storage: with an id and a type, and still as the client spelt them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson

from services.gateway.errors import NotFoundError
from services.gateway.fields import Fields
from services.gateway.raw_json import RawJson
from services.gateway.responses.items import item_type

_ID_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "compaction": "cmp",
}


def read_items(stored: bytes) -> tuple[Fields, ...]:
    """The items of a JSON list, as ``parse`` takes them: with their spelling."""
    body = RawJson(stored)
    items = cast(list[dict[str, Any]], orjson.loads(stored))
    return tuple(Fields(item, body, (index,)) for index, item in enumerate(items))


def referenced_ids(body: Fields) -> tuple[str, ...]:
    """Ids of the items that a request's input does not bring but only points to. Raises BadRequestError."""
    if not isinstance(body.values.get("input"), list):
        return ()
    items = body.objects("input")
    return tuple(item.required_text("id") for item in items if item_type(item) == "item_reference")


def resolve(fields: Fields, earlier_items: Sequence[Fields], referenced_items: Mapping[str, Fields]) -> Fields:
    """The item itself, where it is a reference. Raises NotFoundError, BadRequestError."""
    if item_type(fields) != "item_reference":
        return fields
    item_id = fields.required_text("id")
    found = next((item for item in earlier_items if item.values.get("id") == item_id), referenced_items.get(item_id))
    if found is None:
        raise NotFoundError(f"Item with id '{item_id[:100]}' not found.", param="input")
    return found


def stored_item(fields: Fields) -> dict[str, Any]:
    """A valid item, for ``orjson.dumps``; what is nested in it is written as it is spelt."""
    kind = item_type(fields)
    item: dict[str, Any] = {"id": fields.values.get("id"), "type": kind}
    if not isinstance(item["id"], str) or not item["id"]:
        item["id"] = new_id(kind)
    for key, value in fields.values.items():
        if key not in item:
            item[key] = orjson.Fragment(fields.raw(key)) if isinstance(value, dict | list) else value
    match kind:
        case "message":
            item["status"] = item.get("status") or "completed"
            if isinstance(text := fields.values.get("content"), str):
                item["content"] = [_text_part(item["role"], text)]
        case "function_call" if isinstance(fields.values.get("arguments"), dict):
            item["arguments"] = fields.raw("arguments")
        case _:
            pass
    return item


def message_item(text: str) -> dict[str, Any]:
    """An input that is one text, as an item."""
    content = [_text_part("user", text)]
    return {"id": new_id("message"), "type": "message", "role": "user", "status": "completed", "content": content}


def new_id(kind: str) -> str:
    """An id for an item of this type."""
    return f"{_ID_PREFIXES.get(kind, 'item')}_{uuid.uuid4().hex}"


def _text_part(role: str, text: str) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}
