"""The life of a service process: settings, logging, health, metrics, signals, drain.

settings → build (open resources, register servicers) → serve → SIGTERM or SIGINT → NOT_SERVING → finish the calls
in flight within the grace period → close resources → exit 0
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar, cast

import grpc.aio
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH_SERVICE
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server

from services import rpc, settings
from services.errors import ServiceError
from services.health import Health, IsReady
from services.settings import SettingsError, setting

_SETTLE_S = 5.0
"""How long calls that were cut may take to let go of what they use before it is closed."""

_SWITCH_INTERVAL_S = 0.0005
"""How long a thread that comes back from a library call may have to wait for another one's Python. The default of 5 ms
is longer than a layer takes to compute or a chunk to copy."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What every gRPC service can be told."""

    listen: str = setting("127.0.0.1:0", help="address to serve on: host:port or unix:path")
    metrics_listen: str = setting("", help="host:port of the HTTP /metrics page; empty: none", parse=str)
    reflection: bool = setting(False, help="answer gRPC reflection")
    grace_s: float = setting(30.0, help="seconds that calls in flight get at shutdown", minimum=0)
    log_level: str = setting(
        "info", help="debug, info, warning or error", choices=("debug", "info", "warning", "error")
    )


_Settings = TypeVar("_Settings", bound=ServerSettings)
Build = Callable[[_Settings, grpc.aio.Server], AbstractAsyncContextManager[Mapping[str, IsReady]]]


def main(service: str, cls: type[_Settings], build: Build[_Settings], argv: Sequence[str] | None = None) -> int:
    """Run a service until a signal; the process's exit status.

    ``build`` opens what the service needs, registers its servicers on the server, yields by their full names whether
    each is ready, and closes what it opened. Whatever stops the start is one line on standard error.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        config = settings.load(cls, service, sys.argv[1:] if argv is None else argv, os.environ)
        configure_logging(config.log_level)
        log_settings(service, config)
        asyncio.run(serve(config, build))
    except SettingsError as error:
        return fail(service, error, 2)
    except (ServiceError, OSError) as error:
        return fail(service, error, 1)
    return 0


def fail(service: str, error: Exception, status: int) -> int:
    """Say in one line why the process ends."""
    sys.stderr.write(f"fencepost {service}: {error}\n")
    return status


def configure_logging(level: str) -> None:
    """One plain line a record on standard error."""
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )


def log_settings(service: str, config: Any) -> None:
    """Log the effective settings once."""
    shown = " ".join(f"{name}={value}" for name, value in asdict(config).items())
    _log.info("%s settings: %s", service, shown)


async def serve(config: _Settings, build: Build[_Settings]) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Raises OSError when an address cannot be had."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    interceptor = rpc.ErrorInterceptor()
    server = rpc.new_server(interceptor)
    # Bound before the slow part, so that a taken port shows at once; calls wait until start().
    port = rpc.bind(server, config.listen)
    if config.metrics_listen:
        start_metrics(config.metrics_listen)
    async with build(config, server) as services:
        health = Health(services)
        cast(Any, health_pb2_grpc).add_HealthServicer_to_server(health, server)
        if config.reflection:
            reflection.enable_server_reflection((*services, reflection.SERVICE_NAME, HEALTH_SERVICE), server)
        await server.start()
        _log.info("serving on %s", re.sub(r":0$", f":{port}", config.listen))
        await stop.wait()
        _log.info("draining")
        health.drain()
        interceptor.end_watches()
        await server.stop(config.grace_s)
        await interceptor.settle(_SETTLE_S)


def start_metrics(address: str) -> None:
    """Serve /metrics. Raises OSError naming the address."""
    host, _, port = address.rpartition(":")
    try:
        start_http_server(int(port), host or "127.0.0.1")
    except (OSError, ValueError, OverflowError) as error:
        raise OSError(f"cannot serve metrics on {address}: {error}") from None
