"""Chat Completions in: the body becomes a GenerateRequest.

Unknown fields are ignored. Known fields that would change the answer and are not served are refused by name.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2

from services.gateway import affinity
from services.gateway.errors import BadRequestError, UnsupportedError
from services.gateway.fields import Fields, wrong

MAX_STOPS = 16
TENANT = "default"
"""Owner and cache scope of every request, until API keys say otherwise."""

_UINT32_MAX = 2**32 - 1
_ROLES = {
    "system": conversation_pb2.ROLE_SYSTEM,
    "developer": conversation_pb2.ROLE_DEVELOPER,
    "user": conversation_pb2.ROLE_USER,
    "assistant": conversation_pb2.ROLE_ASSISTANT,
    "tool": conversation_pb2.ROLE_TOOL,
}
_CLIENT_SPELLING = (
    (r"^conversation$", "messages"),
    (r"^stop_texts\b", "stop"),
    (r"\.parts\b", ".content"),
    (r"\.calls\b", ".tool_calls"),
    (r"\.call_id\b", ".tool_call_id"),
)
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;[^,;]*)*?;base64,", re.ASCII)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A valid request. ``replica_key`` is equal for the turns of one conversation."""

    generate: tokenizer_pb2.GenerateRequest
    is_stream: bool
    include_usage: bool
    replica_key: str


def parse(values: dict[str, Any], headers: Mapping[str, str], *, request_id: str, response_id: str) -> ChatRequest:
    """Raises BadRequestError or UnsupportedError naming the field."""
    body = Fields(values)
    model = body.required_text("model")
    if not model:
        raise BadRequestError("'model' must not be empty.", param="model")
    messages = _messages(body)
    _refuse_unsupported(body)
    is_stream = body.flag("stream")
    sampling = _sampling(body)
    conversation_key = affinity.conversation_key(headers, body.text("prompt_cache_key"))
    replica_key = conversation_key or body.text("user") or affinity.first_messages_key(messages)
    return ChatRequest(
        generate=tokenizer_pb2.GenerateRequest(
            model=model,
            conversation=conversation_pb2.Conversation(messages=messages),
            sampling=sampling,
            routing=tokenizer_pb2.Routing(
                tenant=TENANT,
                cache_scope=TENANT,
                conversation_key=conversation_key,
                request_id=request_id,
                response_id=response_id,
            ),
        ),
        is_stream=is_stream,
        include_usage=_include_usage(body, is_stream),
        replica_key=replica_key,
    )


def client_field(contract_field: str) -> str:
    """How the body spells a field of the contract: ``conversation.messages[1].parts`` → ``messages[1].content``."""
    field = re.sub(r"^(conversation|sampling)\.", "", contract_field)
    for ours, theirs in _CLIENT_SPELLING:
        field = re.sub(ours, theirs, field)
    return field


def _include_usage(body: Fields, is_stream: bool) -> bool:
    options = body.object("stream_options")
    if options is None:
        return False
    if not is_stream:
        raise BadRequestError("'stream_options' is only allowed with 'stream': true.", param="stream_options")
    return options.flag("include_usage")


def _refuse_unsupported(body: Fields) -> None:
    body.refuse("tools", [])
    body.refuse("functions", [])
    # Without tools, these mean nothing.
    body.refuse("tool_choice", "none", "auto")
    body.refuse("function_call", "none", "auto")
    body.refuse("modalities", ["text"])
    body.refuse("audio")
    if (response_format := body.object("response_format")) is not None and response_format.text("type") != "text":
        raise UnsupportedError("'response_format' other than text is not supported yet.", param="response_format")
    body.integer("n", 1, _UINT32_MAX)
    body.refuse("n", 1)
    body.refuse("logprobs", False)
    body.refuse("top_logprobs", 0)
    body.refuse("logit_bias", {})
    for name in ("presence_penalty", "frequency_penalty"):
        body.refuse(name, 0)
    for name in ("top_k", "min_p", "repetition_penalty"):
        body.refuse(name)


def _sampling(body: Fields) -> tokenizer_pb2.Sampling:
    top_p = body.number("top_p", 0, 1)
    if top_p == 0:
        raise BadRequestError("'top_p' must be over 0 and at most 1.", param="top_p")
    older, newer = (body.integer(name, 1, _UINT32_MAX) for name in ("max_tokens", "max_completion_tokens"))
    seed = body.integer("seed", -(2**63), 2**63 - 1)
    return tokenizer_pb2.Sampling(
        temperature=body.number("temperature", 0, 2),
        top_p=top_p,
        max_tokens=older if newer is None else newer,
        # Two's complement: every signed seed has an unsigned one of its own.
        seed=None if seed is None else seed % 2**64,
        stop_texts=_stops(body),
    )


def _stops(body: Fields) -> list[str]:
    value = body.values.get("stop")
    if value is None:
        return []
    stops = cast(list[Any], value) if isinstance(value, list) else [value]
    if len(stops) > MAX_STOPS:
        raise BadRequestError(f"'stop' must hold at most {MAX_STOPS} texts, not {len(stops)}.", param="stop")
    for index, stop in enumerate(stops):
        name = f"stop[{index}]" if isinstance(value, list) else "stop"
        if not isinstance(stop, str):
            raise wrong(name, "a string" if isinstance(value, list) else "a string or a list of strings", stop)
        if not stop:
            raise BadRequestError(f"'{name}' must not be empty.", param=name)
    return stops


def _messages(body: Fields) -> list[conversation_pb2.Message]:
    body.required("messages")
    messages = [_message(message) for message in body.objects("messages")]
    if not messages:
        raise BadRequestError("'messages' must hold at least one message.", param="messages")
    return messages


def _message(fields: Fields) -> conversation_pb2.Message:
    name = fields.required_text("role")
    role = _ROLES.get(name)
    if role is None:
        raise BadRequestError(
            f"'{fields.name('role')}' must be one of {', '.join(_ROLES)}, not {name[:40]!r}.", param=fields.name("role")
        )
    calls = [_call(call, index) for index, call in enumerate(fields.objects("tool_calls"))]
    if calls and role != conversation_pb2.ROLE_ASSISTANT:
        raise BadRequestError(
            f"'{fields.name('tool_calls')}' is only allowed in assistant messages.", param=fields.name("tool_calls")
        )
    refusal = fields.text("refusal") if role == conversation_pb2.ROLE_ASSISTANT else None
    parts = _parts(fields, name, is_optional=bool(calls or refusal))
    if refusal:
        parts.append(conversation_pb2.Part(refusal=conversation_pb2.RefusalPart(text=refusal)))
    return conversation_pb2.Message(
        role=role,
        parts=parts,
        calls=calls,
        call_id=fields.required_text("tool_call_id") if role == conversation_pb2.ROLE_TOOL else None,
        name=fields.text("name"),
    )


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
        case "image_url", "user":
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
    head = _DATA_URL.match(url)
    try:
        if head is None:
            raise ValueError
        data = base64.b64decode(url[head.end() :], validate=True)
    except (ValueError, binascii.Error):
        raise BadRequestError(
            f"'{fields.name('url')}' must be an address or a base64 data URL.", param=fields.name("url")
        ) from None
    return conversation_pb2.ImagePart(media_type=head[1], data=data)


def _call(fields: Fields, index: int) -> conversation_pb2.Call:
    match kind := fields.text("type") or "function":
        case "function":
            call = fields.required_object("function")
            arguments, call_kind = call.required_text("arguments"), conversation_pb2.CALL_KIND_FUNCTION
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
