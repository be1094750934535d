"""``SnapshotService`` on the wire: translation only."""

# ruff: noqa: N802 - methods are named as in the contract

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
from fencepost.kvstore.v1 import snapshot_pb2, snapshot_pb2_grpc

from services.kvstore.errors import InvalidRequestError, WriteStalledError
from services.kvstore.incoming import Header, IncomingChunk
from services.kvstore.matching import Partial, TailQuery
from services.kvstore.reading import Order, ReadChunk, ReadQuery, Skipped, read
from services.kvstore.records import RecordStore
from services.kvstore.shared_region import SharedRegion
from services.kvstore.state import (
    ID_BYTES,
    LAYOUT_BYTES,
    MAX_CHUNK_BYTES,
    NAMESPACE_BYTES,
    TOKEN_BYTES,
    Manifest,
    ManifestId,
    Namespace,
    Owner,
    Page,
    PageKey,
)
from services.kvstore.store import Removed, Store
from services.kvstore.writing import Outcome, WriteSession

_Context = grpc.aio.ServicerContext[Any, Any]
_MAX_LEASE_MS = 600_000


class SnapshotServicer(snapshot_pb2_grpc.SnapshotServiceServicer):
    """Answers from a Store; deleting a tenant reaches its records too."""

    def __init__(
        self, store: Store, records: RecordStore, write_idle_s: float, shared_memory_dir: Path | None = None
    ) -> None:
        """``write_idle_s``: how long a Write's client may stay silent; None: no reader can lend memory."""
        self._store = store
        self._records = records
        self._write_idle_s = write_idle_s
        self._shared_memory_dir = shared_memory_dir

    async def Match(self, request: snapshot_pb2.MatchRequest, context: _Context) -> snapshot_pb2.MatchResponse:
        tail = None
        if request.HasField("tail"):
            if len(request.tail.token_ids) % TOKEN_BYTES:
                raise InvalidRequestError("tail.token_ids: not int32 ids")
            tail = TailQuery(request.tail.first_page, request.tail.token_ids)
        extras = [extra.position for extra in request.extras]
        found = self._store.match(_namespace(request.namespace), _page_keys(request.page_keys), tail, extras)
        pages, boundary, partial = found.match.pages, found.match.boundary, found.match.partial
        response = snapshot_pb2.MatchResponse(
            pages_present=len(pages), page_bytes=sum(page.blob.data_bytes for page in pages)
        )
        if boundary is not None:
            blobs = [blob for blob in (boundary.tail, boundary.boundary) if blob is not None]
            response.boundary.tokens = boundary.token_count
            response.boundary.manifest_id = boundary.manifest_id
            response.boundary.bytes = sum(blob.data_bytes for blob in blobs)
            response.boundary.tail_token_ids = boundary.tail_token_ids
        if partial is not None:
            response.partial.CopyFrom(_partial_message(partial))
        if found.lease_id is not None:
            response.lease_id = found.lease_id
            response.lease_ms = int(1_000 * self._store.limits.lease_s)
        return response

    async def Read(
        self, request: snapshot_pb2.ReadRequest, context: _Context
    ) -> AsyncIterator[snapshot_pb2.ReadResponse]:
        layer_major = request.layer_order == snapshot_pb2.LAYER_ORDER_LAYER_MAJOR
        query = ReadQuery(
            namespace=_namespace(request.namespace),
            page_keys=_page_keys(request.page_keys),
            manifest_id=_manifest_id(request.manifest_id) if request.HasField("manifest_id") else None,
            order=Order.LAYER_MAJOR if layer_major else Order.PAGE_MAJOR,
            layers=_layers(request.layers) if request.HasField("layers") else None,
        )
        with ExitStack() as stack:
            if request.HasField("region"):
                region = request.region
                lent = SharedRegion(self._shared_memory_dir, region.name, region.offset, region.length)
                stack.callback(lent.close)
                query = replace(query, region=lent)
            async with aclosing(read(self._store, query)) as found:
                async for event in found:
                    if isinstance(event, Skipped):
                        skipped = snapshot_pb2.Skipped(first_page=event.first_page, reason=event.reason)
                        yield snapshot_pb2.ReadResponse(skipped=skipped)
                    else:
                        for chunks in _batches(event):
                            yield snapshot_pb2.ReadResponse(chunks=map(_chunk_message, chunks))

    async def Write(
        self, request_iterator: AsyncIterator[snapshot_pb2.WriteRequest], context: _Context
    ) -> AsyncIterator[snapshot_pb2.WriteResponse]:
        first = await self._next(request_iterator)
        if first.WhichOneof("step") != "header":
            raise InvalidRequestError("step: the header comes first")
        session = WriteSession(self._store, _header(first.header))
        try:
            yield snapshot_pb2.WriteResponse(need=snapshot_pb2.Need(pages=session.needed))
            while (request := await self._next(request_iterator)).WhichOneof("step") == "chunk":
                await session.add(_incoming(request.chunk))
            if request.WhichOneof("step") != "commit":
                raise InvalidRequestError("step: chunks, then commit")
            outcome = await session.commit()
            yield snapshot_pb2.WriteResponse(result=_result(outcome))
        finally:
            session.close()

    async def Lease(self, request: snapshot_pb2.LeaseRequest, context: _Context) -> snapshot_pb2.LeaseResponse:
        match request.WhichOneof("action"):
            case "extend_ms":
                if not 0 < request.extend_ms <= _MAX_LEASE_MS:
                    raise InvalidRequestError(f"extend_ms: 1 to {_MAX_LEASE_MS}")
                left_s = self._store.extend_lease(request.lease_id, request.extend_ms / 1_000)
                return snapshot_pb2.LeaseResponse(remaining_ms=round(1_000 * left_s))
            case "release":
                self._store.release_lease(request.lease_id)
                return snapshot_pb2.LeaseResponse()
            case _:
                raise InvalidRequestError("action: extend_ms or release")

    async def Delete(self, request: snapshot_pb2.DeleteRequest, context: _Context) -> snapshot_pb2.DeleteResponse:
        num_records = record_bytes = 0
        match request.WhichOneof("what"):
            case "namespace":
                removed = await self._store.delete_namespace(_namespace(request.namespace))
            case "layout":
                if len(request.layout) != LAYOUT_BYTES:
                    raise InvalidRequestError(f"layout: {len(request.layout)} bytes instead of {LAYOUT_BYTES}")
                removed = await self._store.delete_layout(request.layout)
            case "manifest":
                manifest_id = _manifest_id(request.manifest.manifest_id)
                removed = await self._store.delete_manifest(_namespace(request.manifest.namespace), manifest_id)
            case "tenant":
                num_records, record_bytes = await self._records.delete_tenant(request.tenant)
                removed = await self._store.delete_tenant(request.tenant)
            case _:
                raise InvalidRequestError("what: a namespace, a manifest, a tenant or a layout")
        return _deleted(removed, num_records, record_bytes)

    async def Stats(self, request: snapshot_pb2.StatsRequest, context: _Context) -> snapshot_pb2.StatsResponse:
        store = self._store
        namespace = _namespace(request.namespace) if request.HasField("namespace") else None
        store.expire_leases()
        return snapshot_pb2.StatsResponse(
            bytes=store.budget.used_bytes if namespace is None else store.catalog.count_bytes(namespace),
            cap_bytes=store.limits.cap_bytes,
            pages=store.catalog.count_pages(namespace),
            manifests=store.catalog.count_manifests(namespace),
            orphan_pages=store.counters.get("orphan_pages", namespace),
            hits=store.counters.get("hits", namespace),
            misses=store.counters.get("misses", namespace),
            evictions=store.counters.get("evictions", namespace),
            verify_failures=store.counters.get("verify_failures", namespace),
            dropped_writes=store.counters.get("dropped_writes", namespace),
            leases=store.leases.count(namespace),
            records=self._records.num_records if namespace is None else 0,
        )

    async def _next(self, requests: AsyncIterator[snapshot_pb2.WriteRequest]) -> snapshot_pb2.WriteRequest:
        try:
            async with asyncio.timeout(self._write_idle_s):
                return await anext(requests)
        except StopAsyncIteration:
            raise InvalidRequestError("step: the stream ended before its commit") from None
        except TimeoutError:
            raise WriteStalledError(f"nothing was sent for {self._write_idle_s:g} s") from None


def _namespace(value: bytes) -> Namespace:
    if len(value) != NAMESPACE_BYTES:
        raise InvalidRequestError(f"namespace: {len(value)} bytes instead of {NAMESPACE_BYTES}")
    return Namespace(value)


def _manifest_id(value: bytes) -> ManifestId:
    if len(value) != ID_BYTES:
        raise InvalidRequestError(f"manifest_id: {len(value)} bytes instead of {ID_BYTES}")
    return ManifestId(value)


def _page_keys(values: Iterable[bytes]) -> tuple[PageKey, ...]:
    keys = tuple(map(PageKey, values))
    if any(len(key) != ID_BYTES for key in keys):
        raise InvalidRequestError(f"page_keys: one has not {ID_BYTES} bytes")
    return keys


def _header(message: snapshot_pb2.WriteHeader) -> Header:
    return Header(
        namespace=_namespace(message.namespace),
        manifest_id=_manifest_id(message.manifest_id),
        parent_id=_manifest_id(message.parent_manifest_id) if message.HasField("parent_manifest_id") else None,
        round=message.round,
        is_head=message.is_head,
        token_count=message.token_count,
        resident_bytes=message.resident_bytes,
        page_keys=_page_keys(message.page_keys),
        tail_token_ids=message.tail_token_ids,
        has_boundary=message.has_boundary,
        tenant=message.tenant,
        page_tokens=message.page_tokens,
    )


def _incoming(message: snapshot_pb2.Chunk) -> IncomingChunk:
    match message.WhichOneof("owner"):
        case "page_key":
            owner, page_key = Owner.PAGE, PageKey(message.page_key)
        case "tail":
            owner, page_key = Owner.TAIL, None
        case "boundary":
            owner, page_key = Owner.BOUNDARY, None
        case _:
            raise InvalidRequestError("owner: a page_key, the tail or the boundary")
    return IncomingChunk(
        owner=owner,
        page_key=page_key,
        layer=message.layer,
        channel=message.channel,
        offset=message.offset,
        total=message.total,
        crc32c=message.crc32c,
        data=message.data,
        token_ids=message.token_ids if message.HasField("token_ids") else None,
    )


def _layers(message: snapshot_pb2.LayerRange) -> range:
    if not message.count:
        raise InvalidRequestError("layers.count: at least 1")
    return range(message.first, message.first + message.count)


def _partial_message(partial: Partial) -> snapshot_pb2.Partial:
    message = snapshot_pb2.Partial(tokens=partial.num_tokens)
    match partial.owner:
        case Page() as page:
            message.page_key, message.token_ids, message.bytes = page.key, page.token_ids, page.blob.data_bytes
        case Manifest() as manifest:
            message.manifest_id, message.token_ids = manifest.manifest_id, manifest.tail_token_ids
            message.bytes = 0 if manifest.tail is None else manifest.tail.data_bytes
    return message


def _batches(chunks: Sequence[ReadChunk]) -> Iterator[list[ReadChunk]]:
    """Chunks for one message each: about 1 MiB of data, or all where the data is elsewhere."""
    batch: list[ReadChunk] = []
    num_bytes = 0
    for chunk in chunks:
        size = 0 if chunk.data is None else len(chunk.data)
        if batch and num_bytes + size > MAX_CHUNK_BYTES:
            yield batch
            batch, num_bytes = [], 0
        batch.append(chunk)
        num_bytes += size
    if batch:
        yield batch


def _chunk_message(chunk: ReadChunk) -> snapshot_pb2.Chunk:
    head = chunk.head
    message = snapshot_pb2.Chunk(
        layer=head.layer,
        channel=head.channel,
        offset=head.offset,
        total=head.total,
        crc32c=chunk.crc32c,
        token_ids=chunk.token_ids,
    )
    if chunk.data is not None:
        message.data = bytes(chunk.data)
    else:
        message.placed.offset, message.placed.length = chunk.place, chunk.length
    match head.owner:
        case Owner.PAGE:
            message.page_key = head.owner_id
        case Owner.TAIL:
            message.tail.SetInParent()
        case Owner.BOUNDARY:
            message.boundary.SetInParent()
    return message


def _result(outcome: Outcome) -> snapshot_pb2.WriteResult:
    return snapshot_pb2.WriteResult(
        stored=outcome.dropped_reason is None,
        stored_bytes=outcome.stored_bytes,
        deduplicated_pages=outcome.deduplicated_pages,
        dropped_reason=outcome.dropped_reason or "",
    )


def _deleted(removed: Removed, num_records: int, record_bytes: int) -> snapshot_pb2.DeleteResponse:
    return snapshot_pb2.DeleteResponse(
        manifests=removed.manifests,
        pages=removed.pages,
        records=num_records,
        bytes=removed.num_bytes + record_bytes,
    )
