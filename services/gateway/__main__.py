"""``fencepost gateway``: settings → socket → uvicorn until a signal → finish what is in flight → exit."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import cast

import uvicorn
import uvloop
from fastapi import FastAPI

from services import process, settings
from services.gateway import tls
from services.gateway.app import build_app
from services.gateway.config import GatewaySettings
from services.gateway.exchange import Gateway
from services.gateway.listener import listen, url_of
from services.gateway.operator import build_operator
from services.gateway.tenants.key_file import KeyFileError
from services.gateway.upstream import Tokenizers
from services.gateway.websocket import DrainingProtocol

# Over the idle timeouts that clients' connection pools commonly have, so that they close first.
KEEP_ALIVE_S = 75
WS_PING_S = 20.0
_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the gateway until SIGTERM or SIGINT; the process's exit status."""
    try:
        config = settings.load(GatewaySettings, "gateway", sys.argv[1:] if argv is None else argv, os.environ)
        process.configure_logging(config.log_level)
        # Finer than that, the WebSocket library writes the headers of requests, keys included.
        logging.getLogger("uvicorn").setLevel(max(logging.INFO, logging.getLogger().level))
        process.log_settings("gateway", config)
        if config.tls_cert_file is not None and config.tls_key_file is not None:
            tls.check(config.tls_cert_file, config.tls_key_file)
        with (
            listen(config.host, config.port) as listener,
            listen(*config.operator_listen) if config.operator_listen else nullcontext() as operator_listener,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(serve(config, listener, operator_listener))
    except (settings.SettingsError, KeyFileError) as error:
        return process.fail("gateway", error, 2)
    except OSError as error:
        return process.fail("gateway", error, 1)
    return 0


async def serve(
    config: GatewaySettings, listener: socket.socket, operator_listener: socket.socket | None = None
) -> None:
    """Serve on the sockets until a signal, then let answers in flight finish within the grace. Closes the sockets.

    Raises KeyFileError before anything is served.
    """
    public = uvicorn_config(config)
    server = _Server(public)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    async with _beside(cast(FastAPI, public.app), operator_listener):
        _log.info("serving on %s", url_of(listener, config.scheme))
        await server.serve(sockets=[listener])


@asynccontextmanager
async def _beside(app: FastAPI, listener: socket.socket | None) -> AsyncGenerator[None]:
    """Serve the operator's pages while the gateway serves, its drain included."""
    if listener is None:
        yield
        return
    server = _Server(operator_config(app))
    _log.info("operator's pages on %s", url_of(listener))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.stop()
        await running


def uvicorn_config(config: GatewaySettings) -> uvicorn.Config:
    """How uvicorn runs the application."""
    return uvicorn.Config(
        build_app(config),
        http="httptools",
        ws=DrainingProtocol,
        ws_max_size=config.max_body_bytes,
        ws_ping_interval=WS_PING_S,
        ws_ping_timeout=WS_PING_S,
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        # None would wait for ever.
        timeout_graceful_shutdown=max(1, round(config.grace_s)),
        ssl_certfile=config.tls_cert_file,
        ssl_keyfile=config.tls_key_file,
    )


def operator_config(app: FastAPI) -> uvicorn.Config:
    """How uvicorn runs the operator's pages beside the gateway's own application."""

    def tokenizers() -> Tokenizers | None:
        gateway = cast(Gateway | None, getattr(app.state, "gateway", None))
        return None if gateway is None else gateway.tokenizers

    return uvicorn.Config(
        build_operator(tokenizers),
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )


class _Server(uvicorn.Server):
    """uvicorn, with its signal handling replaced: its own ends the process by the signal, not with status 0."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    def stop(self) -> None:
        """Drain; asked again, don't wait."""
        self.force_exit = self.should_exit
        self.should_exit = True


if __name__ == "__main__":
    sys.exit(main())
