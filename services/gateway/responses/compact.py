"""Compaction: what the user said stays, and a summary by the model stands for the rest."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import orjson
from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2

from services.gateway.asking import ask
from services.gateway.delivery import respelt
from services.gateway.errors import GatewayError
from services.gateway.exchange import Exchange
from services.gateway.responses.answer import usage_of
from services.gateway.responses.chain import Chain
from services.gateway.responses.compaction import seal
from services.gateway.responses.parts import text_part
from services.gateway.responses.request import ResponsesRequest
from services.gateway.responses.stored_items import new_id, stored_item

MAX_SUMMARY_TOKENS = 2048
INSTRUCTION = (
    "Summarise this conversation for whoever continues it without having seen it: what was asked, what was decided and "
    "done, which files and commands mattered, what is left. Answer with the summary alone."
)


class NoSummaryError(GatewayError):
    """The model has said nothing: an item that stands for nothing would lose the conversation."""

    status = "INTERNAL"

    def __init__(self) -> None:
        super().__init__("The model gave no summary of the conversation; try again, or go on without compaction.")


async def compact(exchange: Exchange, request: ResponsesRequest, chain: Chain) -> dict[str, Any]:
    """``output``, which the next request sends as its input, and ``usage``. Raises GatewayError."""
    conversation = conversation_pb2.Conversation()
    conversation.CopyFrom(request.conversation)
    conversation.messages.add(role=conversation_pb2.ROLE_USER, parts=[text_part(INSTRUCTION)])
    if conversation.tools:
        # They stay, for the sake of the prefix.
        conversation.tool_choice.Clear()
        conversation.tool_choice.mode = conversation_pb2.TOOL_CHOICE_MODE_NONE
    conversation.ClearField("output_format")
    asked = ask(
        exchange,
        conversation,
        model=(await exchange.gateway.models.named(request.model)).id,
        sampling=tokenizer_pb2.Sampling(temperature=0, max_tokens=MAX_SUMMARY_TOKENS),
        response_id="",
        cache_key=request.prompt_cache_key,
        user=request.user,
    )
    generation = exchange.gateway.tokenizers.generate(asked.generate, asked.replica_key, exchange.trace)
    texts: list[str] = []
    usage = tokenizer_pb2.Usage()
    try:
        async with aclosing(generation.events()) as events:
            async for event in events:
                texts.append(event.text_delta.text)
                if event.HasField("finished"):
                    usage = event.finished.usage
    except GatewayError as error:
        raise respelt(error, request.client_field) from None
    finally:
        generation.cancel()
    text = "".join(texts).strip()
    if not text:
        raise NoSummaryError
    summary = {"id": new_id("compaction"), "type": "compaction", "encrypted_content": seal(text)}
    kept = [stored_item(item) for item in chain.items if _is_of_user(item.values)]
    # What is nested in a stored item is ready JSON, so it has to be written before it can be looked at.
    own = await asyncio.to_thread(lambda: orjson.loads(orjson.dumps(request.input_items)))
    kept += [item for item, values in zip(request.input_items, own, strict=True) if _is_of_user(values)]
    return {"output": [*kept, summary], "usage": usage_of(usage)}


def _is_of_user(item: dict[str, Any]) -> bool:
    return item.get("type", "message") == "message" and item.get("role") == "user"
