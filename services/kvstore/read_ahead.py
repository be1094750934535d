"""What a Read will want next, told to the system, so that a disk is asked ahead and in the order of reading.

State is stored blob by blob and read layer by layer: each read skips to the next blob, which no system foresees. And a
disk that is asked for one blob behind the other has the first layer of all of them only when it has nearly everything.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from services.kvstore.state import Blob, BlobId, Span

_PART_BYTES = 2**20
"""Parts are at least this large where a blob is: a disk is slow at much less."""


@dataclass(frozen=True, slots=True)
class BlobPart:
    """The bytes [``start``, ``stop``) of a blob's chunks as they lie behind one another, envelopes left out."""

    blob_id: BlobId
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes of a file."""

    path: str
    offset: int
    num_bytes: int


def parts(blobs: Sequence[Blob], layers: range | None) -> list[BlobPart]:
    """``layers`` of blobs, None for all of them, in the order in which a Read by layers wants them."""
    found = [(number, part) for blob in blobs for number, part in enumerate(_parts(blob, layers))]
    return [part for _, part in sorted(found, key=lambda numbered: numbered[0])]


def advise(ranges: Iterable[FileRange]) -> None:
    """Have the system read ranges, in this order. A file that is gone, or was rewritten, is left out."""
    with ExitStack() as opened:
        files: dict[str, int | None] = {}
        for one in ranges:
            if one.path not in files:
                files[one.path] = _open(one.path, opened)
            if (file := files[one.path]) is not None:
                os.posix_fadvise(file, one.offset, one.num_bytes, os.POSIX_FADV_WILLNEED)


def _parts(blob: Blob, layers: range | None) -> Iterator[BlobPart]:
    spans = blob.spans
    first = 0 if layers is None else bisect_left(spans, layers.start, key=_layer)
    last = len(spans) if layers is None else bisect_left(spans, layers.stop, key=_layer)
    start = stop = sum(span.length for span in spans[:first])
    for span in spans[first:last]:
        stop += span.length
        if stop - start >= _PART_BYTES:
            yield BlobPart(blob.blob_id, start, stop)
            start = stop
    if stop > start:
        yield BlobPart(blob.blob_id, start, stop)


def _layer(span: Span) -> int:
    return span.layer


def _open(path: str, opened: ExitStack) -> int | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    opened.callback(os.close, file)
    return file
