"""The kvstore as a process: kill -9 under load, and what it says when it cannot start."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
from kvstore_client import Client, State, serving, state

from services import rpc

_COMMAND = (sys.executable, "-m", "services.kvstore")


@asynccontextmanager
async def _running(data_dir: Path) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str]]:
    address = f"unix:{data_dir.parent / 'kv.sock'}"
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        "--listen",
        address,
        "--data-dir",
        str(data_dir),
        "--disk-reserve-bytes",
        "0",
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process, address
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _write_until_killed(client: Client, writer: int, acknowledged: list[State], enough: asyncio.Event) -> None:
    turn = state(300, 1_000 * writer, tenant=f"writer {writer}")
    try:
        for seed in range(1_000):
            if (await client.write(turn)).stored:
                acknowledged.append(turn)
            if len(acknowledged) >= 6:
                enough.set()
            turn = turn.then(200, 1_000 * writer + seed)
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        pass


async def test_every_acknowledged_commit_survives_kill_9(tmp_path: Path) -> None:
    acknowledged: list[State] = []
    rng = random.Random(3)
    for round_ in range(3):
        fresh: list[State] = []
        enough = asyncio.Event()
        async with _running(tmp_path / "kv") as (process, address), rpc.open_channel(address) as channel:
            await asyncio.wait_for(channel.channel_ready(), 20)
            client = Client(channel)
            writers = [_write_until_killed(client, 10 * round_ + i, fresh, enough) for i in range(3)]
            tasks = [asyncio.create_task(writer) for writer in writers]
            await asyncio.wait_for(enough.wait(), 20)
            await asyncio.sleep(rng.random() * 0.05)
            process.send_signal(signal.SIGKILL)
            await asyncio.wait(tasks)
        acknowledged += fresh
    async with serving(tmp_path / "kv") as client:
        for written in acknowledged:
            assert await client.full_hit(written)
        before = await client.stats()
    async with serving(tmp_path / "kv") as client:
        after = await client.stats()
        assert (after.bytes, after.pages, after.manifests) == (before.bytes, before.pages, before.manifests)
        assert after.orphan_pages == 0


async def _fails(*argv: str) -> str:
    process = await asyncio.create_subprocess_exec(*_COMMAND, *argv, stderr=asyncio.subprocess.PIPE)
    _, stderr = await process.communicate()
    assert process.returncode
    return stderr.decode().splitlines()[-1]


async def test_start_that_fails_says_why_in_one_line(tmp_path: Path) -> None:
    assert "--ssd-bytes" in await _fails("--ssd-bytes", "much")
    async with serving(tmp_path / "kv"):
        line = await _fails("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "kv"))
        assert line == f"fencepost kvstore: {tmp_path / 'kv'} is in use by another process"
