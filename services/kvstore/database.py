"""RocksDB as the store uses it: four column families, blocking calls in a named executor, errors, reopening.

Durability. Chunks are written without WAL and become durable when ``flush_pages`` returns; rows are written through
the WAL and are durable when ``sync`` returns. Calls that write a value hold the interpreter lock for about 1 ms/MiB;
flushes release it. After a failed flush RocksDB refuses every write until it is reopened, while reads go on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, cast

from rocksdict import BlockBasedOptions, ColumnFamily, DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

from services.kvstore.errors import DatabaseError, DataDirectoryError, NoSpaceError
from services.kvstore.format import blob_range
from services.kvstore.state import ID_BYTES, BlobId

Family = Literal["pages", "manifests", "index", "records"]
FAMILIES: tuple[Family, ...] = ("pages", "manifests", "index", "records")
_FLUSH_BYTES = 32 * 2**20
_FORMAT_TEXT = "fencepost kvstore format 1\n"
_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(slots=True)
class Batch:
    """Rows that change together or not at all."""

    puts: list[tuple[Family, bytes, bytes]] = field(default_factory=list[tuple[Family, bytes, bytes]])
    deletes: list[tuple[Family, bytes]] = field(default_factory=list[tuple[Family, bytes]])

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Add a row."""
        self.puts.append((family, key, value))

    def delete(self, family: Family, key: bytes) -> None:
        """Remove a row, if it is there."""
        self.deletes.append((family, key))


@dataclass(slots=True)
class _Rocks:
    """Open handles; ``column_families`` are what batches want, ``families`` what everything else does.

    Emptied at close: after a failure close() alone does not unlock the directory, the last reference to a handle does,
    and tracebacks of failed calls still refer to this object.
    """

    database: Rdict
    families: dict[Family, Rdict]
    column_families: dict[Family, ColumnFamily]
    no_wal: WriteOptions


class Database:
    """One open RocksDB. Methods block; call them through ``run``. Any thread may call any of them."""

    def __init__(self, directory: Path, io_threads: int) -> None:
        """Open or create. Raises DataDirectoryError naming the directory."""
        self._directory = directory
        self._idle = threading.Condition()
        self._num_users = 0
        self._unflushed_bytes = 0
        self.generation = 0
        self.failure: str | None = None
        _check_format(directory)
        self._rocks: _Rocks | None = _open(directory)
        self._executor = ThreadPoolExecutor(io_threads, thread_name_prefix="kvstore-io")

    async def run(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call ``function`` on a database thread. It runs to its end even when the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Finish running calls and give the directory back."""
        self._executor.shutdown()
        self._close()

    def reopen(self) -> None:
        """Close and open again, after ``failure``; whatever was not durable is gone. Waits for running calls."""
        with self._idle:
            self._idle.wait_for(lambda: self._num_users == 0)
            self._close()
            self._rocks = _open(self._directory)
            self._unflushed_bytes = 0
            self.generation += 1
            self.failure = None

    def put_chunks(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Write chunks without WAL. Flushes now and then, because a full write buffer would stall with the
        interpreter lock held."""
        with self._using(writing=True) as rocks:
            for key, value in rows:
                rocks.families["pages"].put(key, value, write_opt=rocks.no_wal)
                self._unflushed_bytes += len(value)
            if self._unflushed_bytes >= _FLUSH_BYTES:
                self._unflushed_bytes = 0
                rocks.families["pages"].flush()

    def flush_pages(self) -> None:
        """Make all chunks written so far durable."""
        with self._using(writing=True) as rocks:
            self._unflushed_bytes = 0
            # Database.flush() would flush the default family only.
            rocks.families["pages"].flush()

    def delete_blobs(self, blob_ids: Iterable[BlobId]) -> None:
        """Forget chunks. Not durable by itself: after a crash they are orphans again."""
        with self._using(writing=True) as rocks:
            for blob_id in blob_ids:
                first, last = blob_range(blob_id)
                rocks.families["pages"].delete_range(first, last, write_opt=rocks.no_wal)

    def reclaim(self, blob_ids: Iterable[BlobId]) -> None:
        """Compact where deleted blobs were, so that their space goes back to the file system."""
        with self._using(writing=True) as rocks:
            rocks.families["pages"].flush()
            for blob_id in sorted(blob_ids):
                first, last = blob_range(blob_id)
                rocks.families["pages"].compact_range(first, last)

    def write(self, batch: Batch) -> None:
        """Apply a batch through the WAL; durable after the next ``sync``."""
        with self._using(writing=True) as rocks:
            rows = WriteBatch(raw_mode=True)
            for family, key, value in batch.puts:
                rows.put(key, value, rocks.column_families[family])
            for family, key in batch.deletes:
                rows.delete(key, rocks.column_families[family])
            rocks.database.write(rows)

    def sync(self) -> None:
        """Make all batches written so far durable."""
        with self._using(writing=True) as rocks:
            rocks.database.flush_wal(True)

    def write_durably(self, batch: Batch) -> None:
        """``write``, then ``sync``."""
        self.write(batch)
        self.sync()

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value, if any. Raises DatabaseError where RocksDB finds its own block damaged."""
        with self._using(writing=False) as rocks:
            return cast(bytes | None, rocks.families[family].get(key))

    def scan(self, family: Family, prefix: bytes, limit: int, after: bytes | None = None) -> list[tuple[bytes, bytes]]:
        """Up to ``limit`` rows whose key starts with ``prefix``, in key order, behind the key ``after``."""
        found: list[tuple[bytes, bytes]] = []
        with self._using(writing=False) as rocks:
            rows = rocks.families[family].iter()
            rows.seek(prefix if after is None or after < prefix else after + b"\0")
            while rows.valid() and len(found) < limit:
                key = cast(bytes, rows.key())
                if not key.startswith(prefix):
                    break
                found.append((key, cast(bytes, rows.value())))
                rows.next()
            rows.status()
        return found

    def blob_ids(self, known: Sequence[BlobId]) -> set[BlobId]:
        """Every blob that has chunks, at the cost of one seek each.

        Where RocksDB finds a block damaged, the ``known`` blob there (ascending) is taken to be present, for its reader
        to find out, and the walk goes on at the next known one.
        """
        found: set[BlobId] = set()
        start = b""
        with self._using(writing=False) as rocks:
            while True:
                rows = rocks.families["pages"].iter()
                rows.seek(start)
                while rows.valid():
                    found.add(blob_id := BlobId(cast(bytes, rows.key())[:ID_BYTES]))
                    start = blob_range(blob_id)[1]
                    rows.seek(start)
                try:
                    rows.status()
                    return found
                except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
                    _log.warning("a block of chunks is damaged: %s", error)
                at = bisect_left(known, start)
                if at == len(known):
                    return found
                found.add(known[at])
                start = blob_range(known[at])[1]

    def clear(self, family: Family, prefix: bytes = b"") -> None:
        """Delete every row whose key starts with ``prefix``, without reading any."""
        with self._using(writing=True) as rocks:
            rocks.families[family].delete_range(prefix, prefix + b"\xff" * 64)
            rocks.database.flush_wal(True)

    def _close(self) -> None:
        rocks, self._rocks = self._rocks, None
        if rocks is None:
            return
        # Families first: an open one keeps the directory locked.
        for handle in (*rocks.families.values(), rocks.database):
            try:
                handle.close()
            except Exception as error:  # noqa: BLE001 - after a failed flush close() reports that failure again
                _log.warning("closing the database: %s", error)
            del handle
        rocks.families.clear()
        rocks.column_families.clear()
        del rocks.database

    @contextmanager
    def _using(self, *, writing: bool) -> Generator[_Rocks]:
        with self._idle:
            self._num_users += 1
        try:
            if writing and self.failure is not None:
                raise DatabaseError(f"the database refuses writes: {self.failure}")
            if self._rocks is None:
                raise DatabaseError("the database is closed")
            yield self._rocks
        except DatabaseError:
            raise
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
            if writing:
                self.failure = str(error)
            if "No space left" in str(error):
                raise NoSpaceError(f"the disk is full: {error}") from None
            raise DatabaseError(str(error)) from None
        finally:
            with self._idle:
                self._num_users -= 1
                self._idle.notify_all()


def _open(directory: Path) -> _Rocks:
    """Raises DataDirectoryError."""
    try:
        database = _open_or_repair(directory / "rocksdb")
    except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
        if "LOCK" in str(error):
            raise DataDirectoryError(f"{directory} is in use by another process") from None
        raise DataDirectoryError(f"cannot open {directory}: {error}") from None
    no_wal = WriteOptions()
    # The stub declares a method where the binding has a property.
    cast(Any, no_wal).disable_wal = True
    return _Rocks(
        database,
        {name: database.get_column_family(name) for name in FAMILIES},
        {name: database.get_column_family_handle(name) for name in FAMILIES},
        no_wal,
    )


def _open_or_repair(path: Path) -> Rdict:
    families = {name: _family_options(name) for name in FAMILIES}
    try:
        return Rdict(str(path), _database_options(), column_families=families)
    except Exception as error:
        is_damaged = "Corruption" in str(error) or "No such file" in str(error)
        if not is_damaged or "LOCK" in str(error):
            raise
        # Rebuilds its bookkeeping from the tables that are whole; what is lost with the others is a shorter hit.
        _log.error("repairing %s: %s", path, error)
    Rdict.repair(str(path), _database_options())
    return Rdict(str(path), _database_options(), column_families=families)


def _check_format(directory: Path) -> None:
    """The file FORMAT says what wrote the directory; it is there before the database is."""
    marker = directory / "FORMAT"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if marker.exists():
            if marker.read_bytes() != _FORMAT_TEXT.encode():
                raise DataDirectoryError(
                    f"{directory} was written by another version (see its file FORMAT); move it away to start anew"
                )
        elif any(entry.name != "lost+found" for entry in directory.iterdir()):
            raise DataDirectoryError(f"{directory} is not empty and has no file FORMAT; it is not a data directory")
        else:
            marker.write_text(_FORMAT_TEXT)
    except OSError as error:
        raise DataDirectoryError(f"cannot use {directory}: {error.strerror}") from None


def _database_options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_keep_log_file_num(2)
    options.set_stats_dump_period_sec(0)
    # Bounds the log that a restart replays.
    options.set_max_total_wal_size(64 * 2**20)
    return options


def _family_options(name: Family) -> Options:
    options = Options(raw_mode=True)
    if name == "pages":
        options.set_compression_type(DBCompressionType.none())
        # Under churn blob files write less than half of what plain tables do and overshoot the cap by less; reading is
        # a fifth slower.
        options.set_enable_blob_files(True)
        options.set_min_blob_size(4_096)
        options.set_blob_file_size(64 * 2**20)
        options.set_enable_blob_gc(True)
        options.set_blob_gc_age_cutoff(0.25)
        options.set_blob_gc_force_threshold(0.5)
        options.set_write_buffer_size(2 * _FLUSH_BYTES)
        options.set_max_write_buffer_number(6)
        # A slowed write would sleep with the interpreter lock held.
        options.set_level_zero_slowdown_writes_trigger(1_000)
        options.set_level_zero_stop_writes_trigger(2_000)
        options.set_soft_pending_compaction_bytes_limit(0)
        options.set_hard_pending_compaction_bytes_limit(0)
        table = BlockBasedOptions()
        # The page cache of the system holds the files already.
        table.disable_cache()
        options.set_block_based_table_factory(table)
    return options
