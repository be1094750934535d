from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services import healthcheck, rpc


async def test_a_serving_grpc_service_is_status_0() -> None:
    async with _grpc_service("SERVING") as address:
        assert await asyncio.to_thread(healthcheck.main, [address]) == 0


async def test_a_draining_grpc_service_is_status_1() -> None:
    async with _grpc_service("NOT_SERVING") as address:
        assert await asyncio.to_thread(healthcheck.main, [address]) == 1


def test_the_gateway_is_asked_for_its_health_page() -> None:
    with _http_service() as address:
        assert healthcheck.main([f"http://{address}"]) == 0


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_an_address_where_nobody_listens_is_status_1(scheme: str) -> None:
    assert healthcheck.main([f"{scheme}127.0.0.1:1"]) == 1


@pytest.mark.parametrize("argv", [[], ["a:1", "b:2"], ["nowhere"], ["127.0.0.1:port"], ["ftp://127.0.0.1:1"]])
def test_what_is_no_address_is_status_2_and_a_line_of_usage(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert healthcheck.main(argv) == 2
    assert capsys.readouterr().err.startswith("usage: ")


@asynccontextmanager
async def _grpc_service(status: str) -> AsyncGenerator[str]:
    server = rpc.new_server()
    checks = cast(Any, health).aio.HealthServicer()
    cast(Any, health_pb2_grpc).add_HealthServicer_to_server(checks, server)
    await checks.set("", cast(Any, health_pb2).HealthCheckResponse.ServingStatus.Value(status))
    port = rpc.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


class _HealthPage(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def _http_service() -> Generator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _HealthPage) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
