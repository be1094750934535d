"""Services as processes of their own, to be killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
from fencepost.engine.v1 import engine_pb2_grpc
from fencepost.kvstore.v1 import snapshot_pb2

from services import rpc
from tests.contract.engine_client import EngineClient
from tests.contract.kvstore_client import Client

_START_S = 60.0


class StartFailed(Exception):
    """The process has ended before it answered; the text is the end of its log."""


@asynccontextmanager
async def _process(service: str, address: str, *argv: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Killed at the end; what it logs is appended to a file beside its socket."""
    with _log_of(address).open("ab") as log:
        command = (sys.executable, "-m", f"services.{service}", "--listen", address, *argv)
        process = await asyncio.create_subprocess_exec(*command, stderr=log)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def kvstore_process(
    address: str, data_dir: Path, *argv: str
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, Client]]:
    """A store that answers; it is killed at the end, if it still lives."""
    argv = ("--data-dir", str(data_dir), "--disk-reserve-bytes", "0", *argv)
    async with _process("kvstore", address, *argv) as process, rpc.open_channel(address) as channel:
        client = Client(channel)
        await _answer(process, address, lambda: client.snapshots.Stats(snapshot_pb2.StatsRequest()))
        yield process, client


@asynccontextmanager
async def engine_process(
    address: str, model: Path, kvstore: str, *argv: str
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, EngineClient]]:
    """An engine that answers; it is killed at the end, if it still lives."""
    argv = ("--model", str(model), "--kvstore", kvstore, "--threads", "1", *argv)
    async with _process("engine", address, *argv) as process, rpc.open_channel(address) as channel:
        engine = EngineClient(engine_pb2_grpc.EngineServiceStub(channel), address)
        await _answer(process, address, engine.load)
        yield process, engine


async def _answer(process: asyncio.subprocess.Process, address: str, ask: Callable[[], Awaitable[object]]) -> None:
    """Ask until there is an answer: a channel may still lead to a process that was killed. Raises StartFailed."""
    async with asyncio.timeout(_START_S):
        while process.returncode is None:
            try:
                await ask()
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.05)
            else:
                return
    raise StartFailed(_log_of(address).read_text()[-2_000:])


def _log_of(address: str) -> Path:
    return Path(f"{address.removeprefix('unix:')}.log")
