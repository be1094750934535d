"""Chat Completions out: a tokenizer's events become chunks, or one object.

Chunks: the role, deltas, one with the finish reason, one with the usage where asked for, ``[DONE]``.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import orjson
from fencepost.tokenizer.v1 import tokenizer_pb2
from starlette.requests import Request
from starlette.responses import Response

from services.gateway import cached, chat_request
from services.gateway.errors import BadRequestError, UnavailableError
from services.gateway.stream import EventStream, sse, unless_gone
from services.gateway.upstream import Generation, Tokenizers

_DONE = b"data: [DONE]\n\n"
# A loop that the guard ended is an answer cut short.
_FINISH_REASONS = {
    tokenizer_pb2.FINISH_REASON_STOP: "stop",
    tokenizer_pb2.FINISH_REASON_STOP_TEXT: "stop",
    tokenizer_pb2.FINISH_REASON_LENGTH: "length",
    tokenizer_pb2.FINISH_REASON_LOOP: "length",
    tokenizer_pb2.FINISH_REASON_CALLS: "tool_calls",
}


async def respond(
    request: Request,
    body: dict[str, Any],
    tokenizers: Tokenizers,
    *,
    request_id: str,
    metadata: tuple[tuple[str, str], ...],
    keep_alive_s: float,
) -> Response:
    """Answer one request. Raises GatewayError before anything is sent, ClientGoneError when nobody waits any more."""
    response_id = f"chatcmpl-{uuid.uuid4().hex}"
    chat = chat_request.parse(body, request.headers, request_id=request_id, response_id=response_id)
    try:
        generation = await unless_gone(request.receive, tokenizers.generate(chat.generate, chat.replica_key, metadata))
    except BadRequestError as error:
        error.param = chat_request.client_field(error.param) if error.param else None
        raise
    answer = _Answer(response_id, chat.generate.model, int(time.time()), chat.include_usage)
    headers = {"x-fencepost-cache": cached.header(generation.admitted.cached)}
    if chat.is_stream:
        return EventStream(
            answer.frames(generation),
            frame_of_error=lambda error: sse(error.openai_body()),
            keep_alive=answer.chunk({}),
            keep_alive_s=keep_alive_s,
            close=generation.cancel,
            headers=headers,
        )
    try:
        whole = await unless_gone(request.receive, answer.whole(generation))
    finally:
        generation.cancel()
    return Response(orjson.dumps(whole), media_type="application/json", headers=headers)


class _Answer:
    """The identity that all chunks of an answer share, and how they look."""

    def __init__(self, response_id: str, model: str, created_s: int, include_usage: bool) -> None:
        self._identity = {"id": response_id, "created": created_s, "model": model, "system_fingerprint": None}
        self._head = {**self._identity, "object": "chat.completion.chunk"}
        self._include_usage = include_usage
        # Where the usage comes at the end, every chunk before has a null one.
        self._tail: dict[str, Any] = {"usage": None} if include_usage else {}

    def chunk(self, delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
        """One event."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return sse({**self._head, "choices": [choice], **self._tail})

    async def frames(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The whole stream. Its end waits for the tokenizer's, so that the next turn finds everything in place."""
        yield self.chunk({"role": "assistant", "content": ""})
        usage = tokenizer_pb2.Usage()
        async with aclosing(generation.events()) as events:
            async for event in events:
                if event.HasField("finished"):
                    usage = event.finished.usage
                    yield self.chunk({}, _finish_reason(event.finished))
                elif delta := _delta(event):
                    yield self.chunk(delta)
        if self._include_usage:
            yield sse({**self._head, "choices": [], "usage": _usage(usage)})
        yield _DONE

    async def whole(self, generation: Generation) -> dict[str, Any]:
        """The chat.completion object."""
        texts: list[str] = []
        reasoning: list[str] = []
        call_by_index: dict[int, dict[str, Any]] = {}
        finished = tokenizer_pb2.Finished()
        async with aclosing(generation.events()) as events:
            async for event in events:
                match event.WhichOneof("event"):
                    case "text_delta":
                        texts.append(event.text_delta.text)
                    case "reasoning_delta":
                        reasoning.append(event.reasoning_delta.text)
                    case "call_started":
                        call_by_index[event.call_started.index] = _call(event.call_started)
                    case "call_finished":
                        call_by_index[event.call_finished.index]["function"]["arguments"] = (
                            event.call_finished.arguments
                        )
                    case "finished":
                        finished = event.finished
                    case _:
                        pass
        message: dict[str, Any] = {"role": "assistant", "content": "".join(texts), "refusal": None}
        if reasoning:
            message["reasoning_content"] = "".join(reasoning)
        if call_by_index:
            message["content"] = message["content"] or None
            message["tool_calls"] = [call_by_index[index] for index in sorted(call_by_index)]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(finished)}
        return {
            **self._identity,
            "object": "chat.completion",
            "choices": [choice],
            "usage": _usage(finished.usage),
        }


def _delta(event: tokenizer_pb2.GenerateResponse) -> dict[str, Any] | None:
    """What an event adds to the message; None for those that add nothing."""
    match event.WhichOneof("event"):
        case "text_delta":
            return {"content": event.text_delta.text} if event.text_delta.text else None
        case "reasoning_delta":
            return {"reasoning_content": event.reasoning_delta.text} if event.reasoning_delta.text else None
        case "call_started":
            return {"tool_calls": [{"index": event.call_started.index, **_call(event.call_started)}]}
        case "call_delta":
            return {
                "tool_calls": [{"index": event.call_delta.index, "function": {"arguments": event.call_delta.fragment}}]
            }
        case _:
            return None


def _call(started: tokenizer_pb2.CallStarted) -> dict[str, Any]:
    return {"id": started.call_id, "type": "function", "function": {"name": started.name, "arguments": ""}}


def _finish_reason(finished: tokenizer_pb2.Finished) -> str:
    reason = _FINISH_REASONS.get(finished.reason)
    if reason is None:
        raise UnavailableError("The server gave this answer up; try again.")
    return reason


def _usage(usage: tokenizer_pb2.Usage) -> dict[str, Any]:
    """OpenAI's numbers, and beside them the tiers that the cached tokens came from."""
    tokens_by_tier = cached.tokens_by_tier(usage.cached)
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": sum(tokens_by_tier.values()),
            "cached_tokens_by_tier": tokens_by_tier,
        },
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
