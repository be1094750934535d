"""What a Read will want next: parts in the order of reading, and the bytes of files that they stand for."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from services.kvstore.database import Database
from services.kvstore.format import chunk_key
from services.kvstore.read_ahead import BlobPart, FileRange, advise, parts
from services.kvstore.state import Blob, BlobId, Span

KIB, MIB = 2**10, 2**20


def blob(letter: str, layer_bytes: int, num_layers: int) -> Blob:
    return Blob(BlobId(letter.encode() * 16), tuple(Span(layer, 0, 0, layer_bytes) for layer in range(num_layers)))


def rows(blob: Blob) -> list[tuple[bytes, bytes]]:
    """Each layer is filled with a byte of its own."""
    return [
        (chunk_key(blob.blob_id, span), bytes([blob.blob_id[0] + 16 * span.layer & 255]) * span.length)
        for span in blob.spans
    ]


def store(database: Database, *blobs: Blob) -> None:
    database.put_chunks([row for one in blobs for row in rows(one)])
    database.flush_pages()


@pytest.fixture
def database(tmp_path: Path) -> Generator[Database]:
    found = Database(tmp_path / "kv", 1)
    yield found
    found.close()


def test_the_first_layers_of_all_blobs_come_before_the_next_ones() -> None:
    first, second = blob("a", MIB, 3), blob("b", MIB, 2)
    assert parts([first, second], None) == [
        BlobPart(first.blob_id, 0, MIB),
        BlobPart(second.blob_id, 0, MIB),
        BlobPart(first.blob_id, MIB, 2 * MIB),
        BlobPart(second.blob_id, MIB, 2 * MIB),
        BlobPart(first.blob_id, 2 * MIB, 3 * MIB),
    ]


def test_small_layers_are_asked_for_together() -> None:
    small = blob("a", 300 * KIB, 6)
    assert parts([small], None) == [
        BlobPart(small.blob_id, 0, 1_200 * KIB),
        BlobPart(small.blob_id, 1_200 * KIB, 1_800 * KIB),
    ]


def test_only_the_layers_of_the_read_are_asked_for() -> None:
    found = blob("a", MIB, 5)
    assert parts([found], range(2, 4)) == [
        BlobPart(found.blob_id, 2 * MIB, 3 * MIB),
        BlobPart(found.blob_id, 3 * MIB, 4 * MIB),
    ]
    assert parts([found], range(5, 9)) == parts([], None) == []


def test_a_part_lies_where_it_is_said_to(database: Database) -> None:
    blobs = [blob(letter, 256 * KIB, 8) for letter in "abcd"]
    store(database, *blobs)
    wanted = parts(blobs, range(4, 8))
    found = database.ranges(wanted)
    assert len(found) == len(wanted) == len(blobs)
    for one, place in zip(blobs, found, strict=True):
        with open(place.path, "rb") as file:
            file.seek(place.offset)
            read = file.read(place.num_bytes)
        of_layers = sum(read.count(value[:1]) for _, value in rows(one)[4:8])
        assert place.num_bytes == MIB
        # Envelopes, and what a file has beside its chunks, are not counted.
        assert of_layers > 0.95 * MIB
    advise(found)


def test_a_blob_in_two_files_is_read_ahead_in_both(database: Database) -> None:
    found = blob("a", 512 * KIB, 4)
    for half in (rows(found)[:2], rows(found)[2:]):
        database.put_chunks(half)
        database.flush_pages()
    first, second = database.ranges([BlobPart(found.blob_id, 512 * KIB, 3 * 512 * KIB)])
    assert first.path != second.path
    assert (first.offset, second.offset) == (512 * KIB, 0)
    assert abs(first.num_bytes + second.num_bytes - MIB) < 1 * KIB


def test_among_dead_chunks_whole_files_are_read_that_are_wanted_by_half(database: Database) -> None:
    blobs = [blob(letter, 256 * KIB, 4) for letter in "abcd"]
    store(database, *blobs)
    database.delete_blobs([blobs[0].blob_id])
    assert database.ranges(parts(blobs[1:2], None)) == []
    (whole,) = database.ranges(parts(blobs[1:], None))
    assert (whole.offset, whole.num_bytes) == (0, Path(whole.path).stat().st_size)
    assert database.ranges(parts(blobs[1:], range(2, 4))) == []


def test_what_is_not_on_disk_yet_or_any_more_is_left_out(database: Database, tmp_path: Path) -> None:
    found = blob("a", 256 * KIB, 2)
    database.put_chunks(rows(found))
    assert database.ranges(parts([found], None)) == []
    advise([FileRange(str(tmp_path / "gone.sst"), 0, MIB)])
