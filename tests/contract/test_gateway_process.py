"""``python -m services.gateway`` as a process: starting, refusing to start, draining."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from scripted_tokenizer import HELLO, MODEL, ScriptedTokenizer, admitted, finished, text

ROOT = Path(__file__).parents[2]
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}


@asynccontextmanager
async def gateway(*argv: str, **environ: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    path = os.pathsep.join((str(ROOT), str(ROOT / "proto")))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "services.gateway", *argv),
        env={**clean, "PYTHONPATH": path, **environ},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(30):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def refusal_to_start(*argv: str, **environ: str) -> tuple[int, str]:
    """The exit status and the last line on standard error."""
    async with gateway(*argv, **environ) as process:
        _, errors = await process.communicate()
    assert process.returncode is not None
    assert "Traceback" not in errors.decode()
    return process.returncode, errors.decode().splitlines()[-1]


async def url_of(process: asyncio.subprocess.Process) -> str:
    """The address it logs."""
    assert process.stderr is not None
    async for line in process.stderr:
        if b"serving on " in line:
            return line.decode().split("serving on ")[1].strip()
    raise AssertionError("it ended")


async def test_a_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, line = await refusal_to_start("--port", str(port))
    assert status == 1
    assert line == f"fencepost gateway: cannot listen on 127.0.0.1:{port}: the address is in use"


async def test_settings_that_cannot_be_used_are_one_line() -> None:
    flag, variable, network = await asyncio.gather(
        refusal_to_start("--port", "http"),
        refusal_to_start(FENCEPOST_GATEWAY_KEEP_ALIVE="5"),
        refusal_to_start("--host", "0.0.0.0"),
    )
    assert flag == (2, "fencepost gateway: --port: expected a whole number, got 'http'")
    assert variable[0] == network[0] == 2
    assert variable[1].startswith("fencepost gateway: FENCEPOST_GATEWAY_KEEP_ALIVE: no such setting")
    assert network[1].startswith("fencepost gateway: --host: 0.0.0.0 can be reached from the network")


async def test_sigterm_lets_streams_finish(tokenizer: ScriptedTokenizer) -> None:
    rest = asyncio.Event()
    tokenizer.script = [admitted(), text("a"), rest, text("b"), finished()]
    async with gateway("--port", "0", "--tokenizers", tokenizer.address) as process, httpx.AsyncClient() as client:
        url = await url_of(process)
        async with client.stream("POST", f"{url}/v1/chat/completions", json=BODY) as response:
            lines = response.aiter_lines()
            async for line in lines:
                if '"content":"a"' in line:
                    break
            process.send_signal(signal.SIGTERM)
            host, port = url.removeprefix("http://").split(":")
            while await _is_listening(host, int(port)):
                assert process.returncode is None
                await asyncio.sleep(0.02)
            rest.set()
            received = [line async for line in lines]
        assert any('"content":"b"' in line for line in received)
        assert "data: [DONE]" in received
        assert await process.wait() == 0
        assert process.stderr is not None
        assert b"Traceback" not in await process.stderr.read()


async def test_grace_ends(tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = [admitted(), text("a"), asyncio.Event()]
    arguments = ("--port", "0", "--tokenizers", tokenizer.address, "--grace-s", "0")
    async with gateway(*arguments) as process, httpx.AsyncClient() as client:
        url = await url_of(process)
        try:
            async with client.stream("POST", f"{url}/v1/chat/completions", json=BODY) as response:
                async for line in response.aiter_lines():
                    if '"content":"a"' in line:
                        process.send_signal(signal.SIGTERM)
        except httpx.RemoteProtocolError:
            pass
        assert await process.wait() == 0
        await tokenizer.cancelled.wait()
        assert process.stderr is not None
        assert b"Traceback" not in await process.stderr.read()


async def test_it_serves_before_its_tokenizer_does() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    late = ScriptedTokenizer(script=list(HELLO))
    async with gateway("--port", "0", "--tokenizers", f"127.0.0.1:{port}") as process, httpx.AsyncClient() as client:
        url = await url_of(process)
        assert (await client.get(f"{url}/health")).status_code == 503
        async with late.serving(port=port):
            while (await client.get(f"{url}/health")).status_code != 200:
                assert process.returncode is None
                await asyncio.sleep(0.05)
            response = await client.post(f"{url}/v1/chat/completions", json=BODY)
            assert response.text.endswith("data: [DONE]\n\n")
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0


async def _is_listening(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True
