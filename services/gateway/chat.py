"""Chat Completions out: a tokenizer's events become chunks, or one object.

Chunks: each choice's role, deltas and one with the finish reason, those of different choices in any order; one with
the usage of all where asked for; ``[DONE]``.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from fencepost.tokenizer.v1 import tokenizer_pb2
from starlette.requests import Request
from starlette.responses import Response

from services.gateway import chat_request, outcome
from services.gateway.chat_message import Calls, Message, choice_of, delta_of
from services.gateway.delivery import DONE, deliver
from services.gateway.errors import GatewayError
from services.gateway.exchange import Exchange
from services.gateway.logprobs import chat_logprobs
from services.gateway.stream import sse
from services.gateway.upstream import Generation


async def respond(request: Request, exchange: Exchange) -> Response:
    """Answer one request. Raises GatewayError before anything is sent, ClientGoneError when nobody waits any more."""
    gateway = exchange.gateway
    response_id = f"chatcmpl-{uuid.uuid4().hex}"
    asked = chat_request.parse(exchange, response_id=response_id)
    asked.generate.model = (await gateway.models.named(asked.generate.model)).id
    return await deliver(
        request,
        gateway.tokenizers.generate(asked.generate, asked.replica_key, exchange.trace),
        _Answer(response_id, asked.generate, int(time.time()), asked.include_usage),
        is_stream=asked.is_stream,
        keep_alive_s=gateway.config.keep_alive_s,
    )


class _Answer:
    """The identity that all chunks of an answer share, and how they look."""

    def __init__(
        self, response_id: str, request: tokenizer_pb2.GenerateRequest, created_s: int, include_usage: bool
    ) -> None:
        self._identity = {"id": response_id, "created": created_s, "model": request.model, "system_fingerprint": None}
        self._head = {**self._identity, "object": "chat.completion.chunk"}
        self._include_usage = include_usage
        # Where the usage comes at the end, every chunk before has a null one.
        self._tail: dict[str, Any] = {"usage": None} if include_usage else {}
        self._num_choices = request.sampling.choices or 1
        self._has_logprobs = request.sampling.HasField("logprobs")
        self._finished: set[int] = set()

    def keep_alive(self) -> bytes:
        """An empty delta, of a choice that is not finished where there is one."""
        open_choices = (index for index in range(self._num_choices) if index not in self._finished)
        return self._chunk(next(open_choices, 0), {})

    def frame_of_error(self, error: GatewayError) -> bytes:
        """The error; no ``[DONE]`` follows."""
        return sse(error.openai_body())

    def client_field(self, contract_field: str) -> str:
        """In the spelling of this protocol."""
        return chat_request.client_field(contract_field)

    async def frames(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The whole stream. Its end waits for the tokenizer's, so that the next turn finds everything in place."""
        for index in range(self._num_choices):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        calls: defaultdict[int, Calls] = defaultdict(Calls)
        usages: list[tokenizer_pb2.Usage] = []
        async with aclosing(generation.events()) as events:
            async for event in events:
                index = choice_of(event)
                if index is None:
                    continue
                if event.HasField("finished"):
                    usages.append(event.finished.usage)
                    self._finished.add(index)
                    reason, more = outcome.finish_reason(event.finished), outcome.warnings([event.finished])
                    yield self._chunk(index, {}, finish_reason=reason, **more)
                elif delta := delta_of(event, calls[index]):
                    tokens = event.text_delta.logprobs
                    yield self._chunk(index, delta, logprobs=chat_logprobs(tokens) if tokens else None)
        if self._include_usage:
            yield sse({**self._head, "choices": [], "usage": outcome.usage(usages)})
        yield DONE

    async def whole(self, generation: Generation) -> dict[str, Any]:
        """The chat.completion object."""
        messages: defaultdict[int, Message] = defaultdict(Message)
        async with aclosing(generation.events()) as events:
            async for event in events:
                index = choice_of(event)
                if index is not None:
                    messages[index].add(event)
        return {
            **self._identity,
            "object": "chat.completion",
            "choices": [
                {
                    "index": index,
                    "message": message.whole(),
                    "logprobs": message.logprobs() if self._has_logprobs else None,
                    "finish_reason": outcome.finish_reason(message.finished),
                }
                for index, message in sorted(messages.items())
            ],
            "usage": outcome.usage([message.finished.usage for message in messages.values()]),
            **outcome.warnings(message.finished for message in messages.values()),
        }

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
        **more: Any,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return sse({**self._head, "choices": [choice], **self._tail, **more})
