"""OpenAI's Responses over HTTP."""

from __future__ import annotations

import time
import uuid
from typing import Any

import orjson
from fastapi import APIRouter, Request, WebSocket
from starlette.responses import Response

from services.gateway import openapi
from services.gateway.asking import ask, count_request
from services.gateway.delivery import deliver, respelt
from services.gateway.errors import BadRequestError, GatewayError, NotFoundError
from services.gateway.exchange import Gateway, caller_of, gateway_of, read_exchange
from services.gateway.fields import Fields
from services.gateway.responses.answer import ResponseAnswer
from services.gateway.responses.chain import Chain, Chains, PreviousResponseNotFoundError
from services.gateway.responses.compact import compact
from services.gateway.responses.connection import serve
from services.gateway.responses.creation import create, read_request
from services.gateway.stream import unless_gone

MAX_PAGE = 100

router = APIRouter()


@router.post("/v1/responses", openapi_extra=openapi.RESPONSES)
@router.post("/responses", include_in_schema=False)
async def create_response(request: Request) -> Response:
    """A response, streamed or not."""
    exchange = await read_exchange(request)
    chains = chains_of(exchange.gateway)
    creation = await create(exchange, chains, chains)
    generation = exchange.gateway.tokenizers.generate(
        creation.asked.generate, creation.asked.replica_key, exchange.trace
    )
    return await deliver(
        request,
        generation,
        ResponseAnswer(creation.stream, creation.request.client_field),
        is_stream=creation.request.is_stream,
        keep_alive_s=exchange.gateway.config.keep_alive_s,
    )


@router.websocket("/v1/responses")
@router.websocket("/responses")
async def connect(websocket: WebSocket) -> None:
    """Responses one after the other on one connection."""
    await serve(websocket, chains_of(gateway_of(websocket)))


@router.post("/v1/responses/input_tokens", openapi_extra=openapi.INPUT_TOKENS)
@router.post("/responses/input_tokens", include_in_schema=False)
async def count_input_tokens(request: Request) -> Response:
    """How many tokens the prompt of the same response would have."""
    exchange = await read_exchange(request)
    gateway = exchange.gateway
    models = await gateway.models.all()
    asked, _ = await read_request(exchange, chains_of(gateway), default_model=models[0].id)
    to_ask = ask(
        exchange,
        asked.conversation,
        model=(await gateway.models.named(asked.model)).id,
        sampling=asked.sampling,
        response_id="",
        cache_key=asked.prompt_cache_key,
        user=asked.user,
    )
    try:
        answer = await unless_gone(
            request.receive, gateway.tokenizers.count_tokens(count_request(to_ask), to_ask.replica_key)
        )
    except GatewayError as error:
        raise respelt(error, asked.client_field) from None
    return _json({"object": "response.input_tokens", "input_tokens": answer.tokens})


@router.post("/v1/responses/compact", openapi_extra=openapi.COMPACT)
@router.post("/responses/compact", include_in_schema=False)
async def compact_response(request: Request) -> Response:
    """A shorter input that a new response may begin with in place of this one."""
    exchange = await read_exchange(request)
    asked, chain = await read_request(exchange, chains_of(exchange.gateway))
    compacted = await unless_gone(request.receive, compact(exchange, asked, chain))
    return _json(
        {
            "id": f"resp_{uuid.uuid4().hex}",
            "object": "response.compaction",
            "created_at": int(time.time()),
            **compacted,
        }
    )


@router.get("/v1/responses/{response_id}")
@router.get("/responses/{response_id}", include_in_schema=False)
async def get_response(request: Request, response_id: str) -> Response:
    """A stored response."""
    if request.query_params.get("stream") == "true":
        raise BadRequestError("A stored response cannot be streamed again.", param="stream")
    stored = await chains_of(gateway_of(request)).get(caller_of(request).tenant, response_id)
    return Response(stored.response_json, media_type="application/json")


@router.delete("/v1/responses/{response_id}")
@router.delete("/responses/{response_id}", include_in_schema=False)
async def delete_response(request: Request, response_id: str) -> Response:
    """Forget a stored response."""
    if not await chains_of(gateway_of(request)).delete(caller_of(request).tenant, response_id):
        raise NotFoundError(f"Response with id '{response_id[:200]}' not found.")
    return _json({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
@router.post("/responses/{response_id}/cancel", include_in_schema=False)
async def cancel_response(request: Request, response_id: str) -> Response:
    """End a response that this gateway is making; it is stored with the items that it has, where it was to be."""
    gateway, tenant = gateway_of(request), caller_of(request).tenant
    cancelled = await gateway.running.cancel(tenant, response_id)
    if cancelled is not None:
        return _json(cancelled)
    await chains_of(gateway).get(tenant, response_id)
    raise BadRequestError("Cannot cancel a completed response.")


@router.get("/v1/responses/{response_id}/input_items")
@router.get("/responses/{response_id}/input_items", include_in_schema=False)
async def list_input_items(request: Request, response_id: str) -> Response:
    """Everything that was put before the model for a stored response, the newest first."""
    chains, tenant = chains_of(gateway_of(request)), caller_of(request).tenant
    stored = await chains.get(tenant, response_id)
    try:
        chain = await chains.follow(tenant, stored.ancestors[-1]) if stored.ancestors else Chain()
    except PreviousResponseNotFoundError:
        raise NotFoundError(f"A response that '{response_id[:200]}' continues is not stored any more.") from None
    items = [*chain.items, *stored.input_items]
    return _json(_page(items, request))


def chains_of(gateway: Gateway) -> Chains:
    """Stored responses."""
    return Chains((gateway.records,), gateway.config.response_ttl_s)


def _page(items: list[Fields], request: Request) -> dict[str, Any]:
    query = request.query_params
    order, after, limit = query.get("order", "desc"), query.get("after"), query.get("limit", "20")
    if order not in ("asc", "desc"):
        raise BadRequestError("'order' must be asc or desc.", param="order")
    if not limit.isdecimal() or not limit.isascii() or not 1 <= int(limit) <= MAX_PAGE:
        raise BadRequestError(f"'limit' must be from 1 to {MAX_PAGE}.", param="limit")
    listed = items if order == "asc" else items[::-1]
    if after is not None:
        ids = [item.values.get("id") for item in listed]
        if after not in ids:
            raise BadRequestError(f"No item has the id '{after[:200]}'.", param="after")
        listed = listed[ids.index(after) + 1 :]
    page = listed[: int(limit)]
    return {
        "object": "list",
        "data": [orjson.Fragment(item.body.text(*item.path)) for item in page],
        "first_id": page[0].values.get("id") if page else None,
        "last_id": page[-1].values.get("id") if page else None,
        "has_more": len(listed) > len(page),
    }


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
