"""Completions, OpenAI's older protocol: one text goes in, what follows it comes out.

Chunks: pieces of text, one with the finish reason, one with the usage where asked for, ``[DONE]``.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fencepost.tokenizer.v1 import tokenizer_pb2
from starlette.requests import Request
from starlette.responses import Response

from services.gateway import outcome
from services.gateway.client_request import ClientRequest, assemble
from services.gateway.delivery import DONE, deliver
from services.gateway.errors import BadRequestError, GatewayError, UnsupportedError
from services.gateway.exchange import Exchange
from services.gateway.fields import Fields, wrong
from services.gateway.stream import sse
from services.gateway.upstream import Generation


async def respond(request: Request, exchange: Exchange) -> Response:
    """Answer one request. Raises GatewayError before anything is sent, ClientGoneError when nobody waits any more."""
    gateway = exchange.gateway
    response_id = f"cmpl-{uuid.uuid4().hex}"
    asked = parse(exchange, response_id=response_id)
    asked.generate.model = (await gateway.models.named(asked.generate.model)).id
    return await deliver(
        request,
        gateway.tokenizers.generate(asked.generate, asked.replica_key, exchange.trace),
        _Answer(response_id, asked.generate.model, int(time.time()), asked.include_usage),
        is_stream=asked.is_stream,
        keep_alive_s=gateway.config.keep_alive_s,
    )


def parse(exchange: Exchange, *, response_id: str) -> ClientRequest:
    """Raises BadRequestError or UnsupportedError naming the field."""
    for name, harmless in (("echo", False), ("suffix", ""), ("best_of", 1)):
        exchange.body.refuse(name, harmless)
    return assemble(exchange, _prompt(exchange.body), response_id=response_id)


def client_field(contract_field: str) -> str:
    """How the body spells a field of the contract: ``text`` → ``prompt``."""
    field = contract_field.removeprefix("sampling.")
    return re.sub(r"^stop_texts\b", "stop", re.sub(r"^(text|input)$", "prompt", field))


def _prompt(body: Fields) -> str:
    value = body.required("prompt")
    if isinstance(value, list):
        raise UnsupportedError("'prompt' as a list is not supported yet; send one string.", param="prompt")
    if not isinstance(value, str):
        raise wrong("prompt", "a string", value)
    if not value:
        raise BadRequestError("'prompt' must not be empty.", param="prompt")
    return value


class _Answer:
    """The identity that all chunks of an answer share, and how they look."""

    def __init__(self, response_id: str, model: str, created_s: int, include_usage: bool) -> None:
        self._head = {
            "id": response_id,
            "object": "text_completion",
            "created": created_s,
            "model": model,
            "system_fingerprint": None,
        }
        self._include_usage = include_usage
        # Where the usage comes at the end, every chunk before has a null one.
        self._tail: dict[str, Any] = {"usage": None} if include_usage else {}

    def keep_alive(self) -> bytes:
        """An empty piece of text."""
        return self._chunk("")

    def frame_of_error(self, error: GatewayError) -> bytes:
        """The error; no ``[DONE]`` follows."""
        return sse(error.openai_body())

    def client_field(self, contract_field: str) -> str:
        """In the spelling of this protocol."""
        return client_field(contract_field)

    async def frames(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The whole stream. Its end waits for the tokenizer's, so that the next request finds everything in place."""
        usage = tokenizer_pb2.Usage()
        async with aclosing(generation.events()) as events:
            async for event in events:
                if event.HasField("finished"):
                    usage = event.finished.usage
                    yield self._chunk("", outcome.finish_reason(event.finished))
                elif event.text_delta.text:
                    yield self._chunk(event.text_delta.text)
        if self._include_usage:
            yield sse({**self._head, "choices": [], "usage": outcome.usage(usage)})
        yield DONE

    async def whole(self, generation: Generation) -> dict[str, Any]:
        """The object with all of the text."""
        texts: list[str] = []
        finished = tokenizer_pb2.Finished()
        async with aclosing(generation.events()) as events:
            async for event in events:
                if event.HasField("finished"):
                    finished = event.finished
                else:
                    texts.append(event.text_delta.text)
        choice = _choice("".join(texts), outcome.finish_reason(finished))
        return {**self._head, "choices": [choice], "usage": outcome.usage(finished.usage)}

    def _chunk(self, text: str, finish_reason: str | None = None) -> bytes:
        return sse({**self._head, "choices": [_choice(text, finish_reason)], **self._tail})


def _choice(text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
