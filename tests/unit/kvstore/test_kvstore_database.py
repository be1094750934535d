"""Chunks on a real RocksDB: what is put comes back, each byte is written once, and deleted bytes leave the disk."""

from __future__ import annotations

import random
import struct
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.kvstore.background import Background
from services.kvstore.database import Batch, Database
from services.kvstore.errors import DatabaseError
from services.kvstore.extents import SEGMENT_BYTES, Extent, Extents, Piece
from services.kvstore.format import chunk_key
from services.kvstore.garbage import Garbage
from services.kvstore.state import BlobId, Span

KIB, MIB = 2**10, 2**20
NEVER, ALWAYS = 2**60, 0


def blob(number: int, num_chunks: int = 16, chunk_bytes: int = 64 * KIB) -> tuple[BlobId, list[tuple[bytes, bytes]]]:
    """Random chunks of a blob."""
    blob_id = BlobId(number.to_bytes(16, "big"))
    rng = random.Random(number)
    spans = [Span(layer, 0, 0, chunk_bytes) for layer in range(num_chunks)]
    return blob_id, [(chunk_key(blob_id, span), rng.randbytes(chunk_bytes)) for span in spans]


@contextmanager
def opened(directory: Path) -> Generator[Database]:
    database = Database(directory, 2)
    try:
        yield database
    finally:
        database.close()


def files(directory: Path) -> list[Path]:
    """Files that hold chunks: they are larger than those of rows here."""
    return [path for path in (directory / "rocksdb").glob("*.sst") if path.stat().st_size > 32 * KIB]


def commit(database: Database, rows: list[tuple[bytes, bytes]]) -> None:
    database.put_chunks(rows)
    database.flush_pages()
    database.write_durably(Batch())


def check(database: Database, rows: list[tuple[bytes, bytes]]) -> None:
    assert database.get_many("pages", [key for key, _ in rows]) == [value for _, value in rows]


def test_values_come_in_the_order_asked_for_and_none_where_there_is_none(tmp_path: Path) -> None:
    with opened(tmp_path / "kv") as database:
        (_, first), (_, second), (_, absent) = blob(1), blob(2), blob(3)
        commit(database, first)
        database.put_chunks(second)
        rows = [*first, *second, *[(key, None) for key, _ in absent]]
        random.Random(0).shuffle(rows)
        assert database.get_many("pages", [key for key, _ in rows]) == [value for _, value in rows]
        assert database.get("pages", first[3][0]) == first[3][1]
        batch = Batch()
        batch.put("index", b"a", b"1")
        database.write_durably(batch)
        assert database.get_many("index", [b"b", b"a"]) == [None, b"1"]


def test_blob_that_several_flushes_wrote_is_read_as_one(tmp_path: Path) -> None:
    blobs = [blob(number) for number in range(4)]
    with opened(tmp_path / "kv") as database:
        for start in range(0, 16, 4):
            commit(database, [row for _, rows in blobs for row in rows[start : start + 4]])
    with opened(tmp_path / "kv") as database:
        assert database.blob_ids() == {blob_id for blob_id, _ in blobs}
        for _, rows in blobs:
            check(database, rows)
        database.delete_blobs([blobs[1][0]])
        assert database.get_many("pages", [key for key, _ in blobs[1][1]]) == [None] * 16
        while database.reclaim(ALWAYS):
            pass
        check(database, blobs[2][1])
        assert database.scan("pages", blobs[3][0], 100) == blobs[3][1]


def test_chunk_changed_or_deleted_by_itself_leaves_the_others(tmp_path: Path) -> None:
    (_, first), (_, second) = blob(1), blob(2)
    with opened(tmp_path / "kv") as database:
        commit(database, [*first, *second])
        batch = Batch()
        batch.put("pages", first[2][0], b"other")
        batch.delete("pages", first[5][0])
        database.write_durably(batch)
    with opened(tmp_path / "kv") as database:
        values = [value for _, value in first]
        values[2] = b"other"
        assert database.get_many("pages", [key for key, _ in first]) == [*values[:5], None, *values[6:]]
        check(database, second)


def test_what_was_not_committed_is_no_blob_of_the_next_start(tmp_path: Path) -> None:
    (kept, rows), (_, lost) = blob(1), blob(2)
    with opened(tmp_path / "kv") as database:
        commit(database, rows)
        database.put_chunks(lost)
        (tmp_path / "kv" / "incoming" / "left.sst").write_bytes(b"half")
    with opened(tmp_path / "kv") as database:
        assert database.blob_ids() == {kept}
        assert not list((tmp_path / "kv" / "incoming").iterdir())


def test_every_blob_of_many_files_is_found_at_the_next_start(tmp_path: Path) -> None:
    blobs = [blob(number, 2, 1_000) for number in range(40)]
    with opened(tmp_path / "kv") as database:
        for _, rows in blobs:
            commit(database, rows)
    with opened(tmp_path / "kv") as database:
        assert database.blob_ids() == {blob_id for blob_id, _ in blobs}
        check(database, [row for _, rows in blobs for row in rows])


def test_flush_writes_each_segment_as_one_file(tmp_path: Path) -> None:
    with opened(tmp_path / "kv") as database:
        for number in range(5):
            commit(database, blob(number)[1])
        assert len(files(tmp_path / "kv")) == 5
        assert not database.reclaim(ALWAYS)
        assert database.chunk_file_bytes == sum(path.stat().st_size for path in files(tmp_path / "kv"))


@pytest.mark.parametrize("is_reopened", [False, True])
def test_file_that_is_all_dead_leaves_the_disk(tmp_path: Path, is_reopened: bool) -> None:
    blobs = [blob(number) for number in range(6)]
    database = Database(tmp_path / "kv", 2)
    for _, rows in blobs:
        commit(database, rows)
    database.delete_blobs([blob_id for blob_id, _ in blobs[:4]])
    if is_reopened:
        database.close()
        database = Database(tmp_path / "kv", 2)
    assert database.blob_ids() == {blob_id for blob_id, _ in blobs[4:]}
    num_reclaimed = 0
    while database.reclaim(NEVER):
        num_reclaimed += 1
    assert num_reclaimed == 4
    check(database, [row for _, rows in blobs[4:] for row in rows])
    database.close()
    assert len(files(tmp_path / "kv")) == 2


def test_live_blobs_stay_where_their_file_is_rewritten(tmp_path: Path) -> None:
    blobs = [blob(number, 16, 512 * KIB) for number in range(24)]
    rng = random.Random(1)
    with opened(tmp_path / "kv") as database:
        for start in range(0, 24, 4):
            commit(database, [row for _, rows in blobs[start : start + 4] for row in rows])
        full = database.chunk_file_bytes
        dead = {blob_id for blob_id, _ in rng.sample(blobs, 16)}
        database.delete_blobs(dead)
        while database.reclaim(ALWAYS):
            pass
        # Less than a segment may stay dead.
        assert full // 3 <= database.chunk_file_bytes < full // 3 + SEGMENT_BYTES + MIB
    with opened(tmp_path / "kv") as database:
        assert database.blob_ids() == {blob_id for blob_id, _ in blobs} - dead
        for blob_id, rows in blobs:
            if blob_id not in dead:
                check(database, rows)


def test_damaged_file_is_left_and_the_others_are_still_rewritten(tmp_path: Path) -> None:
    blobs = [blob(number) for number in range(4)]
    with opened(tmp_path / "kv") as database:
        for _, rows in blobs:
            commit(database, rows)
    # The first file is the first one written.
    path = min(files(tmp_path / "kv"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with opened(tmp_path / "kv") as database:
        # Chunks have a checksum of their own, so reads are not checked by RocksDB.
        assert sum(database.get("pages", key) != value for key, value in blobs[0][1]) == 1
        database.delete_blobs([blob_id for blob_id, _ in blobs[:3]])
        failures: list[str] = []
        for _ in range(10):
            try:
                if not database.reclaim(NEVER):
                    break
            except DatabaseError as error:
                failures.append(str(error))
                database.reopen()
        assert ["Corruption" in failure for failure in failures] == [True]
        check(database, blobs[3][1])
        commit(database, (new := blob(9))[1])
        check(database, new[1])
    assert len(files(tmp_path / "kv")) == 3


def test_directory_is_rebuilt_after_a_repair(tmp_path: Path) -> None:
    blobs = [blob(number) for number in range(3)]
    with opened(tmp_path / "kv") as database:
        for _, rows in blobs:
            commit(database, rows)
    (tmp_path / "kv" / "rocksdb" / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    with opened(tmp_path / "kv") as database:
        assert database.blob_ids() == {blob_id for blob_id, _ in blobs}
        check(database, [row for _, rows in blobs for row in rows])
        commit(database, (new := blob(7))[1])
        check(database, new[1])


async def test_discarded_bytes_leave_the_disk_and_written_ones_are_written_once(tmp_path: Path) -> None:
    with opened(tmp_path / "kv") as database:
        background = Background()
        garbage = Garbage(database, background, 48 * MIB)
        live: list[tuple[BlobId, list[tuple[bytes, bytes]]]] = []
        rng = random.Random(2)
        for number in range(160):
            live.append(blob(number, 8, 256 * KIB))
            await database.run(commit, database, live[-1][1])
            gone = [live.pop(rng.randrange(len(live)))] if len(live) > 24 else []
            await garbage.discard([blob_id for blob_id, _ in gone])
        await background.settle()
        assert database.chunk_file_bytes < (48 + 80 + 2) * MIB
        for _, rows in live:
            check(database, rows)


def extent(segment: int, num_bytes: int, live_bytes: int) -> Extent:
    """A file of one segment with one live piece."""
    prefix = struct.pack(">Q", segment)
    first, last = prefix + bytes(32), prefix + b"\xff" * 32
    return Extent(first, last, num_bytes, {Piece(first[:24]): live_bytes}, live_bytes)


def test_many_small_files_are_merged_with_neighbours() -> None:
    extents = Extents()
    for segment in range(3_000):
        extents.add(extent(segment, 64 * KIB, 64 * KIB))
    num_written = 0
    while run := extents.choose(NEVER, set()):
        num_written += sum(file.live_bytes for file in run)
        extents.replace(run, sum(file.live_bytes for file in run))
    assert num_written < 3_000 * 64 * KIB
    assert extents.live_bytes == extents.file_bytes == 3_000 * 64 * KIB
