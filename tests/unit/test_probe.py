import http.server
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services import probe, rpc


async def test_grpc_service_is_healthy_once_it_says_so(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 's.sock'}"
    assert not await probe.serves_grpc(address)
    server = rpc.new_server()
    checks = cast(Any, health).aio.HealthServicer()
    cast(Any, health_pb2_grpc).add_HealthServicer_to_server(checks, server)
    rpc.bind(server, address)
    await server.start()
    messages = cast(Any, health_pb2).HealthCheckResponse
    await checks.set("", messages.NOT_SERVING)
    assert not await probe.serves_grpc(address)
    await checks.set("", messages.SERVING)
    assert await probe.serves_grpc(address)
    await server.stop(None)


@pytest.mark.parametrize(("status", "is_healthy"), [(200, True), (503, False)])
async def test_gateway_is_healthy_when_its_page_says_so(
    status: int, is_healthy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/health"
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with http.server.HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = server.server_port
        assert await probe.serves_http("127.0.0.1", port) is is_healthy
        server.shutdown()
        thread.join()
    assert not await probe.serves_http("127.0.0.1", port)
