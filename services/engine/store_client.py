"""The engine's view of kvstore: match, read and write in plain values.

Owns one channel. Every failure of the store becomes ``StoreUnavailable``: the tier is then simply not there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import crc32c
import grpc.aio
from fencepost.kvstore.v1 import snapshot_pb2, snapshot_pb2_grpc

from services import rpc
from services.identity import PAGE_TOKENS

MAX_CHUNK_BYTES = 2**20
_CALL_TIMEOUT_S = 2.0


class StoreUnavailable(Exception):
    """The store did not answer, or not usefully; the message says what it said."""


@dataclass(frozen=True, slots=True)
class StoredPrefix:
    """What the store can give of a prompt. ``boundary_tokens`` covers pages and tail together."""

    lease_id: str
    pages_present: int
    boundary_tokens: int
    manifest_id: bytes | None
    tail_token_ids: bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one channel of one layer of a page (``page`` indexes the read's keys) or of the tail (None)."""

    page: int | None
    layer: int
    channel: int
    offset: int
    total: int
    data: bytes
    token_ids: bytes | None


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
        has_boundary = found.HasField("boundary")
        return StoredPrefix(
            lease_id=found.lease_id,
            pages_present=found.pages_present,
            boundary_tokens=found.boundary.tokens if has_boundary else 0,
            manifest_id=found.boundary.manifest_id if has_boundary else None,
            tail_token_ids=found.boundary.tail_token_ids,
        )

    async def release(self, lease_id: str) -> None:
        """Give a lease back; a store that is gone has forgotten it anyway."""
        try:
            with _store_errors():
                await self._stub.Lease(
                    snapshot_pb2.LeaseRequest(lease_id=lease_id, release=True), timeout=_CALL_TIMEOUT_S
                )
        except StoreUnavailable:
            pass

    async def read(
        self, namespace: bytes, lease_id: str, page_keys: Sequence[bytes], manifest_id: bytes | None, timeout_s: float
    ) -> AsyncGenerator[Piece]:
        """Pieces of pages, page by page, then of the tail; ends early where the store has nothing good to send.

        Raises StoreUnavailable, also when a piece's checksum is wrong.
        """
        index_by_key = {key: index for index, key in enumerate(page_keys)}
        request = snapshot_pb2.ReadRequest(
            namespace=namespace,
            lease_id=lease_id,
            page_keys=page_keys,
            manifest_id=manifest_id,
            layer_order=snapshot_pb2.LAYER_ORDER_PAGE_MAJOR,
        )
        with _store_errors():
            async for response in self._stub.Read(request, timeout=timeout_s):
                if response.HasField("skipped"):
                    return
                chunk = response.chunk
                if chunk.HasField("boundary"):
                    continue
                if crc32c.crc32c(chunk.data) != chunk.crc32c:
                    raise StoreUnavailable("checksum of a chunk does not match")
                page = None
                if chunk.HasField("page_key"):
                    page = index_by_key.get(chunk.page_key)
                    if page is None:
                        raise StoreUnavailable("a page that was not asked for")
                ids = chunk.token_ids if chunk.HasField("token_ids") else None
                yield Piece(page, chunk.layer, chunk.channel, chunk.offset, chunk.total, chunk.data, ids)

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
            await self._call.write(snapshot_pb2.WriteRequest(chunk=chunk))

    async def commit(self) -> str | None:
        """Make it durable; None, or why the store dropped it."""
        await self._call.write(snapshot_pb2.WriteRequest(commit=snapshot_pb2.Commit()))
        await self._call.done_writing()
        answer = await self._call.read()
        if not isinstance(answer, snapshot_pb2.WriteResponse) or not answer.HasField("result"):
            raise StoreUnavailable("the write ended without a result")
        return None if answer.result.stored else answer.result.dropped_reason or "dropped"


class _store_errors:  # noqa: N801 - reads as a statement
    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, grpc.aio.AioRpcError):
            raise StoreUnavailable(f"{error.code().name}: {error.details()}") from None
