"""``python -m services.gateway`` as a process: keys that change, TLS, the operator's address, and what is logged."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import self_signed
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from scripted_tokenizer import MODEL, ScriptedTokenizer, refusal
from test_gateway_process import BODY, gateway, refusal_to_start
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from services.__main__ import main


class Running:
    """A gateway that serves; ``log`` is what it has printed so far, read all the time so that it never has to wait."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log = ""
        self.url = ""
        self.operator_url = ""
        self._serves = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def start(self) -> None:
        await self._serves.wait()
        assert self.url, self.log

    async def stop(self) -> str:
        """All that it has logged."""
        self.process.send_signal(signal.SIGTERM)
        await self._reading
        assert await self.process.wait() == 0, self.log
        return self.log

    def close(self) -> None:
        """Stop reading."""
        self._reading.cancel()

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for read in self.process.stderr:
            line = read.decode()
            self.log += line
            if "operator's pages on " in line:
                self.operator_url = line.split("operator's pages on ")[1].strip()
            if "serving on " in line:
                self.url = line.split("serving on ")[1].strip()
                self._serves.set()
        self._serves.set()


@asynccontextmanager
async def running(*argv: str) -> AsyncGenerator[Running]:
    async with gateway("--port", "0", "--grace-s", "1", *argv) as process:
        found = Running(process)
        try:
            await found.start()
            yield found
            if process.returncode is None:
                await found.stop()
        finally:
            found.close()


def key(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What the command prints."""
    assert main(["key", *argv]) == 0
    return capsys.readouterr().out.strip()


async def until(client: httpx.AsyncClient, url: str, headers: dict[str, str], status: int) -> None:
    while (await client.get(f"{url}/v1/models", headers=headers)).status_code != status:
        pass


async def test_keys_change_without_a_restart_and_are_never_logged(
    tokenizer: ScriptedTokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "keys.json")
    flags = ("--keys-file", path, "--tokenizers", tokenizer.address, "--log-level", "debug")
    async with running(*flags) as server, httpx.AsyncClient() as client:
        url = server.url
        assert (await client.get(f"{url}/v1/models")).status_code == 200
        texts = [await asyncio.to_thread(key, capsys, "create", "--tenant", "a", "--file", path)]
        await until(client, url, {}, 401)
        texts.append(await asyncio.to_thread(key, capsys, "create", "--tenant", "b", "--file", path))
        await until(client, url, {"x-api-key": texts[1]}, 200)
        await asyncio.to_thread(key, capsys, "revoke", texts[0].split("_")[1], "--file", path)
        await until(client, url, {"authorization": f"Bearer {texts[0]}"}, 401)
        for headers in ({"x-api-key": texts[1]}, {"authorization": f"Bearer {texts[1]}"}):
            assert (await client.post(f"{url}/v1/chat/completions", json=BODY, headers=headers)).status_code == 200
            try:
                async with connect(f"{url.replace('http', 'ws', 1)}/v1/responses", additional_headers=headers):
                    pass
            except InvalidStatus:
                pass
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"{url.replace('http', 'ws', 1)}/v1/responses", additional_headers={"x-api-key": texts[0]})
        assert refused.value.response.status_code == 401
        await asyncio.to_thread(Path(path).write_text, "{")
        assert (await client.get(f"{url}/v1/models", headers={"x-api-key": texts[1]})).status_code == 200
        log = await server.stop()
    for text in texts:
        assert text not in log
        assert text.split("_")[2] not in log
    assert "Traceback" not in log


async def test_requests_over_tls(tokenizer: ScriptedTokenizer, tmp_path: Path) -> None:
    certificate = self_signed(tmp_path, "server")
    trusting = ssl.create_default_context(cafile=certificate.cert_file)
    async with (
        running("--tokenizers", tokenizer.address, *certificate.flags) as server,
        httpx.AsyncClient(verify=trusting) as client,
    ):
        assert server.url.startswith("https://127.0.0.1:")
        response = await client.post(f"{server.url}/v1/chat/completions", json=BODY)
        assert response.text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(f"{server.url.replace('https', 'http')}/health")


async def test_a_certificate_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    one, other = self_signed(tmp_path, "one"), self_signed(tmp_path, "other")
    flags = ("--tls-cert-file", str(one.cert_file), "--tls-key-file", str(other.key_file))
    said = f"fencepost gateway: --tls-key-file: {other.key_file} does not belong to {one.cert_file}"
    assert await refusal_to_start("--port", "0", *flags) == (2, said)


async def test_keys_that_cannot_be_read_stop_the_start(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text("{}")
    said = f"fencepost gateway: {path} is not a file of API keys, or is damaged"
    assert await refusal_to_start("--port", "0", "--keys-file", str(path)) == (2, said)


@pytest.fixture
async def operated(tokenizer: ScriptedTokenizer) -> AsyncGenerator[Running]:
    async with running("--tokenizers", tokenizer.address, "--operator-listen", "127.0.0.1:0") as server:
        yield server


async def test_the_operators_pages(operated: Running, tokenizer: ScriptedTokenizer) -> None:
    async with httpx.AsyncClient() as client:
        assert (await client.post(f"{operated.url}/v1/chat/completions", json=BODY)).status_code == 200
        counted = 'fencepost_http_requests_total{method="POST",path="/v1/chat/completions",status="200"} 1.0'
        # A client has its answer a moment before the answer is counted.
        while counted not in (page := await client.get(f"{operated.operator_url}/metrics")).text:
            assert page.status_code == 200
        assert page.headers["content-type"].startswith("text/plain")
        health = await client.get(f"{operated.operator_url}/health")
        assert health.json() == {"status": "ok", "tokenizers": {tokenizer.address: "SERVING"}}
        assert (await client.get(f"{operated.url}/metrics")).status_code == 404
        assert (await client.post(f"{operated.url}/explain", json={})).status_code == 404
        for path in ("/v1/models", "/docs", "/openapi.json", "/"):
            assert (await client.get(f"{operated.operator_url}{path}")).status_code == 404


async def test_why_a_prompt_missed(operated: Running, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.explanation = pb.ExplainPrefixResponse(
        at_token=7,
        left=pb.PrefixSide(before="hello ", after="there"),
        right=pb.PrefixSide(before="hello ", after="world"),
    )
    asked = {"model": MODEL, "tenant": "team", "response_id": "resp_1"}
    async with httpx.AsyncClient() as client:

        async def explain(body: dict[str, Any]) -> httpx.Response:
            return await client.post(f"{operated.operator_url}/explain", json=body)

        response = await explain(asked)
        assert response.status_code == 200
        assert response.json() == {
            "at_token": 7,
            "left": {"before": "hello ", "after": "there"},
            "right": {"before": "hello ", "after": "world"},
        }
        request = tokenizer.explained
        assert request is not None
        assert (request.model, request.routing.tenant, request.response_id) == (MODEL, "team", "resp_1")
        for name in asked:
            response = await explain({**asked, name: None})
            assert response.status_code == 400
            assert response.json()["error"]["param"] == name
        tokenizer.explanation = refusal("NOT_FOUND", "RESPONSE_NOT_FOUND", "no answer resp_1 is remembered")
        assert (await explain(asked)).status_code == 404


async def test_health_of_a_gateway_without_a_tokenizer() -> None:
    async with (
        running("--tokenizers", "127.0.0.1:1", "--operator-listen", "127.0.0.1:0") as server,
        httpx.AsyncClient() as client,
    ):
        response = await client.get(f"{server.operator_url}/health")
        assert (response.status_code, response.json()["status"]) == (503, "unavailable")


async def test_a_taken_operators_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, line = await refusal_to_start("--port", "0", "--operator-listen", f"127.0.0.1:{port}")
    assert (status, line) == (1, f"fencepost gateway: cannot listen on 127.0.0.1:{port}: the address is in use")
