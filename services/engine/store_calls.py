"""Reads and writes of state under way: messages of the store as plain values, its failures as one exception."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import crc32c
import grpc.aio
from fencepost.kvstore.v1 import snapshot_pb2

from services import rpc
from services.engine.staging import LentFile
from services.receiving import message_of, messages_of

MAX_CHUNK_BYTES = 2**20


class StoreUnavailable(Exception):
    """The store did not answer, or not usefully; the message says what it said."""


class NoSharedMemory(StoreUnavailable):
    """The store cannot reach lent memory; it can send the bytes."""


class OutdatedWrite(StoreUnavailable):
    """What the store had when a write began was deleted before its end; sent anew, the write is whole."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one layer of a page (``page`` indexes the read's keys) or of the tail (None).

    ``data`` is not checked against ``crc32c`` yet.
    """

    page: int | None
    layer: int
    channel: int
    offset: int
    total: int
    data: bytes | memoryview
    crc32c: int
    token_ids: bytes | None


@dataclass(frozen=True, slots=True)
class Skipped:
    """Nothing of the read from this page on is usable; the number of pages when only the tail is not."""

    first_page: int


class StoreRead:
    """A read under way. Iterate over it once, or cancel it."""

    def __init__(
        self,
        call: grpc.aio.UnaryStreamCall[snapshot_pb2.ReadRequest, snapshot_pb2.ReadResponse],
        page_keys: Sequence[bytes],
        lent: LentFile | None,
    ) -> None:
        self._call = call
        self._index_by_key = {key: index for index, key in enumerate(page_keys)}
        self._lent = lent

    async def __aiter__(self) -> AsyncIterator[list[Piece] | Skipped]:
        """Pieces in order, some at a time. Raises StoreUnavailable."""
        with store_errors():
            async for response in messages_of(self._call):
                pieces = [self._piece(chunk) for chunk in response.chunks if not chunk.HasField("boundary")]
                if pieces:
                    yield pieces
                if response.HasField("skipped"):
                    yield Skipped(response.skipped.first_page)

    def cancel(self) -> None:
        """Stop. A store that was lent memory may still write to it."""
        self._call.cancel()

    async def drain(self) -> bool:
        """Wait for the end; whether the store will write to lent memory no more."""
        try:
            async for _ in messages_of(self._call):
                pass
        except grpc.aio.AioRpcError as error:
            # Where the store has answered or is gone it has stopped.
            return error.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
        return True

    def _piece(self, chunk: snapshot_pb2.Chunk) -> Piece:
        page: int | None = None
        if chunk.HasField("page_key"):
            page = self._index_by_key.get(chunk.page_key)
            if page is None:
                raise StoreUnavailable("a page that was not asked for")
        data: bytes | memoryview = chunk.data
        if self._lent is not None:
            start, length = chunk.placed.offset, chunk.placed.length
            data = self._lent.view[start : start + length]
            if not length or len(data) != length:
                raise StoreUnavailable("a chunk outside the lent memory")
        ids = chunk.token_ids if chunk.HasField("token_ids") else None
        return Piece(page, chunk.layer, chunk.channel, chunk.offset, chunk.total, data, chunk.crc32c, ids)


class SnapshotWrite:
    """An open write; ``needed_pages`` index the snapshot's page keys."""

    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[snapshot_pb2.WriteRequest, snapshot_pb2.WriteResponse],
        needed_pages: tuple[int, ...],
    ) -> None:
        self._call = call
        self.needed_pages = needed_pages

    async def send(self, page_key: bytes | None, layer: int, data: bytes, token_ids: bytes) -> None:
        """Send all bytes of one layer of a page, or of the tail (``page_key`` None)."""
        view = memoryview(data)
        for offset in range(0, len(data), MAX_CHUNK_BYTES):
            part = bytes(view[offset : offset + MAX_CHUNK_BYTES])
            chunk = snapshot_pb2.Chunk(
                layer=layer, offset=offset, total=len(data), crc32c=crc32c.crc32c(part), data=part
            )
            if page_key is None:
                chunk.tail.SetInParent()
            else:
                chunk.page_key = page_key
            if layer == 0 and offset == 0:
                chunk.token_ids = token_ids
            await self._write(snapshot_pb2.WriteRequest(chunk=chunk))

    async def commit(self) -> str | None:
        """Make it durable; None, or why the store dropped it. Raises OutdatedWrite."""
        await self._write(snapshot_pb2.WriteRequest(commit=snapshot_pb2.Commit()))
        await self._call.done_writing()
        answer = await message_of(self._call)
        if answer is None or not answer.HasField("result"):
            raise StoreUnavailable("the write ended without a result")
        if answer.result.may_repeat:
            raise OutdatedWrite(answer.result.dropped_reason)
        return None if answer.result.stored else answer.result.dropped_reason or "dropped"

    async def _write(self, request: snapshot_pb2.WriteRequest) -> None:
        try:
            await self._call.write(request)
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            # The store has ended the call. Its status says why; what the failed write says is not always that.
            raise StoreUnavailable(f"{(await self._call.code()).name}: {await self._call.details()}") from None


@contextmanager
def store_errors() -> Generator[None]:
    """What a call raises becomes StoreUnavailable."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if rpc.failure_of(error).reason == "NO_SHARED_MEMORY":
            raise NoSharedMemory(str(error.details())) from None
        raise StoreUnavailable(f"{error.code().name}: {error.details()}") from None
