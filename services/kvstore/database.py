"""RocksDB as the store uses it: four families of rows, blocking calls in a named executor, errors, reopening.

Durability. Chunks (the family ``pages``) are written without WAL, as files of their own; rows are written through the
WAL and are durable when ``sync`` returns, and with them the chunks of every ``flush_pages`` before it. Calls that write
chunks hold the interpreter lock for about 0.7 ms/MiB, a chunk at a time. After a failed write every write is refused
until the database is reopened, while reads go on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from rocksdict import WriteBatch

from services.kvstore.chunk_log import ChunkLog
from services.kvstore.errors import DamagedBlockError, DatabaseError, DataDirectoryError, NoSpaceError
from services.kvstore.read_ahead import BlobPart, FileRange
from services.kvstore.rocks import FAMILIES, Family, Rocks, check_format, open_rocks
from services.kvstore.state import BlobId

__all__ = ["FAMILIES", "Batch", "Database", "Family"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


@dataclass(slots=True)
class Batch:
    """Rows that change together or not at all. Chunks may be among them, and are not part of that promise."""

    puts: list[tuple[Family, bytes, bytes]] = field(default_factory=list[tuple[Family, bytes, bytes]])
    deletes: list[tuple[Family, bytes]] = field(default_factory=list[tuple[Family, bytes]])

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Add a row."""
        self.puts.append((family, key, value))

    def delete(self, family: Family, key: bytes) -> None:
        """Remove a row, if it is there."""
        self.deletes.append((family, key))


class Database:
    """One open RocksDB. Methods block; call them through ``run``. Any thread may call any of them."""

    def __init__(self, directory: Path, io_threads: int) -> None:
        """Open or create. Raises DataDirectoryError naming the directory."""
        self._directory = directory
        self._idle = threading.Condition()
        self._num_users = 0
        self._unreadable: set[bytes] = set()
        self.generation = 0
        self.failure: str | None = None
        check_format(directory)
        self._rocks: Rocks | None = None
        self._open()
        self._executor = ThreadPoolExecutor(io_threads, thread_name_prefix="kvstore-io")

    @property
    def chunk_file_bytes(self) -> int:
        """What the chunks take on disk, deleted ones included whose space was not given back."""
        return self._log.file_bytes

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
            self._open()
            self.generation += 1
            self.failure = None

    def put_chunks(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Write chunks without WAL. They are kept in memory until a segment of them is full, or for ``flush_pages``."""
        with self._using(writing=True):
            self._log.put(rows)

    def flush_pages(self) -> None:
        """Make all chunks written so far durable with the next ``sync``."""
        with self._using(writing=True):
            self._log.flush()

    def delete_blobs(self, blob_ids: Iterable[BlobId]) -> None:
        """Forget chunks. Not durable by itself: after a crash they are orphans again."""
        with self._using(writing=True):
            self._log.delete(blob_ids)

    def reclaim(self, limit_bytes: int) -> bool:
        """Give the space of deleted blobs in one file back, at the cost of writing what is left in it.

        False when nothing is worth it; above ``limit_bytes`` of files, everything is.
        """
        with self._using(writing=True):
            return self._log.rewrite(limit_bytes)

    def write(self, batch: Batch) -> None:
        """Apply a batch through the WAL; durable after the next ``sync``."""
        with self._using(writing=True) as rocks:
            rows = WriteBatch(raw_mode=True)
            chunks: list[tuple[bytes, bytes]] = []
            for family, key, value in batch.puts:
                if family == "pages":
                    chunks.append((key, value))
                else:
                    rows.put(key, value, rocks.column_families[family])
            if chunks:
                self._log.put(chunks)
                self._log.flush()
            for family, key in batch.deletes:
                if family == "pages":
                    self._log.delete_chunk(key)
                else:
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
        """The value, if any. Raises DamagedBlockError where RocksDB finds its own block damaged."""
        return self.get_many(family, [key])[0]

    def get_many(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of their keys, None where there is none. Frees the interpreter lock while it reads.

        Raises DamagedBlockError where any of the blocks is damaged; ``get`` tells which.
        """
        with self._using(writing=False) as rocks:
            if family == "pages":
                return self._log.get_many(keys)
            return cast("list[bytes | None]", rocks.families[family].get(cast("list[Any]", list(keys))))

    def ranges(self, parts: Iterable[BlobPart]) -> list[FileRange]:
        """About where on disk parts of blobs lie, in this order."""
        with self._using(writing=False):
            return self._log.ranges(parts)

    def scan(self, family: Family, prefix: bytes, limit: int, after: bytes | None = None) -> list[tuple[bytes, bytes]]:
        """Up to ``limit`` rows whose key starts with ``prefix``, in key order, behind the key ``after``."""
        found: list[tuple[bytes, bytes]] = []
        with self._using(writing=False) as rocks:
            if family == "pages":
                return self._log.scan(prefix, limit, after)
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

    def blob_ids(self) -> set[BlobId]:
        """Every blob that has chunks, at no cost. One whose file is damaged is present, for its reader to find out."""
        with self._using(writing=False):
            return self._log.blob_ids()

    def clear(self, family: Family, prefix: bytes = b"") -> None:
        """Delete every row whose key starts with ``prefix``, without reading any; of ``pages``, all."""
        with self._using(writing=True) as rocks:
            if family == "pages":
                self._log.clear()
            else:
                rocks.families[family].delete_range(prefix, prefix + b"\xff" * 64)
            rocks.database.flush_wal(True)

    def _open(self) -> None:
        rocks = open_rocks(self._directory)
        try:
            self._log = ChunkLog(rocks, self._directory / "incoming", self._unreadable)
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
            rocks.close()
            raise DataDirectoryError(f"cannot open {self._directory}: {error}") from None
        self._rocks = rocks

    def _close(self) -> None:
        rocks, self._rocks = self._rocks, None
        if rocks is not None:
            del self._log
            rocks.close()

    @contextmanager
    def _using(self, *, writing: bool) -> Generator[Rocks]:
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
            if "Corruption" in str(error):
                raise DamagedBlockError(str(error)) from None
            raise DatabaseError(str(error)) from None
        finally:
            with self._idle:
                self._num_users -= 1
                self._idle.notify_all()
