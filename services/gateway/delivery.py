"""From a parsed request to its HTTP response: one object, or a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

import orjson
from starlette.requests import Request
from starlette.responses import Response

from services.gateway import cached
from services.gateway.client_request import ClientRequest
from services.gateway.errors import GatewayError
from services.gateway.stream import EventStream, sse, unless_gone
from services.gateway.upstream import Generation, Tokenizers

DONE = b"data: [DONE]\n\n"
"""What ends every stream of OpenAI's completion endpoints."""


class Answer(Protocol):
    """One answer in its protocol's shape."""

    def keep_alive(self) -> bytes:
        """An event that adds nothing; clients take silence for death."""
        ...

    def frames(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The whole stream, event by event."""
        ...

    async def whole(self, generation: Generation) -> dict[str, Any]:
        """The same in one object."""
        ...


async def deliver(
    request: Request,
    asked: ClientRequest,
    answer: Answer,
    tokenizers: Tokenizers,
    *,
    client_field: Callable[[str], str],
    metadata: tuple[tuple[str, str], ...],
    keep_alive_s: float,
) -> Response:
    """Ask a tokenizer and hand its answer on; ``client_field`` respells the contract's fields for errors.

    Raises GatewayError before anything is sent, ClientGoneError when nobody waits any more.
    """

    def respelt(error: GatewayError) -> GatewayError:
        error.param = client_field(error.param) if error.param else None
        return error

    try:
        generation = await unless_gone(
            request.receive, tokenizers.generate(asked.generate, asked.replica_key, metadata)
        )
    except GatewayError as error:
        raise respelt(error) from None
    headers = {"x-fencepost-cache": cached.header(generation.admitted.cached)}
    if asked.is_stream:
        return EventStream(
            answer.frames(generation),
            frame_of_error=lambda error: sse(respelt(error).openai_body()),
            keep_alive=answer.keep_alive(),
            keep_alive_s=keep_alive_s,
            close=generation.cancel,
            headers=headers,
        )
    try:
        whole = await unless_gone(request.receive, answer.whole(generation))
    except GatewayError as error:
        raise respelt(error) from None
    finally:
        generation.cancel()
    return Response(orjson.dumps(whole), media_type="application/json", headers=headers)
