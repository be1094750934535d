"""The life of a service process, on a tiny service that echoes."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services import rpc

ROOT = Path(__file__).parents[2]
SERVING: Any = cast(Any, health_pb2).HealthCheckResponse.SERVING
NOT_SERVING: Any = cast(Any, health_pb2).HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN: Any = cast(Any, health_pb2).HealthCheckResponse.SERVICE_UNKNOWN


@dataclass(slots=True)
class Tiny:
    """The running process, and a channel to it."""

    process: asyncio.subprocess.Process
    address: str
    channel: grpc.aio.Channel
    log: str

    def echo(self) -> Any:
        return self.channel.stream_stream("/tiny.Tiny/Echo")()

    async def health(self, service: str = "") -> Any:
        stub = health_pb2_grpc.HealthStub(self.channel)
        return (await cast(Any, stub).Check(cast(Any, health_pb2).HealthCheckRequest(service=service))).status

    def watch(self, service: str = "tiny.Tiny") -> Any:
        stub = health_pb2_grpc.HealthStub(self.channel)
        return cast(Any, stub).Watch(cast(Any, health_pb2).HealthCheckRequest(service=service))

    async def end(self) -> tuple[int, str]:
        """Its exit status and whatever it logged."""
        _, errors = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, self.log + errors.decode()


async def start(*argv: str, **environ: str) -> asyncio.subprocess.Process:
    path = os.pathsep.join((str(ROOT), str(ROOT / "proto")))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.unit.tiny_service", *argv),
        env={**clean, "PYTHONPATH": path, **environ},
        stderr=asyncio.subprocess.PIPE,
    )


async def exhaust(call: Any) -> None:
    """Read to the end."""
    while await call.read() is not grpc.aio.EOF:
        pass


@asynccontextmanager
async def serving(*argv: str, **environ: str) -> AsyncGenerator[Tiny]:
    process = await start(*argv, **environ)
    assert process.stderr is not None
    log = ""
    try:
        async with asyncio.timeout(120):
            while "serving on " not in log:
                line = await process.stderr.readline()
                assert line, f"it ended: {log}"
                log += line.decode()
            address = log.split("serving on ")[1].strip()
            async with rpc.open_channel(address) as channel:
                yield Tiny(process, address, channel, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def refusal(*argv: str, **environ: str) -> tuple[int, list[str]]:
    """Exit status and what it wrote, without its log of effective settings."""
    process = await start(*argv, **environ)
    async with asyncio.timeout(30):
        _, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, [line for line in errors.decode().splitlines() if " INFO " not in line]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_lets_a_stream_finish(number: signal.Signals, tmp_path: Path) -> None:
    async with serving("--closed", str(tmp_path / "closed")) as tiny:
        watch, echo = tiny.watch(), tiny.echo()
        assert (await watch.read()).status == SERVING
        await echo.write(b"before")
        assert await echo.read() == b"before"
        tiny.process.send_signal(number)
        assert (await watch.read()).status == NOT_SERVING
        await echo.write(b"after")
        assert await echo.read() == b"after"
        assert not (tmp_path / "closed").exists()
        await echo.done_writing()
        assert await echo.read() is grpc.aio.EOF
        assert await echo.code() is grpc.StatusCode.OK
        # The watcher is still there: it must not hold the process for the rest of the grace.
        status, log = await tiny.end()
    assert (status, (tmp_path / "closed").exists()) == (0, True)
    assert "draining" in log
    assert "Traceback" not in log


async def test_a_watch_does_not_hold_the_process() -> None:
    async with serving("--grace-s", "600") as tiny:
        watch = tiny.channel.unary_stream("/fencepost.tiny.Tiny/WatchEcho")(b"seen")
        assert await watch.read() == b"seen"
        tiny.process.send_signal(signal.SIGTERM)
        status, log = await tiny.end()
    assert status == 0
    assert "Traceback" not in log


async def test_a_watch_that_is_answering_does_not_hold_the_process() -> None:
    async with serving("--grace-s", "600") as tiny:
        watches = [tiny.channel.unary_stream("/fencepost.tiny.Tiny/WatchEcho")(b"busy") for _ in range(8)]
        for watch in watches:
            assert await watch.read() == b"busy"
        tiny.process.send_signal(signal.SIGTERM)
        for watch in watches:
            with pytest.raises(grpc.aio.AioRpcError, match="shutting down"):
                await exhaust(watch)
        status, log = await tiny.end()
    assert status == 0
    assert "Traceback" not in log


async def test_stream_that_outlives_the_grace_is_cut_before_resources_close() -> None:
    async with serving("--grace-s", "0.2") as tiny:
        echo = tiny.echo()
        await echo.write(b"hang")
        assert await echo.read() == b"hang"
        tiny.process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.aio.AioRpcError):
            await echo.read()
        status, log = await tiny.end()
    assert status == 0
    assert "cut while open" in log
    assert "Traceback" not in log


async def test_no_new_calls_while_draining() -> None:
    async with serving() as tiny:
        echo = tiny.echo()
        await echo.write(b"before")
        assert await echo.read() == b"before"
        watch = tiny.watch()
        await watch.read()
        tiny.process.send_signal(signal.SIGTERM)
        assert (await watch.read()).status == NOT_SERVING
        async with rpc.open_channel(tiny.address) as late:
            # Listening ends a moment after the watchers were told.
            call = late.stream_stream("/tiny.Tiny/Echo")(iter([b"late"]))
            while await call.code() is grpc.StatusCode.OK:
                call = late.stream_stream("/tiny.Tiny/Echo")(iter([b"late"]))
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
        await echo.done_writing()
        assert (await tiny.end())[0] == 0


async def test_health_knows_the_server_and_its_services_only() -> None:
    async with serving() as tiny:
        assert [await tiny.health(), await tiny.health("tiny.Tiny")] == [SERVING, SERVING]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await tiny.health("tiny.Other")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert (await tiny.watch("tiny.Other").read()).status == SERVICE_UNKNOWN


async def test_a_service_that_is_not_ready_does_not_serve_though_its_server_does(tmp_path: Path) -> None:
    unready = tmp_path / "unready"
    unready.touch()
    async with serving("--unready", str(unready)) as tiny:
        watch = tiny.watch()
        assert (await watch.read()).status == NOT_SERVING
        assert [await tiny.health(), await tiny.health("tiny.Tiny")] == [SERVING, NOT_SERVING]
        unready.unlink()
        assert await tiny.health("tiny.Tiny") == SERVING
        assert (await watch.read()).status == SERVING
        unready.touch()
        assert (await watch.read()).status == NOT_SERVING


async def reflected(tiny: Tiny) -> list[str]:
    request = cast(Any, reflection_pb2).ServerReflectionRequest(list_services="")
    stub = cast(Any, reflection_pb2_grpc).ServerReflectionStub(tiny.channel)
    call = stub.ServerReflectionInfo(iter([request]))
    return sorted(service.name for service in (await call.read()).list_services_response.service)


async def reflection_code(tiny: Tiny) -> grpc.StatusCode:
    """The status of a call to it that ends without an answer; a read of one that ended early may tell another."""
    call = cast(Any, reflection_pb2_grpc).ServerReflectionStub(tiny.channel).ServerReflectionInfo()
    return await call.code()


async def test_reflection_only_when_asked_for() -> None:
    async with serving("--reflection", "true") as tiny:
        names = await reflected(tiny)
    assert names == ["grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", "tiny.Tiny"]
    async with serving() as tiny:
        assert await reflection_code(tiny) is grpc.StatusCode.UNIMPLEMENTED


async def test_metrics_page_counts_calls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    async with serving("--metrics-listen", f"127.0.0.1:{port}") as tiny:
        await tiny.health()
        async with httpx.AsyncClient() as client:
            page = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
    assert 'fencepost_rpc_seconds_count{code="OK",method="/grpc.health.v1.Health/Check"} 1.0' in page


async def test_settings_come_from_variables_and_are_logged(tmp_path: Path) -> None:
    socket_path = tmp_path / "socket"
    async with serving(FENCEPOST_TINY_LISTEN=f"unix:{socket_path}", FENCEPOST_TINY_NUM_SHELVES="7") as tiny:
        assert tiny.address == f"unix:{socket_path}"
        assert await tiny.health() == SERVING
    assert f"tiny settings: listen=unix:{socket_path} " in tiny.log
    assert "num_shelves=7" in tiny.log


async def test_taken_port_is_one_line_and_status_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        serve, metrics = await asyncio.gather(refusal("--listen", address), refusal("--metrics-listen", address))
    assert serve == (1, [f"fencepost tiny: cannot listen on {address}: the address is in use or not ours"])
    assert metrics[0] == 1
    assert len(metrics[1]) == 1
    assert metrics[1][0].startswith(f"fencepost tiny: cannot serve metrics on {address}: ")


async def test_failing_build_is_one_line_and_status_1() -> None:
    assert await refusal("--num-shelves", "9") == (1, ["fencepost tiny: there are 8 shelves"])


async def test_setting_that_cannot_be_used_is_one_line_and_status_2() -> None:
    flag, variable, malformed = await asyncio.gather(
        refusal("--shelves", "1"), refusal(FENCEPOST_TINY_SHELVES="1"), refusal(FENCEPOST_TINY_NUM_SHELVES="many")
    )
    assert flag == (2, ["fencepost tiny: unrecognized arguments: --shelves 1"])
    assert variable[0] == 2
    assert len(variable[1]) == 1
    assert variable[1][0].startswith("fencepost tiny: FENCEPOST_TINY_SHELVES: no such setting")
    assert malformed == (2, ["fencepost tiny: FENCEPOST_TINY_NUM_SHELVES: expected a whole number, got 'many'"])
