"""``RecordService`` on the wire: translation only."""

# ruff: noqa: N802 - methods are named as in the contract

from __future__ import annotations

from typing import Any

import grpc.aio
from fencepost.kvstore.v1 import record_pb2, record_pb2_grpc

from services.kvstore.errors import InvalidRequestError, RecordNotFoundError
from services.kvstore.record_format import Kind
from services.kvstore.records import Record, RecordStore

_Context = grpc.aio.ServicerContext[Any, Any]


class RecordServicer(record_pb2_grpc.RecordServiceServicer):
    """Answers from a RecordStore."""

    def __init__(self, records: RecordStore) -> None:
        self._records = records

    async def Put(self, request: record_pb2.PutRequest, context: _Context) -> record_pb2.PutResponse:
        ttl_ms = request.ttl_ms if request.HasField("ttl_ms") else None
        kind = _kind(request.kind)
        await self._records.put(kind, request.tenant, request.key, request.value, ttl_ms, if_absent=request.if_absent)
        return record_pb2.PutResponse()

    async def Get(self, request: record_pb2.GetRequest, context: _Context) -> record_pb2.GetResponse:
        record = await self._records.get(_kind(request.kind), request.tenant, request.key)
        if record is None:
            raise RecordNotFoundError("no such record")
        return record_pb2.GetResponse(value=record.value, remaining_ms=record.remaining_ms)

    async def BatchGet(self, request: record_pb2.BatchGetRequest, context: _Context) -> record_pb2.BatchGetResponse:
        records = await self._records.get_many(_kind(request.kind), request.tenant, list(request.keys))
        return record_pb2.BatchGetResponse(records=map(_message, records))

    async def Delete(
        self, request: record_pb2.RecordServiceDeleteRequest, context: _Context
    ) -> record_pb2.RecordServiceDeleteResponse:
        deleted = await self._records.delete(_kind(request.kind), request.tenant, request.key)
        return record_pb2.RecordServiceDeleteResponse(deleted=deleted)

    async def Scan(self, request: record_pb2.ScanRequest, context: _Context) -> record_pb2.ScanResponse:
        after = request.after if request.HasField("after") else None
        kind = _kind(request.kind)
        listing = await self._records.scan(kind, request.tenant, request.prefix, request.limit, after)
        return record_pb2.ScanResponse(records=map(_message, listing.records), has_more=listing.has_more)


def _kind(kind: record_pb2.RecordKind.ValueType) -> Kind:
    if kind == record_pb2.RECORD_KIND_RESPONSE:
        return Kind.RESPONSE
    if kind == record_pb2.RECORD_KIND_REPLAY:
        return Kind.REPLAY
    raise InvalidRequestError("kind: must be RESPONSE or REPLAY")


def _message(record: Record) -> record_pb2.Record:
    return record_pb2.Record(key=record.key, value=record.value, remaining_ms=record.remaining_ms)
