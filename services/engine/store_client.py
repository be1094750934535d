"""The engine's view of kvstore: match, read and write in plain values.

Owns one channel. Every failure of the store becomes ``StoreUnavailable``: the tier is then simply not there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fencepost.kvstore.v1 import snapshot_pb2, snapshot_pb2_grpc

from services import rpc
from services.engine.staging import LentFile
from services.engine.store_calls import SnapshotWrite, StoreRead, StoreUnavailable, store_errors
from services.identity import PAGE_TOKENS
from services.receiving import answer_of, message_of

_CALL_TIMEOUT_S = 2.0
_DELETE_TIMEOUT_S = 60.0


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
        with store_errors():
            found = await answer_of(self._stub.Match(request, timeout=_CALL_TIMEOUT_S))
        return StoredPrefix(found.lease_id, found.pages_present, _rest(found))

    async def release(self, lease_id: str) -> None:
        """Give a lease back; a store that is gone has forgotten it anyway."""
        try:
            with store_errors():
                request = snapshot_pb2.LeaseRequest(lease_id=lease_id, release=True)
                await answer_of(self._stub.Lease(request, timeout=_CALL_TIMEOUT_S))
        except StoreUnavailable:
            pass

    async def delete(self, *, namespace: bytes | None = None, layout: bytes | None = None) -> int:
        """Remove all state of a namespace, or of all that share a layout; bytes removed. Raises StoreUnavailable."""
        request = snapshot_pb2.DeleteRequest()
        if namespace is not None:
            request.namespace = namespace
        if layout is not None:
            request.layout = layout
        with store_errors():
            return (await answer_of(self._stub.Delete(request, timeout=_DELETE_TIMEOUT_S))).bytes

    async def delete_state(self, namespace: bytes, manifest_id: bytes) -> None:
        """Remove one terminal state, and the pages that no other one uses. Raises StoreUnavailable."""
        manifest = snapshot_pb2.ManifestId(namespace=namespace, manifest_id=manifest_id)
        with store_errors():
            await self._stub.Delete(snapshot_pb2.DeleteRequest(manifest=manifest), timeout=_DELETE_TIMEOUT_S)

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
            with store_errors():
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
                answer = await message_of(call)
                if answer is None or not answer.HasField("need"):
                    raise StoreUnavailable("the write was not accepted")
                yield SnapshotWrite(call, tuple(answer.need.pages))
        finally:
            call.cancel()


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
