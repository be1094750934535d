"""Whether a service on this machine answers that it serves; for a supervisor that waits on its event loop."""

from __future__ import annotations

import asyncio
import http.client
from typing import Any, Final, cast

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services import rpc

_TIMEOUT_S: Final = 2.0


async def serves_grpc(address: str) -> bool:
    """Ask ``grpc.health.v1`` at ``address``; False also when nobody is there or the answer takes too long."""
    messages, stubs = cast(Any, health_pb2), cast(Any, health_pb2_grpc)
    async with rpc.open_channel(address) as channel:
        try:
            answer = await stubs.HealthStub(channel).Check(messages.HealthCheckRequest(), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return False
    return answer.status == messages.HealthCheckResponse.SERVING


async def serves_http(host: str, port: int) -> bool:
    """Ask for ``/health``; False also when nobody is there or the answer takes too long."""
    return await asyncio.to_thread(_is_healthy_page, host, port)


def _is_healthy_page(host: str, port: int) -> bool:
    # Not urllib: it would ask a configured proxy for this machine's own page.
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
