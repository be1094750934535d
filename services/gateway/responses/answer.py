"""Responses out: a tokenizer's events become the protocol's, for any transport.

created, in_progress, then item after item, then completed, incomplete or failed; numbered from 0.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing
from typing import Any

from fencepost.tokenizer.v1 import tokenizer_pb2

from services.gateway import cached, outcome
from services.gateway.errors import (
    AnswerCancelledError,
    ContextLengthError,
    GatewayError,
    RateLimitError,
    UnavailableError,
)
from services.gateway.responses.output import Output, OutputOptions
from services.gateway.responses.tool_names import ToolNames
from services.gateway.stream import sse
from services.gateway.upstream import Generation

OnFinish = Callable[[dict[str, Any]], Awaitable[None]]
_Event = dict[str, Any]

_INCOMPLETE_REASONS = {tokenizer_pb2.FINISH_REASON_LENGTH: "max_output_tokens"}


class ResponseStream:
    """One response in the making; used once."""

    def __init__(
        self,
        response_id: str,
        model: str,
        echo: dict[str, Any],
        tool_names: ToolNames,
        options: OutputOptions,
        *,
        on_finish: OnFinish,
        while_running: Callable[[Generation], AbstractContextManager[None]],
    ) -> None:
        """``echo`` is what the response repeats of its request.

        ``on_finish`` is awaited with the finished response before the event that ends it: whoever reads that event
        finds the response in place. What it raises makes the response fail, since a stored one was promised.
        ``while_running`` is entered for as long as it can still be cancelled.
        """
        self.id = response_id
        self._output = Output(tool_names, options)
        self._on_finish = on_finish
        self._while_running = while_running
        self._num_events = 0
        self._progress: dict[str, int] = {}
        self._response: _Event = {
            "id": response_id,
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "status": "in_progress",
            "model": model,
            "error": None,
            "incomplete_details": None,
            "conversation": None,
            "prompt": None,
            "output": [],
            "usage": None,
            **echo,
        }

    @property
    def response(self) -> _Event:
        """As it is now, with the items that are whole; in the end, as it was last sent."""
        return {**self._response, "output": [*self._output.items]}

    async def events(self, generation: Generation) -> AsyncGenerator[_Event, None]:
        """All events but that of a failure, which is raised: ``failed`` makes it. Raises GatewayError."""
        yield self._numbered("response.created", response=self._response)
        yield self._numbered("response.in_progress", response=self._response)
        finished = tokenizer_pb2.Finished()
        with self._while_running(generation):
            async with aclosing(generation.events()) as events:
                async for event in events:
                    match event.WhichOneof("event"):
                        case "finished":
                            finished = event.finished
                        case "progress":
                            self._see(event.progress)
                        case _:
                            for found in self._output.push(event):
                                yield self._numbered(**found)
        if finished.reason == tokenizer_pb2.FINISH_REASON_CANCELLED:
            raise UnavailableError("The server gave this answer up; try again.")
        reason = _INCOMPLETE_REASONS.get(finished.reason)
        for found in self._output.close("incomplete" if reason else "completed"):
            yield self._numbered(**found)
        response = {
            **self._response,
            "status": "incomplete" if reason else "completed",
            "completed_at": None if reason else int(time.time()),
            "incomplete_details": {"reason": reason} if reason else None,
            "output": self._output.items,
            "usage": usage_of(finished.usage),
            **outcome.warnings([finished]),
        }
        await self._on_finish(response)
        # Not before: until it is stored it may still fail, and keep-alives show it in progress.
        self._response = response
        yield self._numbered(f"response.{self._response['status']}", response=self._response)

    def keep_alive(self) -> _Event:
        """An event that says that the response is still in the making, and how far its prompt is."""
        event = self._numbered("response.in_progress", response=self._response)
        return event | ({"fencepost": self._progress} if self._progress else {})

    def failed(self, error: GatewayError) -> _Event:
        """The event that ends a response that failed, or that its client has cancelled.

        The open item stays open: a client must not take it for a whole one. The output is what was whole before.
        """
        is_cancelled = isinstance(error, AnswerCancelledError)
        self._response = {
            **self._response,
            "status": "cancelled" if is_cancelled else "failed",
            "error": None if is_cancelled else _error(error),
            "output": self._output.items,
        }
        return self._numbered("response.incomplete" if is_cancelled else "response.failed", response=self._response)

    def _see(self, progress: tokenizer_pb2.Progress) -> None:
        self._progress = {"prefilled_tokens": progress.prefilled_tokens, "prompt_tokens": progress.prompt_tokens}
        if progress.HasField("queue_position"):
            self._progress["queue_position"] = progress.queue_position

    def _numbered(self, type: str, **fields: Any) -> _Event:
        event = {"type": type, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return event


class ResponseAnswer:
    """A response over HTTP."""

    def __init__(self, stream: ResponseStream, client_field: Callable[[str], str]) -> None:
        self._stream = stream
        self._client_field = client_field

    def keep_alive(self) -> bytes:
        """``response.in_progress`` once more."""
        return _frame(self._stream.keep_alive())

    def frame_of_error(self, error: GatewayError) -> bytes:
        """``response.failed``."""
        return _frame(self._stream.failed(error))

    def client_field(self, contract_field: str) -> str:
        """In the spelling of this protocol."""
        return self._client_field(contract_field)

    async def frames(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The whole stream."""
        async with aclosing(self._stream.events(generation)) as events:
            async for event in events:
                yield _frame(event)

    async def whole(self, generation: Generation) -> dict[str, Any]:
        """The finished response."""
        async with aclosing(self._stream.events(generation)) as events:
            async for _ in events:
                pass
        return self._stream.response


def usage_of(counted: tokenizer_pb2.Usage) -> dict[str, Any]:
    """OpenAI's numbers, and beside them the tiers that the cached tokens came from."""
    tokens_by_tier = cached.tokens_by_tier(counted.cached)
    return {
        "input_tokens": counted.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": sum(tokens_by_tier.values()),
            "cache_write_tokens": 0,
            **cached.details(counted),
        },
        "output_tokens": counted.output_tokens,
        "output_tokens_details": {"reasoning_tokens": counted.reasoning_tokens},
        "total_tokens": counted.prompt_tokens + counted.output_tokens,
    }


def _error(error: GatewayError) -> dict[str, str]:
    """As a response holds it: with a code that clients know.

    They repeat what failed with server_error, and not what was asked wrongly. Codex takes the time to wait from the
    words, and on codes such as server_is_overloaded it gives the turn up.
    """
    message = error.message
    match error:
        case ContextLengthError():
            code = "context_length_exceeded"
        case RateLimitError():
            code, message = "rate_limit_exceeded", f"{message} Please try again in {error.retry_after}s."
        case _:
            code = "invalid_prompt" if error.type == "invalid_request_error" else "server_error"
    return {"code": code, "message": message}


def _frame(event: _Event) -> bytes:
    return sse(event, event["type"])
