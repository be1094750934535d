"""From what a client asked, in any protocol, to a request for the tokenizer."""

from __future__ import annotations

from dataclasses import dataclass

from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2

from services.gateway import affinity
from services.gateway.exchange import Exchange

SIDE_REQUEST_CHARACTERS = 16_384
"""An agent's request without tools and shorter than this is a title or a summary, never its work."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A valid request. ``replica_key`` is equal for the turns of one conversation."""

    generate: tokenizer_pb2.GenerateRequest
    replica_key: str


def ask(
    exchange: Exchange,
    source: conversation_pb2.Conversation | str,
    *,
    model: str,
    sampling: tokenizer_pb2.Sampling,
    response_id: str,
    cache_key: str | None = None,
    user: str | None = None,
    previous_response_id: str | None = None,
) -> Asked:
    """A request for the answer to ``source`` by the served model of this id.

    ``cache_key`` is the client's own name for the conversation, ``user`` a weaker one: all conversations of somebody.
    Without a ``response_id`` the prompt is only counted, or is nobody's next turn: it is taken as it is.
    """
    caller = exchange.caller
    session = affinity.session_of(exchange.headers)
    conversation_key = session or cache_key or ""
    generate = tokenizer_pb2.GenerateRequest(
        model=model,
        sampling=sampling,
        routing=tokenizer_pb2.Routing(
            tenant=caller.tenant,
            cache_scope=caller.cache_scope,
            conversation_key=conversation_key,
            request_id=exchange.request_id,
            response_id=response_id,
            previous_response_id=previous_response_id,
            persist=caller.persist,
        ),
    )
    if isinstance(source, str):
        generate.text = source
        opening_key = affinity.first_characters_key(source)
    else:
        generate.conversation.CopyFrom(source)
        opening_key = affinity.first_messages_key(source.messages)
        if session and _is_side_request(source):
            generate.routing.priority = tokenizer_pb2.PRIORITY_BACKGROUND
        if response_id:
            exchange.gateway.toolsets.complete(caller.tenant, conversation_key, generate.conversation)
    return Asked(generate, conversation_key or user or opening_key)


def count_request(asked: Asked) -> tokenizer_pb2.CountTokensRequest:
    """Asks how long the prompt of the same request is."""
    generate = asked.generate
    return tokenizer_pb2.CountTokensRequest(
        model=generate.model, conversation=generate.conversation, routing=generate.routing
    )


def _is_side_request(conversation: conversation_pb2.Conversation) -> bool:
    if conversation.tools:
        return False
    return sum(len(part.text.text) for message in conversation.messages for part in message.parts) < (
        SIDE_REQUEST_CHARACTERS
    )
