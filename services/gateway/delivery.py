"""From a parsed request to its HTTP response: one object, or a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

import orjson
from starlette.requests import Request
from starlette.responses import Response

from services.gateway import cached
from services.gateway.errors import GatewayError
from services.gateway.stream import EventStream, unless_gone
from services.gateway.upstream import Generation

DONE = b"data: [DONE]\n\n"
"""What ends every stream of OpenAI's completion endpoints."""


class Answer(Protocol):
    """One answer in its protocol's shape. Either ``frames`` or ``whole`` is used, once."""

    def frames(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The whole stream, event by event; its first event does not wait for the generation's."""
        ...

    async def whole(self, generation: Generation) -> dict[str, Any]:
        """The same in one object."""
        ...

    def keep_alive(self) -> bytes:
        """An event that adds nothing; clients take silence for death. Sent between two frames, first of all too."""
        ...

    def frame_of_error(self, error: GatewayError) -> bytes:
        """What ends the stream when it fails after its start."""
        ...

    def client_field(self, contract_field: str) -> str:
        """How the client spells a field of the contract, e.g. ``conversation.messages[1].parts``."""
        ...


async def deliver(
    request: Request, generation: Generation, answer: Answer, *, is_stream: bool, keep_alive_s: float
) -> Response:
    """Hand a generation on, and cancel it in the end.

    A request that an engine has not admitted within ``keep_alive_s`` gets a stream's headers all the same: keep-alives
    then say that it waits. Raises GatewayError before anything is sent, ClientGoneError when nobody waits any more.
    """
    is_handed_over = False
    try:
        if is_stream:
            admitted = await unless_gone(request.receive, generation.admitted(keep_alive_s))
            response = EventStream(
                answer.frames(generation),
                frame_of_error=lambda error: answer.frame_of_error(respelt(error, answer.client_field)),
                keep_alive=answer.keep_alive,
                keep_alive_s=keep_alive_s,
                close=generation.cancel,
                headers={} if admitted is None else {"x-fencepost-cache": cached.header(admitted.cached)},
            )
            is_handed_over = True
            return response
        whole = await unless_gone(request.receive, answer.whole(generation))
    except GatewayError as error:
        raise respelt(error, answer.client_field) from None
    finally:
        if not is_handed_over:
            generation.cancel()
    admitted = await generation.admitted(0)
    assert admitted is not None
    return Response(
        orjson.dumps(whole),
        media_type="application/json",
        headers={"x-fencepost-cache": cached.header(admitted.cached)},
    )


def respelt(error: GatewayError, client_field: Callable[[str], str]) -> GatewayError:
    """The error with its field as the client spells it."""
    error.param = client_field(error.param) if error.param else None
    return error
