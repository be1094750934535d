"""The engine's view of kvstore: match, read and write in plain values.

Owns one channel. Every failure of the store becomes ``StoreUnavailable``: the tier is then simply not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import crc32c
import grpc.aio
from fencepost.kvstore.v1 import snapshot_pb2, snapshot_pb2_grpc

from services import rpc
from services.engine.staging import LentFile
from services.identity import PAGE_TOKENS

MAX_CHUNK_BYTES = 2**20
_CALL_TIMEOUT_S = 2.0
_DELETE_TIMEOUT_S = 60.0


class StoreUnavailable(Exception):
    """The store did not answer, or not usefully; the message says what it said."""


class NoSharedMemory(StoreUnavailable):
    """The store cannot reach lent memory; it can send the bytes."""


@dataclass(frozen=True, slots=True)
class StoredRest:
    """A stored page (``page_key``) or tail (``manifest_id``) of which the prompt goes on with the first tokens.

    ``token_ids`` are all of its ids, int32 little-endian.
    """

    num_tokens: int
    page_key: bytes | None
    manifest_id: bytes | None
    token_ids: bytes


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """What the store can give of a prompt: whole pages, and what lies behind them."""

    lease_id: str
    pages_present: int
    rest: StoredRest | None


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one channel of one layer of a page (``page`` indexes the read's keys) or of the tail (None).

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


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """Layers of pages, and of a manifest's tail behind them."""

    namespace: bytes
    lease_id: str
    page_keys: Sequence[bytes]
    manifest_id: bytes | None
    layers: range


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A terminal state to store."""

    namespace: bytes
    manifest_id: bytes
    parent_manifest_id: bytes | None
    round: int
    token_ids: bytes
    page_keys: Sequence[bytes]
    resident_bytes: int
    tenant: str


class StoreClient:
    """One kvstore."""

    def __init__(self, address: str) -> None:
        self._channel = rpc.open_channel(address)
        self._stub: snapshot_pb2_grpc.SnapshotServiceAsyncStub = snapshot_pb2_grpc.SnapshotServiceStub(self._channel)  # pyright: ignore[reportAssignmentType]

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def match(
        self, namespace: bytes, page_keys: Sequence[bytes], first_page: int, tail_ids: bytes
    ) -> StoredPrefix:
        """Longest stored prefix of a prompt; leases it. Raises StoreUnavailable."""
        tail = snapshot_pb2.TailQuery(first_page=first_page, token_ids=tail_ids)
        request = snapshot_pb2.MatchRequest(namespace=namespace, page_keys=page_keys, tail=tail)
        with _store_errors():
            found = await self._stub.Match(request, timeout=_CALL_TIMEOUT_S)
        return StoredPrefix(found.lease_id, found.pages_present, _rest(found))

    async def release(self, lease_id: str) -> None:
        """Give a lease back; a store that is gone has forgotten it anyway."""
        try:
            with _store_errors():
                await self._stub.Lease(
                    snapshot_pb2.LeaseRequest(lease_id=lease_id, release=True), timeout=_CALL_TIMEOUT_S
                )
        except StoreUnavailable:
            pass

    async def delete(self, *, namespace: bytes | None = None, layout: bytes | None = None) -> int:
        """Remove all state of a namespace, or of all that share a layout; bytes removed. Raises StoreUnavailable."""
        request = snapshot_pb2.DeleteRequest()
        if namespace is not None:
            request.namespace = namespace
        if layout is not None:
            request.layout = layout
        with _store_errors():
            return (await self._stub.Delete(request, timeout=_DELETE_TIMEOUT_S)).bytes

    def read(self, query: ReadQuery, timeout_s: float, lent: LentFile | None = None) -> StoreRead:
        """Begin to read, layer by layer; into ``lent``, whose bytes are then the pieces' data."""
        request = snapshot_pb2.ReadRequest(
            namespace=query.namespace,
            lease_id=query.lease_id,
            page_keys=query.page_keys,
            manifest_id=query.manifest_id,
            layer_order=snapshot_pb2.LAYER_ORDER_LAYER_MAJOR,
            layers=snapshot_pb2.LayerRange(first=query.layers.start, count=len(query.layers)),
        )
        if lent is not None:
            request.region.name, request.region.length = lent.name, len(lent.view)
        return StoreRead(self._stub.Read(request, timeout=timeout_s), query.page_keys, lent)

    @asynccontextmanager
    async def write(self, snapshot: Snapshot, timeout_s: float) -> AsyncGenerator[SnapshotWrite]:
        """Begin a write; ``commit`` of what is yielded makes it durable, leaving without it drops everything."""
        call = self._stub.Write(timeout=timeout_s)
        try:
            with _store_errors():
                tail = snapshot.token_ids[len(snapshot.page_keys) * PAGE_TOKENS * 4 :]
                header = snapshot_pb2.WriteHeader(
                    namespace=snapshot.namespace,
                    manifest_id=snapshot.manifest_id,
                    parent_manifest_id=snapshot.parent_manifest_id,
                    round=snapshot.round,
                    is_head=True,
                    token_count=len(snapshot.token_ids) // 4,
                    resident_bytes=snapshot.resident_bytes,
                    page_keys=snapshot.page_keys,
                    tail_token_ids=tail,
                    tenant=snapshot.tenant,
                    page_tokens=PAGE_TOKENS,
                )
                await call.write(snapshot_pb2.WriteRequest(header=header))
                answer = await call.read()
                if not isinstance(answer, snapshot_pb2.WriteResponse) or not answer.HasField("need"):
                    raise StoreUnavailable("the write was not accepted")
                yield SnapshotWrite(call, tuple(answer.need.pages))
        finally:
            call.cancel()


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
        with _store_errors():
            async for response in self._call:
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
            async for _ in self._call:
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

    async def send(self, page_key: bytes | None, layer: int, channel: int, data: bytes, token_ids: bytes) -> None:
        """Send all bytes of one channel of one layer of a page, or of the tail (``page_key`` None)."""
        view = memoryview(data)
        for offset in range(0, len(data), MAX_CHUNK_BYTES):
            part = bytes(view[offset : offset + MAX_CHUNK_BYTES])
            chunk = snapshot_pb2.Chunk(
                layer=layer, channel=channel, offset=offset, total=len(data), crc32c=crc32c.crc32c(part), data=part
            )
            if page_key is None:
                chunk.tail.SetInParent()
            else:
                chunk.page_key = page_key
            if layer == 0 and channel == 0 and offset == 0:
                chunk.token_ids = token_ids
            await self._write(snapshot_pb2.WriteRequest(chunk=chunk))

    async def commit(self) -> str | None:
        """Make it durable; None, or why the store dropped it."""
        await self._write(snapshot_pb2.WriteRequest(commit=snapshot_pb2.Commit()))
        await self._call.done_writing()
        answer = await self._call.read()
        if not isinstance(answer, snapshot_pb2.WriteResponse) or not answer.HasField("result"):
            raise StoreUnavailable("the write ended without a result")
        return None if answer.result.stored else answer.result.dropped_reason or "dropped"

    async def _write(self, request: snapshot_pb2.WriteRequest) -> None:
        try:
            await self._call.write(request)
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            # The store has ended the call. Its status says why; what the failed write says is not always that.
            raise StoreUnavailable(f"{(await self._call.code()).name}: {await self._call.details()}") from None


class _store_errors:  # noqa: N801 - reads as a statement
    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, grpc.aio.AioRpcError):
            if rpc.failure_of(error).reason == "NO_SHARED_MEMORY":
                raise NoSharedMemory(str(error.details())) from None
            raise StoreUnavailable(f"{error.code().name}: {error.details()}") from None


def _rest(found: snapshot_pb2.MatchResponse) -> StoredRest | None:
    """What lies behind the whole pages, whichever reaches furthest."""
    if found.HasField("partial"):
        partial = found.partial
        is_page = partial.HasField("page_key")
        return StoredRest(
            num_tokens=partial.tokens,
            page_key=partial.page_key if is_page else None,
            manifest_id=None if is_page else partial.manifest_id,
            token_ids=partial.token_ids,
        )
    if found.HasField("boundary") and found.boundary.tail_token_ids:
        ids = found.boundary.tail_token_ids
        return StoredRest(len(ids) // 4, None, found.boundary.manifest_id, ids)
    return None
