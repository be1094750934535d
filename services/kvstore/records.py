"""Records: small values with an owner and a time to live.

Reads go straight to the database. Changes take a thread lock on a database thread, so that if_absent, replacing and
counting are atomic; durability is waited for outside of it, so that concurrent writers share a sync.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from services.kvstore import metrics
from services.kvstore.database import Batch
from services.kvstore.errors import (
    DamagedBlockError,
    DamageError,
    DatabaseError,
    InvalidRequestError,
    KvstoreError,
    RecordExistsError,
)
from services.kvstore.record_format import (
    HEAD_PREFIX,
    Head,
    Kind,
    decode_body,
    decode_head,
    encode_body,
    encode_head,
    head_key,
    record_bytes,
    record_prefix,
)
from services.kvstore.store import Store

_log = logging.getLogger(__name__)
MAX_KEY_BYTES = 512
MAX_VALUE_BYTES = 32 * 2**20
MAX_TENANT_BYTES = 1_024
MAX_BATCH_KEYS = 1_024
MAX_SCAN = 1_000
_DEFAULT_SCAN = 100
_MAX_TTL_MS = 100 * 365 * 86_400_000
_MAX_ANSWER_BYTES = 48 * 2**20
_ROWS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Record:
    """A value that has not expired."""

    key: bytes
    value: bytes
    remaining_ms: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Part of a scan; ``has_more`` says that more follow the last one."""

    records: Sequence[Record]
    has_more: bool


class RecordStore:
    """Every record of every tenant; no call sees another tenant's."""

    def __init__(self, store: Store, now_ms: Callable[[], int] = lambda: time.time_ns() // 10**6) -> None:
        """Records share the database, the budget and the counters of ``store``. Call ``recount`` before use."""
        self._store = store
        self._database = store.database
        self._now_ms = now_ms
        self._changing = threading.Lock()
        self._num_records = 0
        self._num_bytes = 0
        self._generation = 0

    @property
    def num_records(self) -> int:
        """Records held, expired ones that were not swept yet included."""
        return self._num_records

    @property
    def num_bytes(self) -> int:
        """Stored bytes of all of them."""
        return self._num_bytes

    async def recount(self) -> None:
        """Count what is stored."""
        await self._database.run(self._recount)
        self._publish()

    async def put(
        self, kind: Kind, tenant: str, key: bytes, value: bytes, ttl_ms: int | None, *, if_absent: bool
    ) -> None:
        """Store durably. Raises RecordExistsError, InvalidRequestError or NoSpaceError."""
        record_key = _record_key(kind, tenant, key)
        if len(value) > MAX_VALUE_BYTES:
            raise InvalidRequestError(f"value: {len(value)} bytes; at most {MAX_VALUE_BYTES} are allowed")
        if ttl_ms is not None and not 0 < ttl_ms <= _MAX_TTL_MS:
            raise InvalidRequestError("ttl_ms: must be between a millisecond and a hundred years")
        num_bytes = record_bytes(record_key, len(value))
        await self._store.reserve(num_bytes)
        try:
            if self._generation != self._database.generation:
                await self.recount()
            expires_ms = self._now_ms() + (self._default_ttl_ms(kind) if ttl_ms is None else ttl_ms)
            await self._store.background.shielded(
                self._database.run(self._put_durably, record_key, value, expires_ms, if_absent=if_absent)
            )
        finally:
            self._publish()
            self._store.unreserve(num_bytes)

    async def get(self, kind: Kind, tenant: str, key: bytes) -> Record | None:
        """The record, unless there is none or it has expired."""
        found = await self.get_many(kind, tenant, [key])
        return found[0] if found else None

    async def get_many(self, kind: Kind, tenant: str, keys: Sequence[bytes]) -> list[Record]:
        """Those that exist, in the order asked for. Raises InvalidRequestError when they exceed one answer."""
        if len(keys) > MAX_BATCH_KEYS:
            raise InvalidRequestError(f"keys: {len(keys)}; at most {MAX_BATCH_KEYS} are allowed")
        record_keys = [_record_key(kind, tenant, key) for key in keys]

        def read() -> list[Record]:
            found: list[Record] = []
            room = _MAX_ANSWER_BYTES
            for key, record_key in zip(keys, record_keys, strict=True):
                record = self._read(key, record_key)
                if record is not None:
                    found.append(record)
                    room -= len(record.value)
                    if room < 0:
                        raise InvalidRequestError("keys: their values do not fit into one answer; ask for fewer")
            return found

        return await self._database.run(read)

    async def delete(self, kind: Kind, tenant: str, key: bytes) -> bool:
        """Remove durably; whether it was there."""
        record_key = _record_key(kind, tenant, key)
        deleted = await self._store.background.shielded(self._database.run(self._delete_durably, [record_key]))
        self._publish()
        return deleted == 1

    async def delete_tenant(self, tenant: str) -> tuple[int, int]:
        """Remove all of a tenant's records; (records, bytes)."""
        before = self._num_bytes
        deleted = await self._store.background.shielded(self._database.run(self._delete_tenant, tenant))
        self._publish()
        return deleted, before - self._num_bytes

    async def scan(self, kind: Kind, tenant: str, prefix: bytes, limit: int, after: bytes | None) -> Listing:
        """Records whose key starts with ``prefix``, in key order; ``limit`` 0 means 100."""
        if limit > MAX_SCAN:
            raise InvalidRequestError(f"limit: {limit}; at most {MAX_SCAN} is allowed")
        if len(prefix) > MAX_KEY_BYTES or len(after or b"") > MAX_KEY_BYTES:
            raise InvalidRequestError(f"prefix, after: at most {MAX_KEY_BYTES} bytes")
        owned = _owned(kind, tenant)
        return await self._database.run(self._scan, owned, prefix, limit or _DEFAULT_SCAN, after)

    async def sweep(self) -> int:
        """Delete what has expired; how many that were."""
        deleted = await self._store.background.shielded(self._database.run(self._sweep))
        self._publish()
        return deleted

    async def sweep_forever(self) -> None:
        """Sweep now and then, and release leases whose time is up."""
        while True:
            await asyncio.sleep(self._store.limits.sweep_s)
            self._store.expire_leases()
            try:
                await self.sweep()
            except KvstoreError as error:
                _log.warning("could not sweep expired records: %s", error)

    def _default_ttl_ms(self, kind: Kind) -> int:
        limits = self._store.limits
        return int(1_000 * (limits.response_ttl_s if kind is Kind.RESPONSE else limits.replay_ttl_s))

    def _publish(self) -> None:
        self._store.budget.record_bytes = self._num_bytes
        metrics.RECORDS.set(self._num_records)

    def _read(self, key: bytes, record_key: bytes) -> Record | None:
        """A damaged record is one that is not there."""
        try:
            stored = self._database.get("records", record_key)
            if stored is None:
                return None
            expires_ms, value = decode_body(record_key, stored)
        except (DamageError, DamagedBlockError) as error:
            _log.warning("a record is unreadable: %s", error)
            self._store.counters.add("verify_failures", None)
            return None
        remaining_ms = expires_ms - self._now_ms()
        return Record(key, value, remaining_ms) if remaining_ms > 0 else None

    def _put_durably(self, record_key: bytes, value: bytes, expires_ms: int, *, if_absent: bool) -> None:
        with self._changing:
            old = self._head(record_key)
            if if_absent and old is not None and self._read(b"", record_key) is not None:
                raise RecordExistsError("the key is taken")
            new = Head(expires_ms, len(value))
            batch = Batch()
            batch.put("index", head_key(record_key), encode_head(new))
            batch.put("records", record_key, encode_body(record_key, expires_ms, value))
            self._database.write(batch)
            self._count(record_key, old, -1)
            self._count(record_key, new, +1)
        self._database.sync()

    def _delete_durably(self, record_keys: Sequence[bytes]) -> int:
        with self._changing:
            deleted = self._delete_now(record_keys)
        self._database.sync()
        return deleted

    def _delete_now(self, record_keys: Sequence[bytes]) -> int:
        heads = {key: self._head(key) for key in record_keys}
        batch = Batch()
        for key in heads:
            batch.delete("index", head_key(key))
            batch.delete("records", key)
        self._database.write(batch)
        for key, head in heads.items():
            self._count(key, head, -1)
        return sum(head is not None for head in heads.values())

    def _delete_tenant(self, tenant: str) -> int:
        deleted = 0
        for kind in Kind:
            for rows in self._heads(head_key(_owned(kind, tenant))):
                deleted += self._delete_durably([key for key, _ in rows])
        return deleted

    def _sweep(self) -> int:
        deleted, now_ms = 0, self._now_ms()
        for rows in self._heads(HEAD_PREFIX):
            if any(head is None or head.expires_ms <= now_ms for _, head in rows):
                with self._changing:
                    # Looked at again under the lock: a record may have been renewed.
                    heads = [(key, self._head(key)) for key, _ in rows]
                    deleted += self._delete_now([key for key, head in heads if head and head.expires_ms <= now_ms])
        return deleted

    def _scan(self, owned: bytes, prefix: bytes, limit: int, after: bytes | None) -> Listing:
        found: list[Record] = []
        room = _MAX_ANSWER_BYTES
        now_ms = self._now_ms()
        for rows in self._heads(head_key(owned + prefix), None if after is None else head_key(owned + after)):
            for record_key, head in rows:
                if head is None or head.expires_ms <= now_ms:
                    continue
                if len(found) == limit or (found and head.value_bytes > room):
                    return Listing(found, has_more=True)
                record = self._read(record_key[len(owned) :], record_key)
                if record is not None:
                    found.append(record)
                    room -= len(record.value)
        return Listing(found, has_more=False)

    def _heads(self, prefix: bytes, after: bytes | None = None) -> Iterator[list[tuple[bytes, Head | None]]]:
        """(record key, head) in batches; None for a damaged head."""
        while rows := self._database.scan("index", prefix, _ROWS_AT_ONCE, after):
            yield [(key[len(HEAD_PREFIX) :], _head(value)) for key, value in rows]
            after = rows[-1][0]

    def _head(self, record_key: bytes) -> Head | None:
        value = self._database.get("index", head_key(record_key))
        return None if value is None else _head(value)

    def _recount(self) -> None:
        with self._changing:
            self._generation = self._database.generation
            self._num_records = self._num_bytes = 0
            try:
                for rows in self._heads(HEAD_PREFIX):
                    for record_key, head in rows:
                        self._count(record_key, head, +1)
            except DatabaseError as error:
                # Their bodies can still be read.
                _log.error("some heads of records are unreadable: %s", error)
                self._store.counters.add("verify_failures", None)

    def _count(self, record_key: bytes, head: Head | None, sign: int) -> None:
        if head is not None:
            self._num_records += sign
            self._num_bytes += sign * record_bytes(record_key, head.value_bytes)


def _head(value: bytes) -> Head | None:
    try:
        return decode_head(value)
    except DamageError:
        return None


def _owned(kind: Kind, tenant: str) -> bytes:
    if not tenant or len(tenant.encode()) > MAX_TENANT_BYTES:
        raise InvalidRequestError(f"tenant: 1 to {MAX_TENANT_BYTES} bytes")
    return record_prefix(kind, tenant)


def _record_key(kind: Kind, tenant: str, key: bytes) -> bytes:
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise InvalidRequestError(f"key: {len(key)} bytes; 1 to {MAX_KEY_BYTES} are allowed")
    return _owned(kind, tenant) + key
