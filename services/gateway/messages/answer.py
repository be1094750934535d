"""Messages out: a tokenizer's events become nested blocks, or one message.

message_start, ping, then block after block (content_block_start, deltas, content_block_stop), message_delta with the
stop reason and all of the usage, message_stop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

from fencepost.tokenizer.v1 import tokenizer_pb2

from services.gateway import cached, outcome
from services.gateway.errors import GatewayError, UnavailableError
from services.gateway.messages import request
from services.gateway.messages.content import ContentBlocks, ContentStream, Event
from services.gateway.stream import sse
from services.gateway.upstream import Generation

# A loop that the guard ended has ended: asked to go on, the model would go round again. A warning says so.
_STOP_REASONS = {
    tokenizer_pb2.FINISH_REASON_STOP: "end_turn",
    tokenizer_pb2.FINISH_REASON_STOP_TEXT: "stop_sequence",
    tokenizer_pb2.FINISH_REASON_LENGTH: "max_tokens",
    tokenizer_pb2.FINISH_REASON_LOOP: "end_turn",
    tokenizer_pb2.FINISH_REASON_CALLS: "tool_use",
}


class Answer:
    """The identity of one message, and how it looks; used once."""

    def __init__(self, message_id: str, model: str, request_id: str) -> None:
        self._request_id = request_id
        self._head: dict[str, Any] = {"id": message_id, "type": "message", "role": "assistant", "model": model}

    def keep_alive(self) -> bytes:
        """A ping."""
        return _joined([{"type": "ping"}])

    def frame_of_error(self, error: GatewayError) -> bytes:
        """The last event of a message that failed."""
        return _joined([error.anthropic_body(self._request_id)])

    def client_field(self, contract_field: str) -> str:
        """In the spelling of this protocol."""
        return request.client_field(contract_field)

    async def frames(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The whole stream. Its end waits for the tokenizer's, so that the next turn finds everything in place."""
        admitted = await generation.admitted(0)
        usage = tokenizer_pb2.Usage()
        if admitted is not None:
            usage = tokenizer_pb2.Usage(prompt_tokens=admitted.prompt_tokens, cached=admitted.cached)
        message: Event = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_of(usage),
        }
        yield _joined([{"type": "message_start", "message": message}, {"type": "ping"}])
        content = ContentStream()
        finished = tokenizer_pb2.Finished()
        async with aclosing(generation.events()) as events:
            async for event in events:
                if event.HasField("finished"):
                    finished = event.finished
                elif frame := _joined(content.read(event)):
                    yield frame
        stop = _stop(finished, has_calls=content.has_calls)
        end = {"usage": usage_of(finished.usage), **outcome.warnings([finished])}
        message_delta: Event = {"type": "message_delta", "delta": stop, **end}
        yield _joined([*content.end(), message_delta, {"type": "message_stop"}])

    async def whole(self, generation: Generation) -> dict[str, Any]:
        """The message object."""
        content, blocks = ContentStream(), ContentBlocks()
        finished = tokenizer_pb2.Finished()
        async with aclosing(generation.events()) as events:
            async for event in events:
                if event.HasField("finished"):
                    finished = event.finished
                else:
                    blocks.add(content.read(event))
        blocks.add(content.end())
        stop = _stop(finished, has_calls=content.has_calls)
        end = {"usage": usage_of(finished.usage), **outcome.warnings([finished])}
        return {**self._head, "content": blocks.finished(), **stop, **end}


def usage_of(counted: tokenizer_pb2.Usage) -> dict[str, Any]:
    """Anthropic's numbers: ``input_tokens`` are those that no cache had. Nothing is charged for filling it."""
    num_cached = sum(cached.tokens_by_tier(counted.cached).values())
    return {
        "input_tokens": counted.prompt_tokens - num_cached,
        "cache_read_input_tokens": num_cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": counted.output_tokens,
        "output_tokens_details": {"thinking_tokens": counted.reasoning_tokens},
    }


def _stop(finished: tokenizer_pb2.Finished, *, has_calls: bool) -> dict[str, Any]:
    """Raises UnavailableError for an answer that was given up."""
    reason = _STOP_REASONS.get(finished.reason)
    if reason is None:
        raise UnavailableError("The server gave this answer up; try again.")
    if reason == "end_turn" and has_calls:
        # A call that could not be read to its end: the client refuses it, and the model can mend it.
        reason = "tool_use"
    stop_sequence = finished.stop_text if reason == "stop_sequence" else None
    return {"stop_reason": reason, "stop_sequence": stop_sequence}


def _joined(events: Iterable[Event]) -> bytes:
    """Events as one frame; the name of each is its type."""
    return b"".join(sse(event, event["type"]) for event in events)
