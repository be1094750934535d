"""What every request passes before it reaches a handler: the key, then the limits."""

from __future__ import annotations

from contextlib import ExitStack

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from services.gateway.error_response import response_of
from services.gateway.errors import GatewayError
from services.gateway.tenants.authentication import authenticate
from services.gateway.tenants.key_ring import KeyRing
from services.gateway.tenants.limits import Limits


class Gate:
    """ASGI middleware. Inside it, ``scope["state"]["caller"]`` is who asks.

    It stands before routing, so whoever has no key does not even learn which paths there are; only whether somebody is
    there is everybody's to ask. A WebSocket lasts long and is mostly idle: its requests take their slots one by one.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing, limits: Limits) -> None:
        self._app = app
        self._keys = keys
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or _is_open(scope):
            await self._app(scope, receive, send)
            return
        with ExitStack() as held:
            try:
                caller = authenticate(Headers(scope=scope), self._keys)
                if scope["type"] == "http":
                    held.enter_context(self._limits.slot(caller.tenant))
            except GatewayError as error:
                await response_of(error, HTTPConnection(scope))(scope, receive, send)
                return
            scope.setdefault("state", {})["caller"] = caller
            await self._app(scope, receive, send)


def _is_open(scope: Scope) -> bool:
    if scope["type"] != "http":
        return False
    return scope["path"] == "/health" or (scope["path"] == "/" and scope["method"] == "HEAD")
