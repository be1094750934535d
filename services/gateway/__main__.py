"""``fencepost gateway``: settings → socket → uvicorn until a signal → finish what is in flight → exit."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import uvicorn
import uvloop

from services import process, settings
from services.gateway.app import build_app
from services.gateway.config import GatewaySettings
from services.gateway.listener import listen, url_of

# Over the idle timeouts that clients' connection pools commonly have, so that they close first.
KEEP_ALIVE_S = 75
_log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the gateway until SIGTERM or SIGINT; the process's exit status."""
    try:
        config = settings.load(GatewaySettings, "gateway", sys.argv[1:] if argv is None else argv, os.environ)
        process.configure_logging(config.log_level)
        process.log_settings("gateway", config)
        with listen(config.host, config.port) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(config, listener))
    except settings.SettingsError as error:
        return process.fail("gateway", error, 2)
    except OSError as error:
        return process.fail("gateway", error, 1)
    return 0


async def serve(config: GatewaySettings, listener: socket.socket) -> None:
    """Serve on the socket until a signal, then let answers in flight finish within the grace. Closes the socket."""
    server = _Server(uvicorn_config(config))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    _log.info("serving on %s", url_of(listener))
    await server.serve(sockets=[listener])


def uvicorn_config(config: GatewaySettings) -> uvicorn.Config:
    """How uvicorn runs the application."""
    return uvicorn.Config(
        build_app(config),
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        # None would wait for ever.
        timeout_graceful_shutdown=max(1, round(config.grace_s)),
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
