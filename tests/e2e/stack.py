"""A real ``fencepost up`` as a child process: four services, the default model, one data directory."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
from fencepost.engine.v1 import engine_pb2, engine_pb2_grpc

from services import rpc

ROOT = Path(__file__).parents[2]
MODEL = "smollm2-135m-instruct"
_READY_S = 180.0


class Stack:
    """A running stack; ``log`` is everything it has printed."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log_path: Path) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        self._log_path = log_path

    @property
    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def pid_of(self, service: str) -> int:
        """Process id of a child, read from the kernel: the command line names its service."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in children:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if f"services.{service}" in command:
                return int(pid)
        raise AssertionError(f"{service} is not running")

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        while "Ready after" not in self.log:
            assert self.process.poll() is None, f"the stack ended early:\n{self.log}"
            assert time.monotonic() < deadline, f"the stack is not ready:\n{self.log}"
            time.sleep(0.1)

    def engine_load(self) -> engine_pb2.WatchLoadResponse:
        """The engine's load once nothing runs or waits to be stored."""
        return self._load_when(lambda load: not (load.running or load.queued or load.pending_writes or load.leases))

    def wait_until_decoding(self) -> None:
        """Until the engine has computed a request's prompt and samples its answer."""
        self._load_when(lambda load: load.running > 0 and not load.prefill_backlog_tokens)

    def _load_when(self, holds: Callable[[engine_pb2.WatchLoadResponse], bool]) -> engine_pb2.WatchLoadResponse:
        found = re.search(r"engine-0 +\| .*serving on (unix:\S+)", self.log)
        assert found is not None, self.log
        return asyncio.run(_load_when(found[1], holds))

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60)


@contextmanager
def run_stack(data_dir: Path, *flags: str) -> Generator[Stack]:
    """Start ``fencepost up``, wait until it is ready, stop it as Ctrl-C does."""
    with socket.socket() as probe, socket.socket() as operator_probe:
        for free in (probe, operator_probe):
            free.bind(("127.0.0.1", 0))
        port, operator_port = probe.getsockname()[1], operator_probe.getsockname()[1]
    data_dir.mkdir(parents=True, exist_ok=True)
    log_path = data_dir / f"up-{time.monotonic_ns()}.log"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
    environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "proto")])
    ports = ["--port", str(port), "--operator-port", str(operator_port)]
    command = [sys.executable, "-m", "services", "up", *ports, "--data-dir", str(data_dir), *flags]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environ, cwd=ROOT)
    stack = Stack(process, port, log_path)
    try:
        stack.wait_until_ready()
        yield stack
    finally:
        if process.poll() is None:
            assert stack.stop() == 0, stack.log


def wait_for_health(stack: Stack, timeout_s: float = 60.0) -> None:
    """Until the gateway answers that everything behind it serves."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{stack.url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise AssertionError(stack.log)


async def _load_when(
    address: str, holds: Callable[[engine_pb2.WatchLoadResponse], bool]
) -> engine_pb2.WatchLoadResponse:
    async with rpc.open_channel(address) as channel:
        call = engine_pb2_grpc.EngineServiceStub(channel).WatchLoad(
            engine_pb2.WatchLoadRequest(interval_ms=50), timeout=60
        )
        async for load in call:
            if holds(load):
                call.cancel()
                return load
    raise AssertionError("the watch ended")
