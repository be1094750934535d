"""``SnapshotService`` on the wire: translation only."""

# ruff: noqa: N802 - methods are named as in the contract

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
from fencepost.kvstore.v1 import snapshot_pb2, snapshot_pb2_grpc

from services.kvstore import snapshot_messages as messages
from services.kvstore.errors import InvalidRequestError, WriteStalledError
from services.kvstore.matching import TailQuery
from services.kvstore.reading import Order, ReadQuery, Skipped, read
from services.kvstore.records import RecordStore
from services.kvstore.shared_region import SharedRegion
from services.kvstore.state import LAYOUT_BYTES, TOKEN_BYTES
from services.kvstore.store import Store
from services.kvstore.writing import WriteSession

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
        found = self._store.match(
            messages.read_namespace(request.namespace), messages.read_page_keys(request.page_keys), tail, extras
        )
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
            response.partial.CopyFrom(messages.partial_message(partial))
        if found.lease_id is not None:
            response.lease_id = found.lease_id
            response.lease_ms = int(1_000 * self._store.limits.lease_s)
        return response

    async def Read(
        self, request: snapshot_pb2.ReadRequest, context: _Context
    ) -> AsyncIterator[snapshot_pb2.ReadResponse]:
        layer_major = request.layer_order == snapshot_pb2.LAYER_ORDER_LAYER_MAJOR
        query = ReadQuery(
            namespace=messages.read_namespace(request.namespace),
            page_keys=messages.read_page_keys(request.page_keys),
            manifest_id=messages.read_manifest_id(request.manifest_id) if request.HasField("manifest_id") else None,
            order=Order.LAYER_MAJOR if layer_major else Order.PAGE_MAJOR,
            layers=messages.read_layers(request.layers) if request.HasField("layers") else None,
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
                        for chunks in messages.batches(event):
                            yield snapshot_pb2.ReadResponse(chunks=map(messages.chunk_message, chunks))

    async def Write(
        self, request_iterator: AsyncIterator[snapshot_pb2.WriteRequest], context: _Context
    ) -> AsyncIterator[snapshot_pb2.WriteResponse]:
        first = await self._next(request_iterator)
        if first.WhichOneof("step") != "header":
            raise InvalidRequestError("step: the header comes first")
        session = WriteSession(self._store, messages.read_header(first.header))
        try:
            yield snapshot_pb2.WriteResponse(need=snapshot_pb2.Need(pages=session.needed))
            while (request := await self._next(request_iterator)).WhichOneof("step") == "chunk":
                await session.add(messages.read_chunk(request.chunk))
            if request.WhichOneof("step") != "commit":
                raise InvalidRequestError("step: chunks, then commit")
            outcome = await session.commit()
            yield snapshot_pb2.WriteResponse(result=messages.result_message(outcome))
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
                removed = await self._store.delete_namespace(messages.read_namespace(request.namespace))
            case "layout":
                if len(request.layout) != LAYOUT_BYTES:
                    raise InvalidRequestError(f"layout: {len(request.layout)} bytes instead of {LAYOUT_BYTES}")
                removed = await self._store.delete_layout(request.layout)
            case "manifest":
                manifest_id = messages.read_manifest_id(request.manifest.manifest_id)
                removed = await self._store.delete_manifest(
                    messages.read_namespace(request.manifest.namespace), manifest_id
                )
            case "tenant":
                num_records, record_bytes = await self._records.delete_tenant(request.tenant)
                removed = await self._store.delete_tenant(request.tenant)
            case _:
                raise InvalidRequestError("what: a namespace, a manifest, a tenant or a layout")
        return messages.deleted_message(removed, num_records, record_bytes)

    async def Stats(self, request: snapshot_pb2.StatsRequest, context: _Context) -> snapshot_pb2.StatsResponse:
        store = self._store
        namespace = messages.read_namespace(request.namespace) if request.HasField("namespace") else None
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
