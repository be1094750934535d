"""Reads tokenizer.v1 requests into this service's own values; refuses what this version cannot do."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2

from services.tokenizer.conversation import Call, Conversation, Message, Role, ToolMode
from services.tokenizer.dialects.events import ToolSpec
from services.tokenizer.dialects.json_text import split_object
from services.tokenizer.errors import InvalidRequestError, UnsupportedError
from services.tokenizer.generate import GenerationRequest
from services.tokenizer.rope.prompt_text import TokenIds
from services.tokenizer.routing import Priority, Routing, derive_conversation_key
from services.tokenizer.sampling import Sampling

OMITTED_IMAGE = "[image omitted: this model does not take images]"
OMITTED_DOCUMENT = "[document omitted: this model does not take documents]"

_ROLES = {
    conversation_pb2.ROLE_SYSTEM: Role.SYSTEM,
    conversation_pb2.ROLE_DEVELOPER: Role.DEVELOPER,
    conversation_pb2.ROLE_USER: Role.USER,
    conversation_pb2.ROLE_ASSISTANT: Role.ASSISTANT,
    conversation_pb2.ROLE_TOOL: Role.TOOL,
}
_THINKING = {conversation_pb2.REASONING_MODE_OFF: False, conversation_pb2.REASONING_MODE_ON: True}
_NO_ARGUMENTS = '{"type": "object", "properties": {}}'


def read_generation(message: tokenizer_pb2.GenerateRequest) -> GenerationRequest:
    """Raises InvalidRequestError and UnsupportedError."""
    source = read_source(message)
    sampling = read_sampling(message.sampling)
    sampling.check()
    return GenerationRequest(
        source=source,
        sampling=sampling,
        routing=read_routing(message.routing, source),
        loop_guard=_optional(message, "loop_guard"),
        warm_up_only=message.warm_up_only,
    )


def read_source(
    message: tokenizer_pb2.GenerateRequest | tokenizer_pb2.EncodeRequest | tokenizer_pb2.CountTokensRequest,
) -> Conversation | str:
    """The conversation or text of a request. Raises InvalidRequestError and UnsupportedError."""
    match message.WhichOneof("input"):
        case "conversation":
            return read_conversation(message.conversation)
        case "text":
            if not message.text:
                raise InvalidRequestError("text", "text is empty")
            return message.text
        case _:
            raise InvalidRequestError("conversation", "there is neither a conversation nor a text")


def read_routing(message: tokenizer_pb2.Routing, source: Conversation | str) -> Routing:
    """Raises InvalidRequestError."""
    if not message.tenant:
        raise InvalidRequestError("routing.tenant", "routing.tenant is empty")
    background = message.priority == tokenizer_pb2.PRIORITY_BACKGROUND
    return Routing(
        tenant=message.tenant,
        cache_scope=message.cache_scope or message.tenant,
        conversation_key=message.conversation_key or derive_conversation_key(message.tenant, source),
        request_id=message.request_id,
        response_id=message.response_id,
        priority=Priority.BACKGROUND if background else Priority.INTERACTIVE,
        persist=_optional(message, "persist"),
    )


def read_sampling(message: tokenizer_pb2.Sampling) -> Sampling:
    """As it stands, unchecked."""
    return Sampling(
        temperature=_optional(message, "temperature"),
        top_p=_optional(message, "top_p"),
        top_k=_optional(message, "top_k"),
        min_p=_optional(message, "min_p"),
        presence_penalty=_optional(message, "presence_penalty"),
        frequency_penalty=_optional(message, "frequency_penalty"),
        repetition_penalty=_optional(message, "repetition_penalty"),
        seed=_optional(message, "seed"),
        logit_bias=dict(message.logit_bias),
        logprobs=_optional(message, "logprobs"),
        stop_texts=tuple(message.stop_texts),
        stop_token_ids=tuple(message.stop_token_ids),
        max_tokens=_optional(message, "max_tokens"),
        choices=_optional(message, "choices"),
    )


def read_token_ids(data: bytes, vocabulary_size: int, max_bytes: int) -> TokenIds:
    """Raises InvalidRequestError unless ``data`` is int32 little-endian ids of the vocabulary."""
    if len(data) % 4:
        raise InvalidRequestError("token_ids", f"token_ids has {len(data)} bytes; they must be whole 4-byte ids")
    if len(data) > max_bytes:
        raise InvalidRequestError("token_ids", f"token_ids has {len(data)} bytes; at most {max_bytes} are taken")
    ids: TokenIds = np.frombuffer(data, dtype="<i4")
    wrong = np.flatnonzero((ids < 0) | (ids >= vocabulary_size))
    if len(wrong):
        position = int(wrong[0])
        raise InvalidRequestError(
            "token_ids", f"token_ids[{position}] is {int(ids[position])}; ids are 0 to {vocabulary_size - 1}"
        )
    return ids


def read_conversation(message: conversation_pb2.Conversation) -> Conversation:
    """Raises InvalidRequestError and UnsupportedError."""
    if message.output_format.WhichOneof("kind") is not None:
        raise UnsupportedError("conversation.output_format", "output_format is not supported yet")
    if not message.messages:
        raise InvalidRequestError("conversation.messages", "the conversation has no messages")
    mode = message.reasoning.mode
    return Conversation(
        messages=tuple(
            _read_message(one, f"conversation.messages[{index}]") for index, one in enumerate(message.messages)
        ),
        template_options=_read_template_options(message.template_options),
        tools=_read_tools(message),
        tool_mode=_read_tool_mode(message),
        parallel_calls=not message.HasField("parallel_calls") or message.parallel_calls,
        enable_thinking=_THINKING.get(mode),
    )


def _read_tools(message: conversation_pb2.Conversation) -> tuple[ToolSpec, ...]:
    tools: list[ToolSpec] = []
    for index, tool in enumerate(message.tools):
        field = f"conversation.tools[{index}]"
        if not tool.name:
            raise InvalidRequestError(f"{field}.name", f"{field}.name is empty")
        name = f"{tool.namespace}.{tool.name}" if tool.HasField("namespace") else tool.name
        if any(name == other.name for other in tools):
            raise InvalidRequestError(f"{field}.name", f"there are two tools {name!r}")
        is_custom = tool.kind == conversation_pb2.CALL_KIND_CUSTOM
        parameters = tool.parameters_json or _NO_ARGUMENTS
        if not is_custom and split_object(parameters) is None:
            raise InvalidRequestError(f"{field}.parameters_json", f"the parameters of {name!r} are no JSON object")
        tools.append(ToolSpec(name, _optional(tool, "description"), parameters, is_custom))
    return tuple(tools)


def _read_tool_mode(message: conversation_pb2.Conversation) -> ToolMode:
    choice = message.tool_choice
    if choice.mode == conversation_pb2.TOOL_CHOICE_MODE_NONE:
        return ToolMode.NONE
    if choice.mode == conversation_pb2.TOOL_CHOICE_MODE_REQUIRED or choice.allowed_names:
        # Only a fence could keep such a promise.
        raise UnsupportedError(
            "conversation.tool_choice", "a tool_choice that requires calls or limits tools is not supported yet"
        )
    return ToolMode.AUTO


def _read_message(message: conversation_pb2.Message, field: str) -> Message:
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidRequestError(f"{field}.role", f"{field}.role is unknown or absent")
    if message.calls and role is not Role.ASSISTANT:
        raise InvalidRequestError(f"{field}.calls", f"{field}: only an assistant makes calls")
    parts: list[str] = []
    reasoning: list[str] = []
    capsules = [call.capsule for call in message.calls if call.HasField("capsule")]
    for index, part in enumerate(message.parts):
        if part.WhichOneof("kind") == "reasoning":
            reasoning.append(part.reasoning.text)
            if part.reasoning.HasField("capsule"):
                capsules.append(part.reasoning.capsule)
        else:
            parts.append(_read_part(part, f"{field}.parts[{index}]"))
    if reasoning and role is not Role.ASSISTANT:
        raise InvalidRequestError(f"{field}.parts", f"{field}: only an assistant thinks")
    return Message(
        role=role,
        content="\n".join(parts),
        name=_optional(message, "name"),
        reasoning="\n".join(text for text in reasoning if text),
        calls=tuple(_read_call(call, f"{field}.calls[{index}]") for index, call in enumerate(message.calls)),
        call_id=_optional(message, "call_id"),
        is_error=message.is_error,
        capsules=tuple(capsule for capsule in capsules if capsule),
    )


def _read_call(call: conversation_pb2.Call, field: str) -> Call:
    if not call.name:
        raise InvalidRequestError(f"{field}.name", f"{field}.name is empty")
    name = f"{call.namespace}.{call.name}" if call.HasField("namespace") else call.name
    return Call(call.call_id, name, call.arguments, call.kind == conversation_pb2.CALL_KIND_CUSTOM)


def _read_part(part: conversation_pb2.Part, field: str) -> str:
    match part.WhichOneof("kind"):
        case "text":
            return part.text.text
        case "refusal":
            return part.refusal.text
        case "image":
            return OMITTED_IMAGE
        case "document":
            return part.document.text if part.document.WhichOneof("source") == "text" else OMITTED_DOCUMENT
        case _:
            raise InvalidRequestError(field, f"{field} is empty")


def _read_template_options(options: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, text in options.items():
        try:
            values[name] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(
                "conversation.template_options", f"template option {name!r} is not JSON: {error}"
            ) from None
    return values


def _optional(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None
