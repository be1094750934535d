"""Chat Completions in: the body becomes a GenerateRequest.

Unknown fields are ignored. Known fields that would change the answer and are not served are refused by name.
"""

from __future__ import annotations

import re

from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway import sampling
from services.gateway.chat_options import parse_output_format
from services.gateway.chat_tools import parse_tool_choice, parse_tools
from services.gateway.client_request import ClientRequest, assemble
from services.gateway.data_url import read_data_url
from services.gateway.effort import read_effort
from services.gateway.errors import BadRequestError, UnsupportedError
from services.gateway.exchange import Exchange
from services.gateway.fields import Fields, wrong

_ROLES = {
    "system": conversation_pb2.ROLE_SYSTEM,
    "developer": conversation_pb2.ROLE_DEVELOPER,
    "user": conversation_pb2.ROLE_USER,
    "assistant": conversation_pb2.ROLE_ASSISTANT,
    "tool": conversation_pb2.ROLE_TOOL,
}
_CLIENT_SPELLING = (
    (r"^(conversation|input)$", "messages"),
    (r"^stop_texts\b", "stop"),
    (r"^choices$", "n"),
    (r"^logprobs$", "top_logprobs"),
    (r"^output_format\b.*", "response_format"),
    (r"^reasoning\b.*", "reasoning_effort"),
    (r"^parallel_calls$", "parallel_tool_calls"),
    (r"^tool_choice\.(mode|allowed_names)\b.*", "tool_choice"),
    (r"^(tools\[\d+\])\.grammar\b.*", r"\1.custom.format"),
    (r"^(tools\[\d+\])\.parameters_json$", r"\1.function.parameters"),
    # Kinds differ in where they have these; the tool itself is the same for all.
    (r"^(tools\[\d+\])\.(name|description|kind|strict|namespace)$", r"\1"),
    (r"\.calls(\[\d+\])\.call_id$", r".tool_calls\1.id"),
    (r"\.calls(\[\d+\])\.(name|arguments)$", r".tool_calls\1.function.\2"),
    (r"\.calls\b", ".tool_calls"),
    (r"\.call_id$", ".tool_call_id"),
    (r"\.parts\b", ".content"),
)


def parse(exchange: Exchange, *, response_id: str) -> ClientRequest:
    """Raises BadRequestError or UnsupportedError naming the field."""
    body = exchange.body
    _refuse_unsupported(body)
    tools = parse_tools(body)
    is_parallel = body.flag("parallel_tool_calls")
    conversation = conversation_pb2.Conversation(
        messages=_messages(body),
        tools=tools,
        tool_choice=parse_tool_choice(body, tools),
        # Without tools, it means nothing.
        parallel_calls=is_parallel if tools else None,
        reasoning=read_effort(body, "reasoning_effort"),
        output_format=parse_output_format(body),
    )
    return assemble(exchange, conversation, logprobs=sampling.chat_logprobs(body), response_id=response_id)


def client_field(contract_field: str) -> str:
    """How the body spells a field of the contract: ``conversation.messages[1].parts`` → ``messages[1].content``."""
    field = re.sub(r"^(conversation|sampling)\.", "", contract_field)
    for ours, theirs in _CLIENT_SPELLING:
        field = re.sub(ours, theirs, field)
    return field


def _refuse_unsupported(body: Fields) -> None:
    body.refuse("functions", [])
    # Without functions, it means nothing.
    body.refuse("function_call", "none", "auto")
    body.refuse("modalities", ["text"])
    body.refuse("audio")


def _messages(body: Fields) -> list[conversation_pb2.Message]:
    body.required("messages")
    messages = [_message(message) for message in body.objects("messages")]
    if not messages:
        raise BadRequestError("'messages' must hold at least one message.", param="messages")
    return messages


def _message(fields: Fields) -> conversation_pb2.Message:
    name = fields.one_of("role", _ROLES)
    role = _ROLES[name]
    calls = [_call(call, index) for index, call in enumerate(fields.objects("tool_calls"))]
    if calls and role != conversation_pb2.ROLE_ASSISTANT:
        raise BadRequestError(
            f"'{fields.name('tool_calls')}' is only allowed in assistant messages.", param=fields.name("tool_calls")
        )
    refusal = fields.text("refusal") if role == conversation_pb2.ROLE_ASSISTANT else None
    reasoning = _reasoning(fields) if role == conversation_pb2.ROLE_ASSISTANT else None
    parts = _parts(fields, name, is_optional=bool(calls or refusal or reasoning))
    if reasoning:
        parts.insert(0, conversation_pb2.Part(reasoning=conversation_pb2.ReasoningPart(text=reasoning)))
    if refusal:
        parts.append(conversation_pb2.Part(refusal=conversation_pb2.RefusalPart(text=refusal)))
    return conversation_pb2.Message(
        role=role,
        parts=parts,
        calls=calls,
        call_id=fields.required_text("tool_call_id") if role == conversation_pb2.ROLE_TOOL else None,
        name=fields.text("name"),
    )


def _reasoning(fields: Fields) -> str | None:
    """What the model thought, echoed under this server's name for it or under the one that other servers use."""
    return fields.text("reasoning_content") or fields.text("reasoning")


def _parts(fields: Fields, role: str, *, is_optional: bool) -> list[conversation_pb2.Part]:
    content = fields.values.get("content") if is_optional else fields.required("content")
    if content is None:
        return []
    if isinstance(content, str):
        return [_text(content)]
    if not isinstance(content, list):
        raise wrong(fields.name("content"), "a string or a list of parts", content)
    parts = [_part(part, role) for part in fields.objects("content")]
    if not parts and not is_optional:
        raise BadRequestError(f"'{fields.name('content')}' must not be empty.", param=fields.name("content"))
    return parts


def _part(fields: Fields, role: str) -> conversation_pb2.Part:
    kind = fields.required_text("type")
    match kind, role:
        case "text", _:
            return _text(fields.required_text("text"))
        case "refusal", "assistant":
            return conversation_pb2.Part(refusal=conversation_pb2.RefusalPart(text=fields.required_text("refusal")))
        case "image_url", ("user" | "tool"):
            # Whether the model takes pictures, the tokenizer knows.
            return conversation_pb2.Part(image=_image(fields.required_object("image_url")))
        case (("input_audio" | "file"), "user"):
            raise UnsupportedError(f"'{kind}' parts are not supported yet.", param=fields.name("type"))
        case _:
            raise BadRequestError(
                f"'{fields.name('type')}' must be a kind of part that {role} messages have, not {kind[:40]!r}.",
                param=fields.name("type"),
            )


def _text(text: str) -> conversation_pb2.Part:
    return conversation_pb2.Part(text=conversation_pb2.TextPart(text=text))


def _image(fields: Fields) -> conversation_pb2.ImagePart:
    url = fields.required_text("url")
    if not url.startswith("data:"):
        return conversation_pb2.ImagePart(uri=url)
    media_type, data = read_data_url(fields, "url", url)
    return conversation_pb2.ImagePart(media_type=media_type, data=data)


def _call(fields: Fields, index: int) -> conversation_pb2.Call:
    match kind := fields.text("type") or "function":
        case "function":
            call = fields.required_object("function")
            arguments, call_kind = _arguments(call), conversation_pb2.CALL_KIND_FUNCTION
        case "custom":
            call = fields.required_object("custom")
            arguments, call_kind = call.required_text("input"), conversation_pb2.CALL_KIND_CUSTOM
        case _:
            raise BadRequestError(
                f"'{fields.name('type')}' must be function or custom, not {kind[:40]!r}.", param=fields.name("type")
            )
    return conversation_pb2.Call(
        call_id=fields.required_text("id"),
        name=call.required_text("name"),
        kind=call_kind,
        arguments=arguments,
        index=index,
    )


def _arguments(fields: Fields) -> str:
    """Some clients send the object itself instead of its text."""
    value = fields.required("arguments")
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return fields.raw("arguments")
    raise wrong(fields.name("arguments"), "a string of JSON", value)
