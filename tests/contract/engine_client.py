"""Real engines and stores on loopback, on a tiny random model, and a client that speaks token ids."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from fencepost.engine.v1 import engine_pb2 as pb
from fencepost.engine.v1 import engine_pb2_grpc

from services import rpc
from services.engine.assembly import build
from services.engine.config import EngineConfig
from services.kvstore.config import Config as KvstoreConfig
from services.kvstore.server import build as build_kvstore
from tests.unit.engine.runtime.tiny_models import save_tiny
from tests.unit.tokenizer.tiny_model import write_tiny_model


def write_tiny_engine_model(target: Path, **changes: Any) -> Path:
    """A random llama of 500 ids and 2,048 positions, with a tokenizer beside it that spells the first 265."""
    write_tiny_model(target)
    save_tiny("llama", target, **({"max_position_embeddings": 2048} | changes))
    return target


@dataclass(frozen=True)
class Answer:
    """All of one Generate call; ``ids`` and ``finished`` are its first choice's."""

    ids: tuple[int, ...]
    admitted: pb.Admitted
    finished: pb.Finished
    num_messages: int
    ids_by_choice: dict[int, list[int]]
    finished_by_choice: dict[int, pb.Finished]
    logprobs: tuple[pb.TokenLogprobs, ...]
    """Of the first choice."""

    @property
    def usage(self) -> pb.Usage:
        return self.finished.usage

    def cached(self, tier: int = 0) -> int:
        """Reused tokens of one tier, or of all."""
        return sum(t.tokens for t in self.usage.cached.by_tier if tier in (0, t.tier))


class EngineClient:
    """One engine, addressed by ids."""

    def __init__(self, stub: Any, address: str) -> None:
        self.stub = stub
        self.address = address

    def start(self, ids: list[int], max_tokens: int = 8, scope: str = "scope", **fields: Any) -> Any:
        sampling = fields.pop("sampling", None) or pb.Sampling(temperature=0, max_tokens=max_tokens, ignore_end=True)
        request = pb.GenerateRequest(
            cache_scope=scope,
            token_ids=np.array(ids, dtype="<i4").tobytes(),
            sampling=sampling,
            conversation_key=fields.pop("conversation_key", "conversation"),
            tenant="tenant",
            **fields,
        )
        return self.stub.Generate(request)

    async def generate(self, ids: list[int], max_tokens: int = 8, scope: str = "scope", **fields: Any) -> Answer:
        admitted, count = pb.Admitted(), 0
        ids_by_choice: dict[int, list[int]] = {0: []}
        finished_by_choice = {0: pb.Finished()}
        logprobs: list[pb.TokenLogprobs] = []
        async for message in self.start(ids, max_tokens, scope, **fields):
            count += 1
            match message.WhichOneof("event"):
                case "admitted":
                    admitted = message.admitted
                case "tokens":
                    ids_by_choice.setdefault(message.tokens.choice, []).extend(message.tokens.ids)
                    logprobs += () if message.tokens.choice else message.tokens.logprobs
                case "finished":
                    finished_by_choice[message.finished.choice] = message.finished
                case _:
                    pass
        return Answer(
            tuple(ids_by_choice[0]),
            admitted,
            finished_by_choice[0],
            count,
            ids_by_choice,
            finished_by_choice,
            tuple(logprobs),
        )

    async def load(self, until: Any = lambda load: True) -> pb.WatchLoadResponse:
        """The first load that satisfies ``until``."""
        call = self.stub.WatchLoad(pb.WatchLoadRequest(interval_ms=20), timeout=20)
        async for load in call:
            if until(load):
                call.cancel()
                return load
        raise AssertionError("the watch ended")

    async def settled(self) -> pb.WatchLoadResponse:
        """The load once nothing runs, waits or is being written."""
        return await self.load(lambda load: not (load.running or load.queued or load.pending_writes or load.leases))


@asynccontextmanager
async def run_kvstore(data_dir: Path, **settings: Any) -> AsyncGenerator[str]:
    """A store; yields its address."""
    server = rpc.new_server()
    config = replace(KvstoreConfig(data_dir=data_dir), **settings)
    async with build_kvstore(config, server):
        port = rpc.bind(server, "127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(5)


@asynccontextmanager
async def run_engine(model: Path, kvstore: str = "", **settings: Any) -> AsyncGenerator[EngineClient]:
    """An engine with 256 blocks of 16 tokens unless told otherwise.

    It restores whatever is stored: computing on so small a model is always cheaper.
    """
    defaults: dict[str, Any] = {
        "vram_bytes": 4096 * 512,
        "threads": 1,
        "step_tokens": 128,
        "grace_s": 10.0,
        "restore": "always",
    }
    server = rpc.new_server()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(
            build(EngineConfig(model=model, kvstore=kvstore, **(defaults | settings)), server)
        )
        port = rpc.bind(server, "127.0.0.1:0")
        await server.start()
        channel = await stack.enter_async_context(rpc.open_channel(f"127.0.0.1:{port}"))
        try:
            yield EngineClient(engine_pb2_grpc.EngineServiceStub(channel), f"127.0.0.1:{port}")
        finally:
            await server.stop(5)
