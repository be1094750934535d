"""Small values that outlive a request: stored responses, by tenant and key.

In the kvstore any gateway finds them after any restart. Without one they live in this process, within a budget.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio
from fencepost.kvstore.v1 import record_pb2, record_pb2_grpc

from services import rpc
from services.gateway.errors import BadRequestError, GatewayError, InternalError, UnavailableError
from services.receiving import answer_of

MEMORY_BYTES = 64 * 2**20
MAX_VALUE_BYTES = 32 * 2**20
"""Of one record in the kvstore."""

_TIMEOUT_S = 10.0
_MAX_KEYS = 1024
_KIND = record_pb2.RECORD_KIND_RESPONSE


@dataclass(frozen=True, slots=True)
class Record:
    """A value, and the seconds until it expires."""

    value: bytes
    remaining_s: float


class Records(Protocol):
    """What is kept. No call sees another tenant's. All raise GatewayError where the store does not answer."""

    async def put(self, tenant: str, key: str, value: bytes, ttl_s: float) -> None:
        """Keep ``value`` for ``ttl_s`` seconds in place of what was there."""
        ...

    async def get(self, tenant: str, keys: Sequence[str]) -> dict[str, Record]:
        """Those of the keys that are there."""
        ...

    async def delete(self, tenant: str, key: str) -> bool:
        """Whether it was there."""
        ...


@asynccontextmanager
async def connect(address: str) -> AsyncGenerator[Records]:
    """The records of the kvstore at ``address``; an empty one means this process's own."""
    if not address:
        yield MemoryRecords(MEMORY_BYTES)
        return
    async with rpc.open_channel(address) as channel:
        yield KvstoreRecords(channel)


class KvstoreRecords:
    """In the kvstore."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub: Any = record_pb2_grpc.RecordServiceStub(channel)

    async def put(self, tenant: str, key: str, value: bytes, ttl_s: float) -> None:
        if len(value) > MAX_VALUE_BYTES:
            raise BadRequestError(
                f"The response and its input are too large to be stored: {len(value)} bytes, and at most "
                f"{MAX_VALUE_BYTES} are allowed; ask with 'store': false.",
                param="store",
            )
        request = record_pb2.PutRequest(
            kind=_KIND, tenant=tenant, key=key.encode(), value=value, ttl_ms=max(1, int(ttl_s * 1e3))
        )
        await _answer(self._stub.Put(request, timeout=_TIMEOUT_S))

    async def get(self, tenant: str, keys: Sequence[str]) -> dict[str, Record]:
        found: dict[str, Record] = {}
        for start in range(0, len(keys), _MAX_KEYS):
            encoded = [key.encode() for key in keys[start : start + _MAX_KEYS]]
            for record in await self._batch(tenant, encoded):
                found[record.key.decode()] = Record(record.value, record.remaining_ms / 1e3)
        return found

    async def delete(self, tenant: str, key: str) -> bool:
        request = record_pb2.RecordServiceDeleteRequest(kind=_KIND, tenant=tenant, key=key.encode())
        return (await _answer(self._stub.Delete(request, timeout=_TIMEOUT_S))).deleted

    async def _batch(self, tenant: str, keys: Sequence[bytes]) -> list[record_pb2.Record]:
        request = record_pb2.BatchGetRequest(kind=_KIND, tenant=tenant, keys=keys)
        try:
            return list((await answer_of(self._stub.BatchGet(request, timeout=_TIMEOUT_S))).records)
        except grpc.aio.AioRpcError as failed:
            if failed.code() is not grpc.StatusCode.INVALID_ARGUMENT or len(keys) == 1:
                raise _translated(failed) from None
        # Together they are more than one answer holds.
        half = len(keys) // 2
        return [*await self._batch(tenant, keys[:half]), *await self._batch(tenant, keys[half:])]


class MemoryRecords:
    """In this process; the oldest go when ``budget_bytes`` are passed."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._used_bytes = 0
        self._kept: OrderedDict[tuple[str, str], tuple[bytes, float]] = OrderedDict()

    async def put(self, tenant: str, key: str, value: bytes, ttl_s: float) -> None:
        self._drop((tenant, key))
        self._kept[tenant, key] = value, time.monotonic() + ttl_s
        self._used_bytes += len(value)
        while self._used_bytes > self._budget_bytes:
            self._drop(next(iter(self._kept)))

    async def get(self, tenant: str, keys: Sequence[str]) -> dict[str, Record]:
        now_s = time.monotonic()
        found: dict[str, Record] = {}
        for key in keys:
            value, end_s = self._kept.get((tenant, key), (b"", now_s))
            if end_s > now_s:
                found[key] = Record(value, end_s - now_s)
            else:
                self._drop((tenant, key))
        return found

    async def delete(self, tenant: str, key: str) -> bool:
        is_there = key in await self.get(tenant, [key])
        self._drop((tenant, key))
        return is_there

    def _drop(self, owner_and_key: tuple[str, str]) -> None:
        value, _ = self._kept.pop(owner_and_key, (b"", 0.0))
        self._used_bytes -= len(value)


async def _answer(call: Any) -> Any:
    try:
        return await answer_of(call)
    except grpc.aio.AioRpcError as failed:
        raise _translated(failed) from None


def _translated(failed: grpc.aio.AioRpcError) -> GatewayError:
    failure = rpc.failure_of(failed)
    if failure.code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED):
        return InternalError()
    return UnavailableError(
        "Stored responses cannot be read or written now; try again shortly.", retry_after_s=failure.retry_after_s
    )
