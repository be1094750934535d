"""Content parts of messages and of tool results."""

from __future__ import annotations

import re

from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.data_url import read_data_url
from services.gateway.errors import BadRequestError, UnsupportedError
from services.gateway.fields import Fields, wrong

_UNKNOWN_MEDIA_TYPE = "application/octet-stream"
_TEXTUAL = re.compile(r"text/.*|application/(json|xml|yaml|x-yaml|toml|javascript)", re.ASCII)


def text_part(text: str) -> conversation_pb2.Part:
    """Text."""
    return conversation_pb2.Part(text=conversation_pb2.TextPart(text=text))


def read_content(fields: Fields, key: str) -> list[conversation_pb2.Part]:
    """A string or a list of parts; absent is none. Raises BadRequestError."""
    value = fields.values.get(key)
    if value is None:
        return []
    if isinstance(value, str):
        return [text_part(value)]
    if not isinstance(value, list):
        raise wrong(fields.name(key), "a string or a list of parts", value)
    return [read_part(part) for part in fields.objects(key)]


def read_part(fields: Fields) -> conversation_pb2.Part:
    """One part, whoever says it. Raises BadRequestError."""
    kind = fields.required_text("type")
    match kind:
        case "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text":
            return text_part(fields.required_text("text"))
        case "refusal":
            return conversation_pb2.Part(refusal=conversation_pb2.RefusalPart(text=fields.required_text("refusal")))
        case "input_image" | "computer_screenshot" | "image_url":
            return conversation_pb2.Part(image=_image(fields))
        case "input_file":
            return conversation_pb2.Part(document=_document(fields))
        case "input_audio" | "input_video":
            raise UnsupportedError(f"'{kind}' parts are not supported yet.", param=fields.name("type"))
        case _ if isinstance(text := fields.values.get("text"), str):
            return text_part(text)
        case _:
            raise BadRequestError(
                f"'{fields.name('type')}' must be a kind of part that messages have, not {kind[:40]!r}.",
                param=fields.name("type"),
            )


def _image(fields: Fields) -> conversation_pb2.ImagePart:
    # Chat Completions have the address one level down.
    is_nested = isinstance(fields.values.get("image_url"), dict)
    holder, key = (fields.required_object("image_url"), "url") if is_nested else (fields, "image_url")
    url = holder.text(key)
    if url is None:
        # A file's id stays a reference, whoever may hold it.
        return conversation_pb2.ImagePart(uri=fields.text("file_id") or holder.required_text(key))
    if not url.startswith("data:"):
        return conversation_pb2.ImagePart(uri=url)
    media_type, data = read_data_url(holder, key, url)
    return conversation_pb2.ImagePart(media_type=media_type, data=data)


def _document(fields: Fields) -> conversation_pb2.DocumentPart:
    title = fields.text("filename")
    encoded = fields.text("file_data")
    if encoded is None:
        uri = fields.text("file_url") or fields.text("file_id") or fields.required_text("file_data")
        return conversation_pb2.DocumentPart(title=title, uri=uri)
    # Some clients send the bare base64.
    is_bare = not encoded.startswith("data:")
    url = f"data:{_UNKNOWN_MEDIA_TYPE};base64,{encoded}" if is_bare else encoded
    media_type, data = read_data_url(fields, "file_data", url)
    if _TEXTUAL.fullmatch(media_type):
        try:
            return conversation_pb2.DocumentPart(media_type=media_type, title=title, text=data.decode())
        except UnicodeDecodeError:
            pass
    return conversation_pb2.DocumentPart(media_type=media_type, title=title, data=data)
