"""A kvstore's snapshot service behind a link that carries only so many bytes a second, or breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fencepost.kvstore.v1 import snapshot_pb2, snapshot_pb2_grpc

from services import rpc


class SlowStore(snapshot_pb2_grpc.SnapshotServiceServicer):
    """Passes every call on; what Read sends takes its time, one message after the other over all calls."""

    def __init__(self, stub: Any, bytes_per_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.bytes_read = 0
        self.fail_after_bytes: int | None = None
        self.tamper: Callable[[list[snapshot_pb2.Chunk]], list[snapshot_pb2.Chunk] | None] = lambda chunks: chunks
        """What becomes of a message's chunks; None ends the stream."""
        self.before_commits: list[Callable[[], Awaitable[None]]] = []
        """Called once each, one before each commit that is passed on."""
        self._stub = stub
        self._link = asyncio.Lock()

    async def Match(self, request: snapshot_pb2.MatchRequest, context: Any) -> snapshot_pb2.MatchResponse:
        return await self._stub.Match(request)

    async def Lease(self, request: snapshot_pb2.LeaseRequest, context: Any) -> snapshot_pb2.LeaseResponse:
        return await self._stub.Lease(request)

    async def Stats(self, request: snapshot_pb2.StatsRequest, context: Any) -> snapshot_pb2.StatsResponse:
        return await self._stub.Stats(request)

    async def Delete(self, request: snapshot_pb2.DeleteRequest, context: Any) -> snapshot_pb2.DeleteResponse:
        return await self._stub.Delete(request)

    async def Read(self, request: snapshot_pb2.ReadRequest, context: Any) -> AsyncIterator[snapshot_pb2.ReadResponse]:
        async for response in self._stub.Read(request):
            num_bytes = sum(len(chunk.data) for chunk in response.chunks)
            async with self._link:
                await asyncio.sleep(num_bytes / self.bytes_per_s)
            self.bytes_read += num_bytes
            if self.fail_after_bytes is not None and self.bytes_read > self.fail_after_bytes:
                raise ConnectionError("the link broke")
            chunks = self.tamper(list(response.chunks))
            if chunks is None:
                return
            del response.chunks[:]
            response.chunks.extend(chunks)
            yield response

    async def Write(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        call = self._stub.Write()
        async for request in request_iterator:
            if request.WhichOneof("step") == "commit" and self.before_commits:
                await self.before_commits.pop(0)()
            await call.write(request)
            if request.WhichOneof("step") != "chunk":
                yield await call.read()


@asynccontextmanager
async def run_slow_store(address: str, bytes_per_s: float = float("inf")) -> AsyncGenerator[tuple[SlowStore, str]]:
    """In front of the store at ``address``; yields it and its own address."""
    server = rpc.new_server()
    async with rpc.open_channel(address) as channel:
        store = SlowStore(snapshot_pb2_grpc.SnapshotServiceStub(channel), bytes_per_s)
        snapshot_pb2_grpc.add_SnapshotServiceServicer_to_server(store, server)
        port = rpc.bind(server, "127.0.0.1:0")
        await server.start()
        yield store, f"127.0.0.1:{port}"
        await server.stop(2)
