"""OpenAI's Responses over a WebSocket: one JSON event in a text frame, one response at a time.

The socket is read while a response is made, so that a cancellation or the client's leaving ends the work at once. What
the connection's own responses were is kept with it, also where the client wants nothing stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, cast

import orjson
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from services.gateway.delivery import respelt
from services.gateway.error_response import response_of
from services.gateway.errors import (
    AnswerCancelledError,
    BadRequestError,
    GatewayError,
    InternalError,
    UnavailableError,
    UpgradeRequiredError,
)
from services.gateway.exchange import Exchange, caller_of, gateway_of
from services.gateway.fields import Fields
from services.gateway.raw_json import RawJson
from services.gateway.records import MemoryRecords
from services.gateway.responses.chain import Chains
from services.gateway.responses.creation import create
from services.gateway.tenants.authentication import authenticate
from services.gateway.tenants.caller import Caller
from services.gateway.upstream import Generation
from services.gateway.websocket import SERVICE_RESTART, stopping_of

LOCAL_BYTES = 8 * 2**20
"""Of a connection's own responses; the oldest are forgotten first."""

_LAST_EVENTS = ("response.completed", "response.incomplete")
_log = logging.getLogger(__name__)


async def serve(websocket: WebSocket, stored: Chains) -> None:
    """Accept the connection and serve it to its end, or refuse it with an HTTP status before the upgrade."""
    gateway = gateway_of(websocket)
    try:
        caller = caller_of(websocket)
        if not gateway.config.websocket:
            raise UpgradeRequiredError("WebSocket connections are switched off here; use HTTP.")
        if gateway.num_websockets >= gateway.config.max_websockets:
            raise UnavailableError("There are too many WebSocket connections; try again shortly.", retry_after_s=1)
    except GatewayError as error:
        await websocket.send_denial_response(response_of(error, websocket))
        return
    with gateway.websocket():
        await websocket.accept()
        await Connection(websocket, caller, stored).run()


class Connection:
    """One accepted connection."""

    def __init__(self, websocket: WebSocket, caller: Caller, stored: Chains) -> None:
        self._websocket = websocket
        self._caller = caller
        self._gateway = gateway_of(websocket)
        ttl_s = self._gateway.config.response_ttl_s
        local = MemoryRecords(LOCAL_BYTES)
        self._stored = stored
        self._local = Chains((local,), ttl_s)
        self._known = Chains((local, self._gateway.records), ttl_s)
        self._task: asyncio.Task[None] | None = None
        self._generation: Generation | None = None
        self._is_answering = False
        self._is_cancelled = False
        self._stopping = stopping_of(websocket)
        # Frames come from the reader and from the response.
        self._sending = asyncio.Lock()

    async def run(self) -> None:
        """Until the client leaves or the server stops; then nothing of its work goes on."""
        closing = asyncio.create_task(self._close_when_stopping())
        try:
            await self._read()
        except WebSocketDisconnect:
            return
        except asyncio.CancelledError:
            # The server's grace is over; as this task ends here, nothing above needs to know.
            _log.warning("a WebSocket connection was cut off by the shutdown")
            await self._end(closing)
            await self._close()
        finally:
            await self._end(closing)

    async def _read(self) -> None:
        while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
            try:
                await self._take(message.get("text"))
            except GatewayError as error:
                await self._send(_error_event(error))

    async def _close_when_stopping(self) -> None:
        """The response that is being made is the last one."""
        await self._stopping.wait()
        if self._task is not None:
            await asyncio.wait((self._task,))
        async with self._sending:
            await self._close()

    async def _close(self) -> None:
        with suppress(WebSocketDisconnect):
            if self._websocket.application_state is not WebSocketState.DISCONNECTED:
                await self._websocket.close(SERVICE_RESTART)

    async def _end(self, closing: asyncio.Task[None]) -> None:
        tasks = [closing, *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, text: str | None) -> None:
        """One frame of the client's. Raises BadRequestError."""
        if text is None:
            raise BadRequestError("Frames must be text.")
        data = text.encode(errors="replace")
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise BadRequestError(f"The frame is not valid JSON: {error.msg}.") from None
        if not isinstance(value, dict):
            raise BadRequestError("The frame must be a JSON object.")
        body = Fields(cast(dict[str, Any], value), RawJson(data))
        match kind := body.required_text("type"):
            case "response.create":
                if self._is_answering:
                    raise BadRequestError("A response is in the making; wait for its end.", param="type")
                if self._stopping.is_set():
                    raise UnavailableError("The server is stopping; connect again.", retry_after_s=1)
                if self._task is not None:
                    # Its client has read the last event, and is faster than the clearing up behind it.
                    await asyncio.gather(self._task, return_exceptions=True)
                self._is_answering, self._is_cancelled = True, False
                self._task = asyncio.create_task(self._create(body))
            case "response.cancel":
                self._is_cancelled = True
                if self._generation is not None:
                    self._generation.abandon()
            case _:
                raise BadRequestError(
                    f"'type' must be response.create or response.cancel, not {kind[:40]!r}.", param="type"
                )

    async def _create(self, body: Fields) -> None:
        try:
            # The key may have been revoked since the connection was opened.
            authenticate(self._websocket.headers, self._gateway.keys)
            with self._gateway.limits.slot(self._caller.tenant):
                await self._respond(Exchange(self._gateway, self._websocket, self._caller, body))
        except WebSocketDisconnect:
            # The reader learns it too.
            return
        except GatewayError as error:
            await self._forget_after(error, body)
            await self._send_last(_error_event(error))
        except Exception:  # noqa: BLE001 - our own bugs end this response, not the connection
            _log.exception("a response failed")
            await self._send_last(_error_event(InternalError()))

    async def _respond(self, exchange: Exchange) -> None:
        """Raises GatewayError before the response has begun."""
        creation = await create(exchange, self._known, self._stored, keeps_all=self._local)
        asked, stream = creation.asked, creation.stream
        if self._is_cancelled:
            raise AnswerCancelledError
        generation = self._gateway.tokenizers.generate(asked.generate, asked.replica_key, exchange.trace)
        self._generation = generation
        try:
            try:
                await generation.admitted(self._gateway.config.keep_alive_s)
            except GatewayError as error:
                raise respelt(error, creation.request.client_field) from None
            try:
                async with aclosing(stream.events(generation)) as events:
                    await self._send_all(events, stream.keep_alive)
            except GatewayError as error:
                await self._forget_after(error, exchange.body)
                await self._send_last(stream.failed(respelt(error, creation.request.client_field)))
        finally:
            self._generation = None
            generation.cancel()

    async def _send_all(self, events: AsyncGenerator[dict[str, Any], None], keep_alive: Any) -> None:
        """Send every event, and something in every silence."""
        following = asyncio.ensure_future(anext(events, None))
        try:
            while True:
                done, _ = await asyncio.wait((following,), timeout=self._gateway.config.keep_alive_s)
                if not done:
                    await self._send(keep_alive())
                    continue
                event = following.result()
                if event is None:
                    return
                await (self._send_last if event["type"] in _LAST_EVENTS else self._send)(event)
                following = asyncio.ensure_future(anext(events, None))
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _forget_after(self, error: GatewayError, body: Fields) -> None:
        """A continuation that failed takes what it continued with it: its client starts anew."""
        previous_id = body.values.get("previous_response_id")
        if isinstance(previous_id, str) and not isinstance(error, AnswerCancelledError):
            await self._local.delete(self._caller.tenant, previous_id)

    async def _send_last(self, event: dict[str, Any]) -> None:
        """What ends a response; whoever reads it may ask for the next one."""
        self._is_answering = False
        await self._send(event)

    async def _send(self, event: dict[str, Any]) -> None:
        text = orjson.dumps(event).decode()
        async with self._sending:
            if self._websocket.application_state is WebSocketState.DISCONNECTED:
                raise WebSocketDisconnect(SERVICE_RESTART)
            await self._websocket.send_text(text)


def _error_event(error: GatewayError) -> dict[str, Any]:
    return {"type": "error", "status": error.http_status, "error": error.openai_error(), "headers": error.headers}
