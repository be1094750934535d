"""The log of chunks: written as files that RocksDB takes over, read by key, rewritten where much of a file is dead.

A *segment* is what one flush wrote. Keys of the family ``pages`` are ``segment u64 | key of the chunk``, so files never
overlap and RocksDB has nothing to merge: each byte is written once. The family ``segments`` is the directory:
``segment u64 | blob id`` names what each segment holds of each blob, and how many bytes. A blob that the directory does
not name is dead, whatever the files hold.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from rocksdict import IngestExternalFileOptions, SstFileWriter, WriteBatch

from services.kvstore.chunk_directory import (
    BEHIND,
    KEY_BYTES,
    PIECE_SIZE,
    SEGMENT,
    ChunkFile,
    chunk_files,
    found_extents,
    found_pieces,
)
from services.kvstore.extents import PIECE_BYTES, SEGMENT_BYTES, Extent, Extents, Piece
from services.kvstore.read_ahead import BlobPart, FileRange
from services.kvstore.rocks import DIRECTORY, Rocks, page_options
from services.kvstore.state import ID_BYTES, BlobId

_Rows = dict[bytes, bytes]
_log = logging.getLogger(__name__)


class ChunkLog:
    """Of one open database. Any thread may call any method; what they raise is the caller's to translate.

    Handles are taken from ``Rocks`` at each use, because the last reference to one keeps the directory locked.
    """

    def __init__(self, rocks: Rocks, incoming: Path, unreadable: set[bytes]) -> None:
        """``incoming`` holds files that are being written; ``unreadable`` extents cannot be rewritten, and are left."""
        self._rocks = rocks
        self._incoming = incoming
        self._unreadable = unreadable
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._rewriting = threading.Lock()
        self._pending: dict[BlobId, _Rows] = {}
        self._pending_bytes = 0
        self._in_flight: dict[BlobId, _Rows] = {}
        self._pieces: dict[BlobId, tuple[Piece, ...]] = {}
        self._extents = Extents()
        self._files: list[ChunkFile] = []
        self._next_segment = 1
        incoming.mkdir(exist_ok=True)
        for leftover in incoming.iterdir():
            leftover.unlink()
        self._load(is_repaired=rocks.is_repaired)

    @property
    def file_bytes(self) -> int:
        """Bytes of all files."""
        return self._extents.file_bytes

    def blob_ids(self) -> set[BlobId]:
        """Every blob that has chunks."""
        with self._lock:
            return {*self._pieces, *self._pending, *self._in_flight}

    def put(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Keep chunks for the next flush, which comes when a segment is full."""
        with self._lock:
            for key, value in rows:
                self._pending.setdefault(BlobId(key[:ID_BYTES]), {})[key] = value
                self._pending_bytes += len(value)
            is_full = self._pending_bytes >= SEGMENT_BYTES
        if is_full:
            self.flush()

    def flush(self) -> None:
        """Make all chunks put so far durable, together with the next sync of the WAL."""
        with self._flushing:
            with self._lock:
                self._in_flight, self._pending, self._pending_bytes = self._pending, {}, 0
                rows = [row for blob in self._in_flight.values() for row in blob.items()]
                segment = SEGMENT.pack(self._next_segment)
                self._next_segment += 1
            if rows:
                self._write(segment, sorted(rows))

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in order; the interpreter lock is free while they are read."""
        found: list[bytes | None] = [None] * len(keys)
        wanted: list[bytes] = []
        places: list[int] = []
        with self._lock:
            for place, key in enumerate(keys):
                blob_id = BlobId(key[:ID_BYTES])
                for rows in (self._pending, self._in_flight):
                    if found[place] is None and blob_id in rows:
                        found[place] = rows[blob_id].get(key)
                if found[place] is None:
                    pieces = self._pieces.get(blob_id, ())
                    wanted += [piece[: SEGMENT.size] + key for piece in pieces]
                    places += [place] * len(pieces)
        if wanted:
            values = cast("list[bytes | None]", self._rocks.families["pages"].get(cast("list[Any]", wanted)))
            for place, value in zip(places, values, strict=True):
                # Of a chunk written twice the later one counts.
                found[place] = found[place] if value is None else value
        return found

    def ranges(self, parts: Iterable[BlobPart]) -> list[FileRange]:
        """About where parts of blobs lie, in this order.

        Where dead chunks may lie between, so that it is not known where a blob does, whole files stand in its stead:
        those that blobs fill at least half of, once, with the first parts.
        """
        ranges: list[FileRange] = []
        filled: Counter[str] = Counter()
        with self._lock:
            for part in parts:
                start = 0
                for piece in self._pieces.get(part.blob_id, ()):
                    place, path = self._extents.place(piece), self._path_of(piece)
                    first, stop = max(part.start, start), min(part.stop, start + place.num_bytes)
                    if place.offset is not None and first < stop:
                        ranges.append(FileRange(path, place.offset + first - start, stop - first))
                    elif place.offset is None and part.start == 0:
                        before = filled[path]
                        filled[path] += place.num_bytes
                        if 2 * before < place.file_bytes <= 2 * filled[path]:
                            ranges.append(FileRange(path, 0, place.file_bytes))
                    start += place.num_bytes
        return ranges

    def scan(self, prefix: bytes, limit: int, after: bytes | None) -> list[tuple[bytes, bytes]]:
        """Rows as ``Database.scan`` finds them."""
        found: list[tuple[bytes, bytes]] = []
        for blob_id in sorted(self.blob_ids()):
            if prefix[:ID_BYTES] == blob_id[: len(prefix)] and (after is None or blob_id >= after[:ID_BYTES]):
                keys = sorted({key for piece in self._pieces.get(blob_id, ()) for key in self._keys(piece)})
                keys = [key for key in keys if key.startswith(prefix) and (after is None or key > after)]
                rows = zip(keys, self.get_many(keys), strict=True)
                found += [(key, value) for key, value in rows if value is not None]
                if len(found) >= limit:
                    break
        return found[:limit]

    def delete(self, blob_ids: Iterable[BlobId]) -> None:
        """Forget blobs. Their bytes stay until their files are rewritten."""
        forgotten = WriteBatch(raw_mode=True)
        with self._lock:
            for blob_id in blob_ids:
                self._in_flight.pop(blob_id, None)
                pending = self._pending.pop(blob_id, {})
                self._pending_bytes -= sum(map(len, pending.values()))
                for piece in self._pieces.pop(blob_id, ()):
                    self._extents.discard(piece)
                    forgotten.delete(piece, self._rocks.column_families[DIRECTORY])
        if len(forgotten):
            self._rocks.database.write(forgotten)

    def delete_chunk(self, key: bytes) -> None:
        """Forget one chunk."""
        for piece in self._pieces.get(BlobId(key[:ID_BYTES]), ()):
            self._rocks.families["pages"].delete(piece[: SEGMENT.size] + key)

    def rewrite(self, limit_bytes: int) -> bool:
        """Give space back from one file, or some neighbours; False when that is not worth it.

        ``Extents.choose`` tells when. Raises when a file is unreadable; it is left as it is from then on.
        """
        with self._rewriting:
            with self._lock:
                run = self._extents.choose(limit_bytes, self._unreadable)
                if not run:
                    return False
                first, last = run[0].first, run[-1].last
                live_bytes = sum(extent.live_bytes for extent in run)
                live = sorted(piece for extent in run for piece in extent.live)
            try:
                self._compact(first, last, live)
            except Exception as error:
                if "Corruption" in str(error):
                    self._unreadable.update(extent.first for extent in run)
                raise
            with self._lock:
                self._extents.replace(run, live_bytes)
                self._files = []
            return True

    def clear(self) -> None:
        """Forget every blob without reading any."""
        self._rocks.families[DIRECTORY].delete_range(b"", b"\xff" * (PIECE_BYTES + 1))
        with self._lock:
            for pieces in self._pieces.values():
                for piece in pieces:
                    self._extents.discard(piece)
            self._pieces.clear()
            self._pending.clear()
            self._in_flight.clear()
            self._pending_bytes = 0

    def _write(self, segment: bytes, rows: list[tuple[bytes, bytes]]) -> None:
        path = self._incoming / f"{segment.hex()}.sst"
        sizes: defaultdict[BlobId, int] = defaultdict(int)
        try:
            writer = SstFileWriter(page_options())
            writer.open(str(path))
            for key, value in rows:
                writer[segment + key] = value
                sizes[BlobId(key[:ID_BYTES])] += KEY_BYTES + len(value)
            # The writer syncs with the interpreter lock held; after this it has little left to do.
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
            writer.finish()
            file_bytes = path.stat().st_size
            self._ingest(path)
        finally:
            path.unlink(missing_ok=True)
        batch = WriteBatch(raw_mode=True)
        with self._lock:
            self._extents.add(Extent(segment + rows[0][0], segment + rows[-1][0], file_bytes))
            self._files = []
            for blob_id, num_bytes in sizes.items():
                # Those that are gone were deleted meanwhile.
                if blob_id in self._in_flight:
                    piece = Piece(segment + blob_id)
                    batch.put(piece, PIECE_SIZE.pack(num_bytes), self._rocks.column_families[DIRECTORY])
                    self._extents.revive(piece, num_bytes)
                    self._pieces[blob_id] = (*self._pieces.get(blob_id, ()), piece)
            self._in_flight = {}
            self._rocks.database.write(batch)

    def _path_of(self, piece: Piece) -> str:
        """The file that holds it; "" where there is none."""
        # Listing them takes a while where there are thousands.
        self._files = self._files or chunk_files(self._rocks)
        index = bisect_right(self._files, piece + BEHIND, key=attrgetter("first")) - 1
        return self._rocks.database.path() + self._files[index].name if index >= 0 else ""

    def _ingest(self, path: Path) -> None:
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        self._rocks.families["pages"].ingest_external_file([str(path)], options)

    def _compact(self, first: bytes, last: bytes, live: Sequence[Piece]) -> None:
        """Rewrite the files from ``first`` to ``last`` without what lies between ``live`` pieces."""
        # The deletions become a file of their own, and what it overlaps is rewritten: so it begins before the first key
        # and ends behind the last. As no two files share a segment it overlaps no others.
        starts = [first[: PIECE_BYTES - 1], *(piece + BEHIND for piece in live)]
        ends = [*live, max(last, starts[-1]) + b"\0"]
        for start, end in zip(starts, ends, strict=True):
            self._rocks.families["pages"].delete_range(start, end, write_opt=self._rocks.no_wal)
        self._rocks.families["pages"].flush()
        self._rocks.families["pages"].compact_range(first, last)
        # compact_range does not tell that it failed; from then on every flush does.
        self._rocks.families["pages"].flush()

    def _load(self, *, is_repaired: bool) -> None:
        """What lies where, from the metadata of the files and the directory."""
        if is_repaired:
            # A repair sets files aside that no RocksDB has rewritten, because they name no family.
            lost = Path(self._rocks.database.path()) / "lost"
            for path in lost.glob("*.sst"):
                try:
                    self._ingest(path)
                except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
                    _log.warning("%s is lost: %s", path.name, error)
            shutil.rmtree(lost, ignore_errors=True)
        extents = found_extents(self._rocks)
        for extent in extents:
            self._next_segment = max(self._next_segment, 1 + SEGMENT.unpack_from(extent.last)[0])
            self._extents.add(extent)
        for piece, num_bytes in found_pieces(self._rocks, extents, is_repaired=is_repaired):
            self._next_segment = max(self._next_segment, 1 + SEGMENT.unpack_from(piece)[0])
            if self._extents.revive(piece, num_bytes):
                blob_id = BlobId(piece[SEGMENT.size :])
                self._pieces[blob_id] = (*self._pieces.get(blob_id, ()), piece)

    def _keys(self, piece: Piece) -> Iterator[bytes]:
        rows = self._rocks.families["pages"].iter()
        rows.seek(piece)
        while rows.valid() and (key := cast(bytes, rows.key())).startswith(piece):
            yield key[SEGMENT.size :]
            rows.next()
        rows.status()
