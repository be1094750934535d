"""Chat Completions out: a tokenizer's events become chunks, or one object.

Chunks: the role, deltas, one with the finish reason, one with the usage where asked for, ``[DONE]``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2
from starlette.requests import Request
from starlette.responses import Response

from services.gateway import chat_request, outcome
from services.gateway.delivery import DONE, deliver
from services.gateway.errors import GatewayError
from services.gateway.exchange import Exchange
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
        _Answer(response_id, asked.generate.model, int(time.time()), asked.include_usage),
        is_stream=asked.is_stream,
        keep_alive_s=gateway.config.keep_alive_s,
    )


class _Answer:
    """The identity that all chunks of an answer share, and how they look."""

    def __init__(self, response_id: str, model: str, created_s: int, include_usage: bool) -> None:
        self._identity = {"id": response_id, "created": created_s, "model": model, "system_fingerprint": None}
        self._head = {**self._identity, "object": "chat.completion.chunk"}
        self._include_usage = include_usage
        # Where the usage comes at the end, every chunk before has a null one.
        self._tail: dict[str, Any] = {"usage": None} if include_usage else {}

    def keep_alive(self) -> bytes:
        """An empty delta."""
        return self._chunk({})

    def frame_of_error(self, error: GatewayError) -> bytes:
        """The error; no ``[DONE]`` follows."""
        return sse(error.openai_body())

    def client_field(self, contract_field: str) -> str:
        """In the spelling of this protocol."""
        return chat_request.client_field(contract_field)

    async def frames(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The whole stream. Its end waits for the tokenizer's, so that the next turn finds everything in place."""
        yield self._chunk({"role": "assistant", "content": ""})
        usage = tokenizer_pb2.Usage()
        calls = _Calls()
        async with aclosing(generation.events()) as events:
            async for event in events:
                if event.HasField("finished"):
                    usage = event.finished.usage
                    yield self._chunk({}, outcome.finish_reason(event.finished))
                elif delta := _delta(event, calls):
                    yield self._chunk(delta)
        if self._include_usage:
            yield sse({**self._head, "choices": [], "usage": outcome.usage(usage)})
        yield DONE

    async def whole(self, generation: Generation) -> dict[str, Any]:
        """The chat.completion object."""
        texts: list[str] = []
        reasoning: list[str] = []
        calls = _Calls()
        finished = tokenizer_pb2.Finished()
        async with aclosing(generation.events()) as events:
            async for event in events:
                match event.WhichOneof("event"):
                    case "text_delta":
                        texts.append(event.text_delta.text)
                    case "reasoning_delta":
                        reasoning.append(event.reasoning_delta.text)
                    case "call_started":
                        calls.start(event.call_started)
                    case "call_delta":
                        calls.extend(event.call_delta)
                    case "finished":
                        finished = event.finished
                    case _:
                        pass
        message: dict[str, Any] = {"role": "assistant", "content": "".join(texts), "refusal": None}
        if any(reasoning):
            message["reasoning_content"] = "".join(reasoning)
        if tool_calls := calls.whole():
            message["content"] = message["content"] or None
            message["tool_calls"] = tool_calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": outcome.finish_reason(finished)}
        return {
            **self._identity,
            "object": "chat.completion",
            "choices": [choice],
            "usage": outcome.usage(finished.usage),
        }

    def _chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return sse({**self._head, "choices": [choice], **self._tail})


class _Calls:
    """The calls of one answer, by position; a function's text is its arguments, a custom tool's its input."""

    def __init__(self) -> None:
        self._started_by_index: dict[int, tokenizer_pb2.CallStarted] = {}
        self._fragments_by_index: dict[int, list[str]] = {}

    def start(self, started: tokenizer_pb2.CallStarted) -> dict[str, Any]:
        """Returns how the call looks before its text."""
        self._started_by_index[started.index] = started
        self._fragments_by_index[started.index] = []
        return _call(started, "")

    def extend(self, delta: tokenizer_pb2.CallDelta) -> dict[str, Any]:
        """Returns how the piece looks alone."""
        self._fragments_by_index[delta.index].append(delta.fragment)
        kind, key = _shape(self._started_by_index[delta.index])
        return {kind: {key: delta.fragment}}

    def whole(self) -> list[dict[str, Any]]:
        """All calls, in order; one that the answer's end cut short is as short here as in a stream."""
        return [
            _call(started, "".join(self._fragments_by_index[index]))
            for index, started in sorted(self._started_by_index.items())
        ]


def _delta(event: tokenizer_pb2.GenerateResponse, calls: _Calls) -> dict[str, Any] | None:
    """What an event adds to the message; None for those that add nothing."""
    match event.WhichOneof("event"):
        case "text_delta":
            return {"content": event.text_delta.text} if event.text_delta.text else None
        case "reasoning_delta":
            return {"reasoning_content": event.reasoning_delta.text} if event.reasoning_delta.text else None
        case "call_started":
            return {"tool_calls": [{"index": event.call_started.index, **calls.start(event.call_started)}]}
        case "call_delta" if event.call_delta.fragment:
            return {"tool_calls": [{"index": event.call_delta.index, **calls.extend(event.call_delta)}]}
        case _:
            return None


def _call(started: tokenizer_pb2.CallStarted, text: str) -> dict[str, Any]:
    kind, key = _shape(started)
    return {"id": started.call_id, "type": kind, kind: {"name": started.name, key: text}}


def _shape(started: tokenizer_pb2.CallStarted) -> tuple[str, str]:
    """The call's type, under which its text goes, and the text's name there."""
    return ("custom", "input") if started.kind == conversation_pb2.CALL_KIND_CUSTOM else ("function", "arguments")
