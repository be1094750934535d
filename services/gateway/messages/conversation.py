"""The messages of a request as the canonical conversation's."""

from __future__ import annotations

from collections.abc import Iterator

from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.errors import BadRequestError
from services.gateway.fields import Fields
from services.gateway.messages.blocks import read_block, read_content, read_system, read_thought

_ROLES = {
    "user": conversation_pb2.ROLE_USER,
    "assistant": conversation_pb2.ROLE_ASSISTANT,
    # Claude Code speaks as the system in the middle of a conversation; there it stays.
    "system": conversation_pb2.ROLE_SYSTEM,
}


def read_messages(body: Fields) -> list[conversation_pb2.Message]:
    """``system`` first, then ``messages`` in order. Raises BadRequestError."""
    body.required("messages")
    messages: list[conversation_pb2.Message] = []
    if parts := read_system(body, "system"):
        messages.append(conversation_pb2.Message(role=conversation_pb2.ROLE_SYSTEM, parts=parts))
    num_leading = len(messages)
    for fields in body.objects("messages"):
        messages.extend(_read(fields))
    if len(messages) == num_leading:
        raise BadRequestError("'messages' must hold something for the model to answer.", param="messages")
    return messages


def _read(fields: Fields) -> Iterator[conversation_pb2.Message]:
    role = _ROLES[fields.one_of("role", _ROLES)]
    fields.required("content")
    match role:
        case conversation_pb2.ROLE_ASSISTANT:
            # An answer of nothing is still a turn; nothing from anybody else isn't.
            yield _assistant(fields)
        case conversation_pb2.ROLE_SYSTEM:
            if parts := read_system(fields, "content"):
                yield conversation_pb2.Message(role=role, parts=parts)
        case _:
            yield from _user(fields)


def _assistant(fields: Fields) -> conversation_pb2.Message:
    message = conversation_pb2.Message(role=conversation_pb2.ROLE_ASSISTANT)
    if not isinstance(fields.values["content"], list):
        message.parts.extend(read_content(fields, "content"))
        return message
    for block in fields.objects("content"):
        match block.required_text("type"):
            case "tool_use":
                message.calls.append(_call(block, len(message.calls)))
            case "thinking" | "redacted_thinking":
                message.parts.extend(read_thought(block))
            case _:
                message.parts.extend(read_block(block))
    return message


def _call(block: Fields, index: int) -> conversation_pb2.Call:
    block.required_object("input")
    return conversation_pb2.Call(
        call_id=block.nonempty_text("id"),
        name=block.nonempty_text("name"),
        kind=conversation_pb2.CALL_KIND_FUNCTION,
        # As the client spells it: a parser would lose the spelling that the model's own ids stand for.
        arguments=block.raw("input"),
        index=index,
    )


def _user(fields: Fields) -> Iterator[conversation_pb2.Message]:
    """The results in it, in their order, then what else it says: templates want results right behind their calls."""
    if not isinstance(fields.values["content"], list):
        parts = read_content(fields, "content")
    else:
        parts = list[conversation_pb2.Part]()
        for block in fields.objects("content"):
            if block.required_text("type") == "tool_result":
                yield _result(block)
            else:
                parts.extend(read_block(block))
    if parts:
        yield conversation_pb2.Message(role=conversation_pb2.ROLE_USER, parts=parts)


def _result(block: Fields) -> conversation_pb2.Message:
    return conversation_pb2.Message(
        role=conversation_pb2.ROLE_TOOL,
        parts=read_content(block, "content"),
        call_id=block.nonempty_text("tool_use_id"),
        # Absent and false say the same, and must be the same to the cache.
        is_error=block.flag("is_error") or None,
    )
