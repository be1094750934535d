"""One response on its way, whatever the transport: from a request to the generation that answers it."""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from services.gateway.asking import Asked, ask
from services.gateway.exchange import Exchange
from services.gateway.responses.answer import ResponseStream
from services.gateway.responses.chain import Chain, Chains
from services.gateway.responses.output import OutputOptions
from services.gateway.responses.request import ResponsesRequest, parse
from services.gateway.responses.stored_items import referenced_ids
from services.gateway.upstream import Generation


@dataclass(frozen=True, slots=True)
class Creation:
    """A valid request, and the response it will have."""

    request: ResponsesRequest
    asked: Asked
    stream: ResponseStream


async def create(exchange: Exchange, known: Chains, stored: Chains, *, keeps_all: Chains | None = None) -> Creation:
    """Read the request and what it continues; nothing is asked of a tokenizer yet.

    What the request continues is looked for in ``known``. The finished response is put into ``stored`` when its request
    says ``store``, and into ``keeps_all`` in any case.
    Raises GatewayError.
    """
    request, chain = await read_request(exchange, known)
    response_id = f"resp_{uuid.uuid4().hex}"
    model = (await exchange.gateway.models.named(request.model)).id
    asked = ask(
        exchange,
        request.conversation,
        model=model,
        sampling=request.sampling,
        response_id=response_id,
        cache_key=request.prompt_cache_key,
        user=request.user or request.safety_identifier,
        previous_response_id=request.previous_response_id,
    )
    asked.generate.warm_up_only = not request.generate

    async def keep(response: dict[str, Any]) -> None:
        for chains in (stored if request.store else None, keeps_all):
            if chains is not None:
                await chains.put(exchange.caller.tenant, response, request.input_items, chain.ids)

    options = OutputOptions(
        encrypted_reasoning="reasoning.encrypted_content" in request.include or not request.store,
        reasoning_summary=request.reasoning_summary is not None,
        logprobs="message.output_text.logprobs" in request.include,
    )

    def while_running(generation: Generation) -> AbstractContextManager[None]:
        async def cancel() -> dict[str, Any]:
            generation.abandon()
            response = {**stream.response, "status": "cancelled"}
            await keep(response)
            return response

        return exchange.gateway.running.entered(exchange.caller.tenant, response_id, cancel)

    stream = ResponseStream(
        response_id,
        model,
        request.echo,
        request.tool_names,
        options,
        on_finish=keep,
        while_running=while_running,
    )
    return Creation(request, asked, stream)


async def read_request(
    exchange: Exchange, chains: Chains, *, default_model: str | None = None
) -> tuple[ResponsesRequest, Chain]:
    """The request and the chain that it continues. Raises GatewayError."""
    body, tenant = exchange.body, exchange.caller.tenant
    previous_id = body.text("previous_response_id")
    chain = await chains.follow(tenant, previous_id) if previous_id else Chain()
    known = {item.values.get("id") for item in chain.items}
    elsewhere = [item_id for item_id in referenced_ids(body) if item_id not in known]
    referenced = await chains.items_named(tenant, elsewhere) if elsewhere else {}
    return parse(body, chain.items, referenced, default_model=default_model), chain
