"""What OpenAI's completion endpoints share on the way in: model, sampling, streaming and routing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2

from services.gateway import affinity, sampling
from services.gateway.errors import BadRequestError
from services.gateway.fields import Fields

TENANT = "default"
"""Owner and cache scope of every request, until API keys say otherwise."""


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A valid request. ``replica_key`` is equal for the turns of one conversation."""

    generate: tokenizer_pb2.GenerateRequest
    is_stream: bool
    include_usage: bool
    replica_key: str


def assemble(
    body: Fields,
    headers: Mapping[str, str],
    source: conversation_pb2.Conversation | str,
    *,
    request_id: str,
    response_id: str,
) -> ClientRequest:
    """A request for the answer to ``source``. Raises BadRequestError or UnsupportedError naming the field."""
    model = body.required_text("model")
    if not model:
        raise BadRequestError("'model' must not be empty.", param="model")
    is_stream = bool(body.flag("stream"))
    conversation_key = affinity.conversation_key(headers, body.text("prompt_cache_key"))
    generate = tokenizer_pb2.GenerateRequest(
        model=model,
        sampling=sampling.parse(body),
        routing=tokenizer_pb2.Routing(
            tenant=TENANT,
            cache_scope=TENANT,
            conversation_key=conversation_key,
            request_id=request_id,
            response_id=response_id,
        ),
    )
    if isinstance(source, str):
        generate.text = source
        opening_key = affinity.first_characters_key(source)
    else:
        generate.conversation.CopyFrom(source)
        opening_key = affinity.first_messages_key(source.messages)
    return ClientRequest(
        generate=generate,
        is_stream=is_stream,
        include_usage=_include_usage(body, is_stream),
        replica_key=conversation_key or body.text("user") or opening_key,
    )


def _include_usage(body: Fields, is_stream: bool) -> bool:
    options = body.object("stream_options")
    if options is None:
        return False
    if not is_stream:
        raise BadRequestError("'stream_options' is only allowed with 'stream': true.", param="stream_options")
    return bool(options.flag("include_usage"))
