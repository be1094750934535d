"""An engine and a kvstore as processes, for benches that measure both together."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from fencepost.engine.v1 import engine_pb2 as pb
from fencepost.engine.v1 import engine_pb2_grpc
from fencepost.kvstore.v1 import snapshot_pb2, snapshot_pb2_grpc

from services import rpc
from tests.contract.engine_client import EngineClient
from tests.contract.slow_store import run_slow_store

_START_S = 120.0


class Stack:
    """Where they live and, inside ``serving_stack``, a client of the engine."""

    engine: EngineClient
    bytes_per_token: int

    def __init__(
        self,
        folder: Path,
        model: Path,
        *,
        vram_bytes: int = 2**30,
        engine_flags: tuple[str, ...] = (),
        has_disk_tier: bool = True,
    ) -> None:
        self.folder = folder
        self.model = model
        self.vram_bytes = vram_bytes
        self.engine_flags = engine_flags
        self.has_disk_tier = has_disk_tier
        self.bytes_per_s: float | None = None
        """Set before serving: what a link between engine and store carries; None connects them without one."""
        self.store: Any = None
        self._pids: list[int] = []

    def note_processes(self, *pids: int) -> None:
        """Those that serve."""
        self._pids = list(pids)

    def cpu_s(self) -> float:
        """Seconds of processor time that both processes have taken so far."""
        ticks = 0
        for pid in self._pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    @property
    def data_dir(self) -> Path:
        """The kvstore's."""
        return self.folder / "kv"

    async def flush(self, scope: str, tier: pb.Tier.ValueType) -> None:
        """Empty a tier of a scope."""
        await self.engine.stub.Flush(pb.FlushRequest(cache_scopes=[scope], tiers=[tier]))

    async def settled(self) -> None:
        """Wait until nothing runs and nothing is being written."""
        await self.engine.settled()

    async def settled_writes(self) -> None:
        """Wait until nothing is being written."""
        await self.engine.load(_has_written)

    async def stored_bytes(self) -> int:
        """Bytes in the store."""
        return (await self.store.Stats(snapshot_pb2.StatsRequest())).bytes

    def drop_page_cache(self) -> None:
        """Make the next read of every stored byte go to the disk."""
        os.sync()
        for path in self.data_dir.rglob("*"):
            if path.is_file():
                file = os.open(path, os.O_RDONLY)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)


def _has_written(load: pb.WatchLoadResponse) -> bool:
    return not load.pending_writes


@asynccontextmanager
async def serving_stack(stack: Stack) -> AsyncGenerator[Stack]:
    """Start both, and stop them as a user would."""
    async with AsyncExitStack() as exits:
        shared = Path("/dev/shm") / f"fencepost-bench-{os.getpid()}"
        shared.mkdir(mode=0o700, exist_ok=True)
        exits.callback(lambda: shared.rmdir() if not any(shared.iterdir()) else None)
        store, engine = (f"unix:{stack.folder}/{name}.sock" for name in ("kvstore", "engine"))
        common = ("--shared-memory-dir", str(shared))
        kvstore_pid = await exits.enter_async_context(
            _process("kvstore", "--listen", store, "--data-dir", str(stack.data_dir), *common)
        )
        seen_by_engine = store
        if stack.bytes_per_s is not None:
            common = ()
            _, seen_by_engine = await exits.enter_async_context(run_slow_store(store, stack.bytes_per_s))
        engine_pid = await exits.enter_async_context(
            _process(
                "engine",
                *("--listen", engine, "--model", str(stack.model)),
                *(("--kvstore", seen_by_engine, *common) if stack.has_disk_tier else ()),
                *("--vram-bytes", str(stack.vram_bytes), "--grace-s", "60", *stack.engine_flags),
            )
        )
        stack.note_processes(kvstore_pid, engine_pid)
        channel = await exits.enter_async_context(rpc.open_channel(engine))
        stack.engine = EngineClient(engine_pb2_grpc.EngineServiceStub(channel), engine)
        stack.store = snapshot_pb2_grpc.SnapshotServiceStub(await exits.enter_async_context(rpc.open_channel(store)))
        await asyncio.wait_for(channel.channel_ready(), _START_S)
        stack.bytes_per_token = (await stack.engine.stub.GetModel(pb.GetModelRequest())).bytes_per_token
        yield stack


@asynccontextmanager
async def _process(name: str, *flags: str) -> AsyncGenerator[int]:
    """Yields its id."""
    log = os.open(os.environ.get("FENCEPOST_BENCH_LOG", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", f"services.{name}", *flags, stderr=log)
    try:
        yield process.pid
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        os.close(log)
