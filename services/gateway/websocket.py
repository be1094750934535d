"""WebSockets on uvicorn, whose own protocol cuts every connection as soon as the server is to stop.

Here a connection is told, ends what it is doing and closes itself. The server waits for it as for any answer in flight.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from starlette.websockets import WebSocket
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

SERVICE_RESTART = 1012
"""The close code (IANA registry of RFC 6455): come again, to whoever answers then."""

_STOPPING = "server_is_stopping"


class DrainingProtocol(WebSocketsSansIOProtocol):
    """One connection. ``scope["state"]`` holds the event that says that the server is to stop."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._stopping = asyncio.Event()
        super().__init__(config, server_state, {**app_state, _STOPPING: self._stopping}, _loop)

    def shutdown(self) -> None:
        """Called once for every connection when the server begins to stop."""
        self._stopping.set()
        if not self.handshake_complete or self.close_sent:
            super().shutdown()


def stopping_of(websocket: WebSocket) -> asyncio.Event:
    """Set when the server is to stop; the connection then closes itself when it can."""
    return cast(asyncio.Event, websocket.scope["state"][_STOPPING])
