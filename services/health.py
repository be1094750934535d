"""A service process's answer to grpc.health.v1: it serves until it drains.

The library's servicer keeps its watches open after that, and each would hold the process for the whole grace period.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Any, cast

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Context = grpc.aio.ServicerContext[Any, Any]
_ANSWER = cast(Any, health_pb2).HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):
    """Health of the server (the empty name) and of ``names``, all alike."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(("", *names))
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """NOT_SERVING from now on; watches learn it and end."""
        self._draining.set()

    async def Check(self, request: Any, context: _Context) -> Any:  # noqa: N802 - named by the contract
        """The status; NOT_FOUND for a service that is not ours."""
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no such service: {request.service}")
        return _ANSWER(status=self._status(request.service))

    async def Watch(self, request: Any, context: _Context) -> AsyncGenerator[Any]:  # noqa: N802
        """The status, and once more when draining begins."""
        yield _ANSWER(status=self._status(request.service))
        await self._draining.wait()
        yield _ANSWER(status=self._status(request.service))

    def _status(self, name: str) -> Any:
        if name not in self._names:
            return _ANSWER.SERVICE_UNKNOWN
        return _ANSWER.NOT_SERVING if self._draining.is_set() else _ANSWER.SERVING
