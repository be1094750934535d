"""Server-sent events and clients that leave.

    frames (a protocol's generator) ──▶ bounded buffer ──▶ one send of all that is queued ──▶ client

A slow client fills the buffer; the generator then stops reading, and gRPC's flow control holds the services behind.
A client that leaves ends the work at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.gateway.errors import GatewayError, InternalError

BUFFER_BYTES = 256 * 2**10
"""A stream's frames that wait for its client; one frame may exceed it."""

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class ClientGoneError(Exception):
    """The client has closed its connection; there is nobody to answer."""


def sse(value: Any, event: str | None = None) -> bytes:
    """One event of JSON data, with its name where the protocol gives it one.

    The three characters that JSON allows and some line splitters take for line ends are escaped.
    """
    data = orjson.dumps(value)
    if not data.isascii():
        data = data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
        data = data.replace(b"\xc2\x85", b"\\u0085")
    return b"%sdata: %s\n\n" % (b"event: %s\n" % event.encode() if event else b"", data)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of ``work``, which is cancelled when the client leaves; then raises ClientGoneError.

    The request's body has been read, so all that can be received is the disconnection.
    """
    task, gone = asyncio.create_task(work), asyncio.create_task(_disconnection(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnection(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A streaming response made of ready frames; used once.

    ``frames`` yields whole events. When it raises, ``frame_of_error`` ends the stream, since the status has been sent.
    What ``keep_alive`` returns is sent after ``keep_alive_s`` seconds without a frame. ``close`` is called at the end,
    however the stream ends, and must not block.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        frame_of_error: Callable[[GatewayError], bytes],
        keep_alive: Callable[[], bytes],
        keep_alive_s: float,
        close: Callable[[], object],
        headers: Mapping[str, str],
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        self._frames = frames
        self._frame_of_error = frame_of_error
        self._keep_alive = keep_alive
        self._keep_alive_s = keep_alive_s
        self._close = close
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._is_complete = False
        self._ready = asyncio.Event()
        self._room = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await unless_gone(receive, self._deliver(send))
        finally:
            self._close()

    async def _deliver(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        last_sent_s = loop.time()

        def tick() -> None:
            nonlocal timer
            idle_s = loop.time() - last_sent_s
            if idle_s >= self._keep_alive_s and not self._pending and not self._is_complete:
                self._push(self._keep_alive())
                idle_s = 0.0
            timer = loop.call_later(max(self._keep_alive_s - idle_s, 0.01), tick)

        # One timer that re-arms itself costs nothing per event.
        timer = loop.call_later(self._keep_alive_s, tick)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._fill())
                is_complete = False
                while not is_complete:
                    await self._ready.wait()
                    body, is_complete = self._take(), self._is_complete
                    await send({"type": "http.response.body", "body": body, "more_body": not is_complete})
                    last_sent_s = loop.time()
        finally:
            timer.cancel()

    async def _fill(self) -> None:
        try:
            async with aclosing(self._frames) as frames:
                async for frame in frames:
                    self._push(frame)
                    while self._pending_bytes >= BUFFER_BYTES:
                        self._room.clear()
                        await self._room.wait()
        except GatewayError as error:
            self._push(self._frame_of_error(error))
        except Exception:  # noqa: BLE001 - our own bugs end this stream, in its protocol's shape
            _log.exception("a stream failed")
            self._push(self._frame_of_error(InternalError()))
        self._is_complete = True
        self._ready.set()

    def _push(self, frame: bytes) -> None:
        self._pending.append(frame)
        self._pending_bytes += len(frame)
        self._ready.set()

    def _take(self) -> bytes:
        body = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        self._ready.clear()
        self._room.set()
        return body
