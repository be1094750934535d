"""One HTTP request on its way to an answer, and what every protocol needs for it."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

from starlette.requests import HTTPConnection, Request

from services.gateway.body import read_object
from services.gateway.config import GatewaySettings
from services.gateway.fields import Fields
from services.gateway.records import Records
from services.gateway.responses.running import Running
from services.gateway.served_models import ServedModels
from services.gateway.tenants.caller import Caller
from services.gateway.tenants.key_ring import KeyRing
from services.gateway.tenants.limits import Limits
from services.gateway.toolsets import Toolsets
from services.gateway.upstream import Tokenizers, Trace

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?", re.ASCII)


@dataclass(slots=True)
class Gateway:
    """What every handler works with."""

    config: GatewaySettings
    tokenizers: Tokenizers
    models: ServedModels
    records: Records
    toolsets: Toolsets
    keys: KeyRing
    limits: Limits
    running: Running = field(default_factory=Running)
    num_websockets: int = 0
    """Open now."""

    @contextmanager
    def websocket(self) -> Generator[None]:
        """Count one while it is open."""
        self.num_websockets += 1
        try:
            yield
        finally:
            self.num_websockets -= 1


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that was authenticated and read. ``body`` is an empty object where the method has none."""

    gateway: Gateway
    connection: HTTPConnection
    caller: Caller
    body: Fields

    @property
    def headers(self) -> Mapping[str, str]:
        return self.connection.headers

    @property
    def request_id(self) -> str:
        return cast(str, self.connection.state.request_id)

    @property
    def trace(self) -> Trace:
        return trace_of(self.connection)


def gateway_of(connection: HTTPConnection) -> Gateway:
    """What the application's lifespan has opened."""
    return cast(Gateway, connection.app.state.gateway)


def caller_of(connection: HTTPConnection) -> Caller:
    """Who asks, as the gate found out."""
    return cast(Caller, connection.state.caller)


async def read_exchange(request: Request) -> Exchange:
    """Read the body. Raises GatewayError, ClientGoneError."""
    gateway = gateway_of(request)
    body = await read_object(request, gateway.config.max_body_bytes)
    return Exchange(gateway, request, caller_of(request), body)


def trace_of(connection: HTTPConnection) -> Trace:
    """The request's W3C trace context, to be passed on; a malformed one is dropped, as its specification asks."""
    found = connection.headers.get("traceparent", "")
    return (("traceparent", found),) if _TRACEPARENT.fullmatch(found) else ()
