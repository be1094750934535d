"""Records in the kvstore, so that a restart or another replica goes on with a conversation's exact ids.

Nothing here fails a request: what cannot be written or read costs an encoding, a count and a log line. Under each
record's id lies the record; under ``call:`` and a call's id lies the id of its record.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from fencepost.kvstore.v1 import record_pb2, record_pb2_grpc

from services import rpc
from services.receiving import answer_of
from services.tokenizer import metrics
from services.tokenizer.history.memory import MAX_SIBLINGS
from services.tokenizer.history.record import ID_BYTES, Record, RecordId, RecordKey, key_of, record_id
from services.tokenizer.history.record_format import MAX_RECORD_BYTES, RecordFormatError, decode_record, encode_record

MAX_BACKLOG_RECORDS = 256
MAX_BACKLOG_BYTES = 64 * 2**20

_KIND = record_pb2.RECORD_KIND_REPLAY
_MAX_CALL_KEY_BYTES = 512
_PUT_TIMEOUT_S = 5.0
_MAX_CONCURRENT_WRITES = 8
# A busy loop says later than the deadline that a read has timed out.
_SLACK_S = 0.5
_MAX_ABSENT = 10_000
# No retry changes these.
_FINAL = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the store is waited for, in seconds."""

    first_delay_s: float = 0.2
    """Before a failed write is tried again; doubled each time."""
    longest_delay_s: float = 5.0
    give_up_s: float = 300.0
    """A write that has not succeeded by then is lost."""
    pause_s: float = 1.0
    """After a failed read nothing is asked: a prompt has many segments, and each would wait in vain."""
    absent_s: float = 300.0
    """A place that had no record is not asked about again for so long."""
    close_s: float = 2.0
    """What writes get at the end."""


class RecordStore:
    """Belongs to one event loop; ``connect`` makes it. Only ``fetch_blocking`` is for other threads."""

    def __init__(self, channel: grpc.aio.Channel, ttl_s: float, patience: Patience) -> None:
        self._stub: Any = record_pb2_grpc.RecordServiceStub(channel)
        self._loop = asyncio.get_running_loop()
        self._ttl_ms = max(1, int(ttl_s * 1e3))
        self._patience = patience
        self._writing = asyncio.Semaphore(_MAX_CONCURRENT_WRITES)
        self._writes: dict[asyncio.Task[bool], tuple[str, RecordId, int]] = {}
        self._absent_until_s: OrderedDict[tuple[str, RecordKey], float] = OrderedDict()
        self._paused_until_s = 0.0
        self._is_failing = False

    async def store(self, tenant: str, key: RecordKey, record: Record, wait_s: float) -> bool:
        """Write a record, and say whether it is durable after at most ``wait_s``; what takes longer goes on behind.

        With a full backlog the record is dropped. Cancelling the caller leaves the write running.
        """
        value, stored_id = encode_record(record), record_id(key, record)
        if len(value) > MAX_RECORD_BYTES:
            return _lost("too_long")
        backlog_bytes = len(value) + sum(size for _, _, size in self._writes.values())
        if len(self._writes) >= MAX_BACKLOG_RECORDS or backlog_bytes > MAX_BACKLOG_BYTES:
            return _lost("dropped")
        self._absent_until_s.pop((tenant, key), None)
        values = {stored_id: value} | {_call_key(call.call_id): stored_id for call in record.calls}
        puts = [
            record_pb2.PutRequest(kind=_KIND, tenant=tenant, key=stored_key, value=stored, ttl_ms=self._ttl_ms)
            for stored_key, stored in values.items()
        ]
        write = self._loop.create_task(self._write(puts))
        self._writes[write] = (tenant, stored_id, len(value))
        metrics.RECORD_BACKLOG.set(len(self._writes))
        write.add_done_callback(self._forget)
        done, _ = await asyncio.wait({write}, timeout=wait_s)
        if not done:
            metrics.RECORD_CALLS.labels("put", "late").inc()
        return bool(done) and not write.cancelled() and write.result()

    async def find(
        self, tenant: str, key: RecordKey, timeout_s: float, call_id: str | None = None
    ) -> tuple[Record, ...]:
        """The records of a place, newest first; none where there are none or the store does not answer in time.

        Of a place with more than ``MAX_SIBLINGS`` some are left out, but not that of ``call_id``.
        """
        if self._is_known_absent(tenant, key):
            return ()
        end_s = self._loop.time() + timeout_s
        request = record_pb2.ScanRequest(kind=_KIND, tenant=tenant, prefix=key, limit=MAX_SIBLINGS)
        response = await self._read("find", self._stub.Scan, request, timeout_s)
        if response is None:
            return ()
        stored = sorted(response.records, key=lambda found: found.remaining_ms, reverse=True)
        records = [record for found in stored if (record := _decode(found.value)) is not None]
        if response.has_more and call_id is not None:
            called_id = await self.id_of_call(tenant, call_id, end_s - self._loop.time())
            if called_id is not None and key_of(called_id) == key:
                called = await self.get(tenant, called_id, end_s - self._loop.time())
                records[:0] = [] if called is None else [called]
        if not response.records:
            self._set_absent(tenant, key)
        metrics.RECORD_CALLS.labels("find", "done" if records else "absent").inc()
        return tuple(records)

    def fetch_blocking(
        self, tenant: str, key: RecordKey, timeout_s: float, call_id: str | None = None
    ) -> tuple[Record, ...]:
        """``find`` for other threads, while the loop runs; never call it on the loop's own thread."""
        finding = self.find(tenant, key, timeout_s, call_id)
        try:
            future = asyncio.run_coroutine_threadsafe(finding, self._loop)
        except RuntimeError:  # the loop is closed
            finding.close()
            return ()
        try:
            return future.result(timeout_s + _SLACK_S)
        except TimeoutError:
            future.cancel()
            metrics.RECORD_CALLS.labels("find", "failed").inc()
        except CancelledError:
            pass
        return ()

    async def get(self, tenant: str, record_id: RecordId, timeout_s: float) -> Record | None:
        """One record; None where there is none or the store does not answer in time."""
        value = await self._get("get", tenant, record_id, timeout_s)
        return None if value is None else _decode(value)

    async def id_of_call(self, tenant: str, call_id: str, timeout_s: float) -> RecordId | None:
        """The record that a call belongs to: only a hint, as the client may show the call at another place."""
        key = _call_key(call_id)
        if len(key) > _MAX_CALL_KEY_BYTES:
            return None
        value = await self._get("hint", tenant, key, timeout_s)
        return RecordId(value) if value is not None and len(value) == ID_BYTES else None

    async def delete(self, tenant: str, record_id: RecordId, timeout_s: float) -> bool:
        """Remove a record, and what of it waits to be written; False when the store does not answer in time."""
        for write, (owner, written_id, _) in self._writes.items():
            if (owner, written_id) == (tenant, record_id):
                write.cancel()
        request = record_pb2.RecordServiceDeleteRequest(kind=_KIND, tenant=tenant, key=record_id)
        try:
            await answer_of(self._stub.Delete(request, timeout=timeout_s))
        except grpc.aio.AioRpcError as error:
            self._note_failure("delete", error)
            return False
        metrics.RECORD_CALLS.labels("delete", "done").inc()
        return True

    async def close(self) -> None:
        """Give waiting writes a little time, then end them."""
        if self._writes:
            await asyncio.wait(self._writes, timeout=self._patience.close_s)
        for write in self._writes:
            write.cancel()
        await asyncio.gather(*self._writes, return_exceptions=True)

    async def _write(self, puts: Sequence[record_pb2.PutRequest]) -> bool:
        """Put until all are stored; putting one again does no harm."""
        end_s, delay_s = self._loop.time() + self._patience.give_up_s, self._patience.first_delay_s
        try:
            while True:
                try:
                    async with self._writing:
                        await asyncio.gather(*(answer_of(self._stub.Put(put, timeout=_PUT_TIMEOUT_S)) for put in puts))
                except grpc.aio.AioRpcError as error:
                    self._note_failure("put", error)
                    if error.code() in _FINAL or self._loop.time() + delay_s > end_s:
                        return _lost("lost")
                else:
                    self._note_success()
                    metrics.RECORD_CALLS.labels("put", "done").inc()
                    return True
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, self._patience.longest_delay_s)
        except asyncio.CancelledError:
            _lost("lost")
            raise

    async def _get(self, call: str, tenant: str, key: bytes, timeout_s: float) -> bytes | None:
        response = await self._read(
            call, self._stub.Get, record_pb2.GetRequest(kind=_KIND, tenant=tenant, key=key), timeout_s
        )
        if response is None:
            return None
        metrics.RECORD_CALLS.labels(call, "done").inc()
        return response.value

    async def _read(self, call: str, method: Any, request: Any, timeout_s: float) -> Any:
        """The response; None, counted, where there is none."""
        if timeout_s <= 0 or self._loop.time() < self._paused_until_s:
            metrics.RECORD_CALLS.labels(call, "skipped").inc()
            return None
        try:
            response = await answer_of(method(request, timeout=timeout_s))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                metrics.RECORD_CALLS.labels(call, "absent").inc()
                return None
            if error.code() not in _FINAL:
                self._paused_until_s = self._loop.time() + self._patience.pause_s
            self._note_failure(call, error)
            return None
        self._note_success()
        return response

    def _note_failure(self, call: str, error: grpc.aio.AioRpcError) -> None:
        metrics.RECORD_CALLS.labels(call, "failed").inc()
        # Once, not for every segment of every prompt.
        level = logging.DEBUG if self._is_failing else logging.WARNING
        _log.log(level, "records cannot be used (%s): %s", call, rpc.failure_of(error).message)
        self._is_failing = True

    def _note_success(self) -> None:
        if self._is_failing:
            _log.info("records can be used again")
        self._is_failing = False

    def _forget(self, write: asyncio.Task[bool]) -> None:
        del self._writes[write]
        metrics.RECORD_BACKLOG.set(len(self._writes))

    def _is_known_absent(self, tenant: str, key: RecordKey) -> bool:
        return self._absent_until_s.get((tenant, key), 0.0) > self._loop.time()

    def _set_absent(self, tenant: str, key: RecordKey) -> None:
        """Every turn asks for all segments that have no record: a history from elsewhere has only such."""
        self._absent_until_s[tenant, key] = self._loop.time() + self._patience.absent_s
        self._absent_until_s.move_to_end((tenant, key))
        if len(self._absent_until_s) > _MAX_ABSENT:
            self._absent_until_s.popitem(last=False)


@asynccontextmanager
async def connect(address: str, ttl_s: float, patience: Patience = Patience()) -> AsyncGenerator[RecordStore]:
    """A client of the kvstore at ``address``, which need not be there yet; records live for ``ttl_s``."""
    async with rpc.open_channel(address) as channel:
        store = RecordStore(channel, ttl_s, patience)
        try:
            yield store
        finally:
            await store.close()


def _call_key(call_id: str) -> bytes:
    return b"call:" + call_id.encode()


def _lost(outcome: str) -> bool:
    metrics.RECORD_CALLS.labels("put", outcome).inc()
    _log.debug("a record is not stored: %s", outcome)
    return False


def _decode(value: bytes) -> Record | None:
    try:
        return decode_record(value)
    except RecordFormatError as error:
        metrics.RECORD_CALLS.labels("find", "malformed").inc()
        _log.warning("a stored record is unreadable: %s", error)
        return None
