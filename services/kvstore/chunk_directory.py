"""Which files there are, and what each segment holds of each blob: read from the directory, or from the chunks.

The family ``segments`` is the directory of `ChunkLog`: ``segment u64 | blob id`` names a piece, its value says how many
bytes it has.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from rocksdict import WriteBatch

from services.kvstore.extents import PIECE_BYTES, Extent, Piece
from services.kvstore.format import CHUNK_KEY_BYTES
from services.kvstore.rocks import DIRECTORY, Rocks

SEGMENT = struct.Struct(">Q")
PIECE_SIZE = struct.Struct("<Q")
KEY_BYTES = SEGMENT.size + CHUNK_KEY_BYTES
BEHIND = b"\xff" * (KEY_BYTES - PIECE_BYTES + 1)
"""Behind a piece: greater than every key that begins with it."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChunkFile:
    """A file of chunks and the keys that it spans, both included."""

    first: bytes
    last: bytes
    name: str
    num_bytes: int


def chunk_files(rocks: Rocks) -> list[ChunkFile]:
    """By first key."""
    found = [
        ChunkFile(
            cast(bytes, file["start_key"]),
            cast(bytes, file["end_key"]),
            cast(str, file["name"]),
            cast(int, file["size"]),
        )
        for file in rocks.families["pages"].live_files()
        # Files of all families come here, and those of deletions; no other keys are like these.
        if len(file["start_key"]) == len(file["end_key"]) == KEY_BYTES and not file["start_key"][0]
    ]
    return sorted(found, key=lambda file: file.first)


def found_extents(rocks: Rocks) -> list[Extent]:
    """The files, those that overlap as one."""
    extents: list[Extent] = []
    for file in chunk_files(rocks):
        if extents and file.first <= extents[-1].last:
            # A chunk deleted by itself lies above the file that holds it.
            extents[-1].last = max(file.last, extents[-1].last)
            extents[-1].file_bytes += file.num_bytes
        else:
            extents.append(Extent(file.first, file.last, file.num_bytes))
    return extents


def found_pieces(rocks: Rocks, extents: Sequence[Extent], *, is_repaired: bool) -> list[tuple[Piece, int]]:
    """Every piece and its bytes. Where the directory is not to be trusted it is made anew from the chunks."""
    if not is_repaired:
        try:
            return list(_entries(rocks))
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
            _log.error("the directory of chunks is unreadable: %s", error)
    return _rebuilt(rocks, extents)


def _entries(rocks: Rocks) -> Iterator[tuple[Piece, int]]:
    rows = rocks.families[DIRECTORY].iter()
    rows.seek(b"")
    while rows.valid():
        piece, size = cast(bytes, rows.key()), cast(bytes, rows.value())
        if len(piece) == PIECE_BYTES and len(size) == PIECE_SIZE.size:
            yield Piece(piece), PIECE_SIZE.unpack(size)[0]
        rows.next()
    rows.status()


def _rebuilt(rocks: Rocks, extents: Sequence[Extent]) -> list[tuple[Piece, int]]:
    """A block is read for each piece; sizes are only about right."""
    rocks.families[DIRECTORY].delete_range(b"", b"\xff" * (PIECE_BYTES + 1))
    found: list[tuple[Piece, int]] = []
    batch = WriteBatch(raw_mode=True)
    for extent in extents:
        pieces: list[Piece] = []
        rows = rocks.families["pages"].iter()
        rows.seek(extent.first)
        while rows.valid() and (key := cast(bytes, rows.key())) <= extent.last:
            pieces.append(Piece(key[:PIECE_BYTES]))
            rows.seek(pieces[-1] + BEHIND)
        try:
            rows.status()
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
            _log.warning("a block of chunks is damaged: %s", error)
        for piece in pieces:
            found.append((piece, extent.file_bytes // len(pieces)))
            batch.put(piece, PIECE_SIZE.pack(found[-1][1]), rocks.column_families[DIRECTORY])
    rocks.database.write(batch)
    return found
