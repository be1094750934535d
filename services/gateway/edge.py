"""The outermost layer of every request: its id; of HTTP its measurements too, and the last resort for our own bugs."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from typing import cast

from prometheus_client import Counter, Gauge, Histogram
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway.error_response import response_of
from services.gateway.errors import InternalError
from services.gateway.stream import ClientGoneError

_REQUESTS = Counter("fencepost_http_requests", "Requests answered.", ["method", "path", "status"])
_SECONDS = Histogram(
    "fencepost_http_seconds",
    "Wall time of a request, streams to their end.",
    ["path"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
_IN_FLIGHT = Gauge("fencepost_http_requests_in_flight", "Requests being answered.")

_CLIENT_GONE = 499
"""In metrics and logs only: the client left before its answer began."""
_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_log = logging.getLogger(__name__)


class Edge:
    """ASGI middleware. Inside it, ``scope["state"]["request_id"]`` is set."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope).get("x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        start_s = time.perf_counter()
        status: int | None = None

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                ids = [(name, request_id.encode()) for name in (b"x-request-id", b"request-id")]
                message["headers"] = [*message["headers"], *ids]
            await send(message)

        _IN_FLIGHT.inc()
        try:
            await self._app(scope, receive, tagged)
        except ClientGoneError:
            _log.info("%s: the client left", request_id)
        except asyncio.CancelledError:
            # The server's grace is over; as this task ends here, nothing above needs to know.
            _log.warning("%s: cut off by the shutdown", request_id)
        except Exception:
            _log.exception("%s failed", request_id)
            if status is not None:
                raise
            await response_of(InternalError(), HTTPConnection(scope))(scope, receive, tagged)
        finally:
            _IN_FLIGHT.dec()
            _measure(scope, status or _CLIENT_GONE, time.perf_counter() - start_s, request_id)


def _request_id(offered: str | None) -> str:
    """The client's own id where it is harmless, else a new one."""
    return offered if offered and _REQUEST_ID.fullmatch(offered) else f"req_{uuid.uuid4().hex}"


def _measure(scope: Scope, status: int, seconds: float, request_id: str) -> None:
    route = cast(BaseRoute | None, scope.get("route"))
    # Label values must be few: the route's pattern, never what the client sent.
    path = str(getattr(route, "path", "unknown"))
    method = scope["method"] if scope["method"] in _METHODS else "other"
    _REQUESTS.labels(method, path, status).inc()
    _SECONDS.labels(path).observe(seconds)
    level = logging.INFO if method == "POST" else logging.DEBUG
    _log.log(level, "%s %s %s %d %.0f ms", request_id, method, path, status, seconds * 1e3)
