"""The clients' /health: whether a request would be answered. Gateway and tokenizer are processes, engines scripted."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fencepost.engine.v1 import engine_pb2_grpc
from scripted_engine import ScriptedEngine, admitted, finished
from test_gateway_operator import Running, running
from test_gateway_process import ROOT

from services import probe, rpc
from services.identity import tokenizer_fingerprint
from tests.unit.tokenizer.tiny_model import write_tiny_model

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def engine(model_dir: Path) -> ScriptedEngine:
    return ScriptedEngine(tokenizer_fingerprint(model_dir), script=[admitted(), finished()])


@asynccontextmanager
async def behind(folder: Path, model_dir: Path, *engines: str) -> AsyncGenerator[Running]:
    """A gateway before a tokenizer that serves before these engines."""
    address = f"unix:{folder / 'tokenizer'}"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.tokenizer", "--model", str(model_dir)),
        *("--engines", ",".join(engines), "--listen", address, "--grace-s", "1"),
        env={**environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "proto")))},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        while not await probe.serves_grpc(address):
            assert process.returncode is None
            await asyncio.sleep(0.02)
        async with running("--tokenizers", address, "--operator-listen", "127.0.0.1:0") as gateway:
            yield gateway
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


async def until_health_is(status: int, client: httpx.AsyncClient, gateway: Running) -> httpx.Response:
    while (response := await client.get(f"{gateway.url}/health")).status_code != status:
        assert response.status_code in (200, 503)
        await asyncio.sleep(0.02)
    return response


async def test_health_follows_the_engine_and_the_operators_page_does_not(
    tmp_path: Path, model_dir: Path, engine: ScriptedEngine
) -> None:
    # An engine that loads has its address already, and does not answer there.
    loading = rpc.new_server()
    engine_pb2_grpc.add_EngineServiceServicer_to_server(engine, loading)
    address = f"127.0.0.1:{rpc.bind(loading, '127.0.0.1:0')}"
    async with behind(tmp_path, model_dir, address) as gateway, httpx.AsyncClient() as client:
        response = await client.get(f"{gateway.url}/health")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json() == {
            "status": "unavailable",
            "message": "no model is ready to answer; try again shortly",
        }
        assert (await client.get(f"{gateway.operator_url}/health")).status_code == 200
        await loading.start()
        assert (await until_health_is(200, client, gateway)).json() == {"status": "ok"}
        assert (await client.post(f"{gateway.url}/v1/chat/completions", json=BODY)).status_code == 200
        await loading.stop(None)
        await until_health_is(503, client, gateway)
        assert (await client.post(f"{gateway.url}/v1/chat/completions", json=BODY)).status_code == 503
        assert (await client.get(f"{gateway.operator_url}/health")).status_code == 200
        async with engine.serving(address):
            await until_health_is(200, client, gateway)
            assert (await client.post(f"{gateway.url}/v1/chat/completions", json=BODY)).status_code == 200


async def test_one_engine_of_several_is_enough(tmp_path: Path, model_dir: Path, engine: ScriptedEngine) -> None:
    loading = rpc.new_server()
    address = f"127.0.0.1:{rpc.bind(loading, '127.0.0.1:0')}"
    async with (
        engine.serving(),
        behind(tmp_path, model_dir, "127.0.0.1:1", address, engine.address) as gateway,
        httpx.AsyncClient() as client,
    ):
        assert (await client.get(f"{gateway.url}/health")).status_code == 200
    await loading.stop(None)


async def test_an_engine_with_another_tokenizer_is_none(tmp_path: Path, model_dir: Path) -> None:
    async with (
        ScriptedEngine("another").serving() as other,
        behind(tmp_path, model_dir, other.address) as gateway,
        httpx.AsyncClient() as client,
    ):
        assert (await client.get(f"{gateway.url}/health")).status_code == 503
