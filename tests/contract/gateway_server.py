"""The gateway on a real socket, inside the test's process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import uvicorn

from services.gateway.__main__ import uvicorn_config
from services.gateway.config import GatewaySettings
from services.gateway.listener import listen, url_of


class QuietServer(uvicorn.Server):
    """Leaves the test runner's signal handlers alone."""

    def capture_signals(self) -> Any:
        return nullcontext()


@asynccontextmanager
async def gateway_at(*tokenizers: str, send_buffer_bytes: int | None = None, **settings: Any) -> AsyncGenerator[str]:
    """Serve and yield the URL, e.g. ``http://127.0.0.1:41234``."""
    config = GatewaySettings(tokenizers=tokenizers, grace_s=1, **settings)
    listener = listen("127.0.0.1", 0)
    # As the gateway's own event loop does: asyncio's leaves it, and every second write would wait for the client's ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if send_buffer_bytes is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    url = url_of(listener)
    server = QuietServer(uvicorn_config(config))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        assert not running.done()
        await asyncio.sleep(0.005)
    try:
        yield url
    finally:
        server.should_exit = True
        await running
