"""Content blocks as parts of canonical messages.

Where a cache breakpoint lies changes from turn to turn and is no part of what the model sees. A kind that is not known
adds its text, if it has any, and is never an error.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any, cast

from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.errors import BadRequestError
from services.gateway.fields import Fields, wrong

BILLING_HEADER = "x-anthropic-billing-header"
"""Begins a line of the system prompt that differs on every request and tells the model nothing."""

_TEXT_KEYS = ("title", "url", "source", "text", "tool_name", "stdout", "stderr", "content")
_MAX_DEPTH = 8

_Part = conversation_pb2.Part


def text_part(text: str) -> _Part:
    """A part of plain text."""
    return _Part(text=conversation_pb2.TextPart(text=text))


def read_system(fields: Fields, key: str) -> list[_Part]:
    """What the system says, without the billing header. Raises BadRequestError."""
    parts: list[_Part] = []
    for part in read_content(fields, key):
        if not part.text.text.startswith(BILLING_HEADER):
            parts.append(part)
        elif rest := part.text.text.partition("\n")[2].lstrip("\n"):
            parts.append(text_part(rest))
    return parts


def read_content(fields: Fields, key: str) -> list[_Part]:
    """A string, a list of blocks, or nothing. Raises BadRequestError."""
    value = fields.values.get(key)
    if value is None:
        return []
    if isinstance(value, str):
        return [text_part(value)] if value else []
    if not isinstance(value, list):
        raise wrong(fields.name(key), "a string or a list of blocks", value)
    return [part for block in fields.objects(key) for part in read_block(block)]


def read_thought(fields: Fields) -> Iterator[_Part]:
    """What the model thought: its text, its capsule, or both. Raises BadRequestError."""
    text = fields.text("thinking") or ""
    capsule = _capsule(fields.text("signature") or fields.text("data"))
    if text or capsule:
        yield _Part(reasoning=conversation_pb2.ReasoningPart(text=text, capsule=capsule))


def read_block(fields: Fields) -> Iterator[_Part]:
    """The parts of one block that is neither a call, a result nor a thought. Raises BadRequestError."""
    match fields.required_text("type"):
        case "text":
            if text := fields.required_text("text"):
                yield text_part(text)
        case "image":
            yield _Part(image=_image(fields.required_object("source")))
        case "document":
            yield from _document(fields)
        case "thinking" | "redacted_thinking":
            # Only the model thinks.
            pass
        case _:
            if text := "\n".join(_texts(fields.values, _MAX_DEPTH)):
                yield text_part(text)


def _image(source: Fields) -> conversation_pb2.ImagePart:
    if source.required_text("type") == "base64":
        return conversation_pb2.ImagePart(media_type=source.required_text("media_type"), data=_data(source))
    return conversation_pb2.ImagePart(uri=source.text("url") or source.text("file_id") or "")


def _document(fields: Fields) -> Iterator[_Part]:
    source, title = fields.required_object("source"), fields.text("title") or None
    if context := fields.text("context"):
        yield text_part(context)
    match source.required_text("type"):
        case "base64":
            document = conversation_pb2.DocumentPart(
                media_type=source.required_text("media_type"), title=title, data=_data(source)
            )
        case "text":
            document = conversation_pb2.DocumentPart(
                media_type="text/plain", title=title, text=source.required_text("data")
            )
        case "content":
            if title is not None:
                yield text_part(title)
            yield from read_content(source, "content")
            return
        case _:
            document = conversation_pb2.DocumentPart(
                title=title, uri=source.text("url") or source.text("file_id") or ""
            )
    yield _Part(document=document)


def _capsule(sealed: str | None) -> bytes | None:
    """None for what another server wrote in another alphabet: thinking of its own is no error of the client's."""
    try:
        return base64.b64decode(sealed or "", validate=True) or None
    except (binascii.Error, ValueError):
        return None


def _data(source: Fields) -> bytes:
    try:
        return base64.b64decode(source.required_text("data"), validate=True)
    except (binascii.Error, ValueError):
        raise BadRequestError(f"'{source.name('data')}' must be base64.", param=source.name("data")) from None


def _texts(value: Any, depth: int) -> Iterator[str]:
    """What a model can read in a block such as ``search_result``, or a server tool's result."""
    if isinstance(value, str) and value:
        yield value
    elif isinstance(value, dict) and depth:
        members = cast(dict[str, Any], value)
        for key in _TEXT_KEYS:
            yield from _texts(members.get(key), depth - 1)
    elif isinstance(value, list) and depth:
        for item in cast(list[Any], value):
            yield from _texts(item, depth - 1)
