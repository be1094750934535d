"""A service process's answer to grpc.health.v1: it serves until it drains, each of its services while it is ready.

The server itself (the empty name) is what a supervisor asks for: a process that waits for another one is alive.

The library's servicer keeps its watches open after draining; each would hold the process for the whole grace period.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, cast

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

IsReady = Callable[[], Awaitable[bool]]
"""Whether a service could answer now; it bounds its own waiting and does not raise."""

_WATCH_S = 1.0
"""How often a watch looks again."""
_Context = grpc.aio.ServicerContext[Any, Any]
_ANSWER = cast(Any, health_pb2).HealthCheckResponse


async def always() -> bool:
    """Of a service that needs nobody else."""
    return True


class Health(health_pb2_grpc.HealthServicer):
    """Health of the server (the empty name) and of the services."""

    def __init__(self, services: Mapping[str, IsReady]) -> None:
        self._ready_by_name = {"": always, **services}
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """NOT_SERVING from now on; watches learn it and end."""
        self._draining.set()

    async def Check(self, request: Any, context: _Context) -> Any:  # noqa: N802 - named by the contract
        """The status; NOT_FOUND for a service that is not ours."""
        if request.service not in self._ready_by_name:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no such service: {request.service}")
        return _ANSWER(status=await self._status(request.service))

    async def Watch(self, request: Any, context: _Context) -> AsyncGenerator[Any]:  # noqa: N802
        """The status, and again whenever it has changed, until draining begins."""
        told = None
        while True:
            is_last = self._draining.is_set()
            if (status := await self._status(request.service)) != told:
                yield _ANSWER(status=status)
                told = status
            if is_last:
                return
            try:
                await asyncio.wait_for(self._draining.wait(), _WATCH_S)
            except TimeoutError:
                pass

    async def _status(self, name: str) -> Any:
        if name not in self._ready_by_name:
            return _ANSWER.SERVICE_UNKNOWN
        is_ready = not self._draining.is_set() and await self._ready_by_name[name]()
        return _ANSWER.SERVING if is_ready and not self._draining.is_set() else _ANSWER.NOT_SERVING
