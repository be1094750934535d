"""Anthropic's Messages: POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import uuid

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from services.gateway import openapi
from services.gateway.asking import count_request
from services.gateway.delivery import deliver, respelt
from services.gateway.errors import GatewayError
from services.gateway.exchange import read_exchange
from services.gateway.messages.answer import Answer
from services.gateway.messages.request import client_field, parse, parse_count
from services.gateway.stream import unless_gone

router = APIRouter()


@router.post("/v1/messages", openapi_extra=openapi.MESSAGES)
@router.post("/messages", include_in_schema=False)
async def messages(request: Request) -> Response:
    """Anthropic's Messages, streamed or not."""
    exchange = await read_exchange(request)
    gateway, message_id = exchange.gateway, f"msg_{uuid.uuid4().hex}"
    is_stream = bool(exchange.body.flag("stream"))
    asked = parse(exchange, response_id=message_id)
    asked.generate.model = (await gateway.models.named(asked.generate.model)).id
    return await deliver(
        request,
        gateway.tokenizers.generate(asked.generate, asked.replica_key, exchange.trace),
        Answer(message_id, asked.generate.model, exchange.request_id),
        is_stream=is_stream,
        keep_alive_s=gateway.config.keep_alive_s,
    )


@router.post("/v1/messages/count_tokens", openapi_extra=openapi.COUNT_TOKENS)
@router.post("/messages/count_tokens", include_in_schema=False)
async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of the same message would have."""
    exchange = await read_exchange(request)
    asked = parse_count(exchange)
    asked.generate.model = (await exchange.gateway.models.named(asked.generate.model)).id
    try:
        answer = await unless_gone(
            request.receive, exchange.gateway.tokenizers.count_tokens(count_request(asked), asked.replica_key)
        )
    except GatewayError as error:
        raise respelt(error, client_field) from None
    return Response(orjson.dumps({"input_tokens": answer.tokens}), media_type="application/json")
