"""Where live chunks lie among the dead: what each file of the log holds, and which files to rewrite next. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NewType

Piece = NewType("Piece", bytes)
"""What one segment holds of one blob: segment number and blob id. Its chunks' keys begin with it."""

PIECE_BYTES = 24
SEGMENT_BYTES = 64 * 2**20
"""Chunks that are written as one file at most, and that files are merged to."""

_NEARLY_DEAD = 0.9
_MAX_DEAD_SHARE = 0.25
_NO_DEAD_SHARE = 1 / 64
"""Less than this is what a file holds beside its chunks."""
_MANY = 1_024
_MERGE_AT_LEAST = 8


@dataclass(slots=True, eq=False)
class Extent:
    """One file, or some beside one another: keys ``first`` to ``last``, both included, and what of it is alive."""

    first: bytes
    last: bytes
    file_bytes: int
    live: dict[Piece, int] = field(default_factory=dict[Piece, int])
    live_bytes: int = 0

    @property
    def dead_bytes(self) -> int:
        """Bytes that rewriting it would free."""
        return max(0, self.file_bytes - self.live_bytes)


@dataclass(frozen=True, slots=True)
class Place:
    """A piece in its file: ``num_bytes`` from ``offset``, which is None where it is not known."""

    offset: int | None
    num_bytes: int
    file_bytes: int


class Extents:
    """Disjoint, by key. Not for use by several threads at once."""

    def __init__(self) -> None:
        self._extents: list[Extent] = []
        self._may_be_nearly_dead = True
        self.file_bytes = 0
        self.live_bytes = 0

    @property
    def dead_bytes(self) -> int:
        """Bytes that nothing names."""
        return max(0, self.file_bytes - self.live_bytes)

    def add(self, extent: Extent) -> None:
        """Take up a file. What it holds is told by ``extent.live`` or, piece by piece, by ``revive``."""
        self._extents.insert(bisect_left(self._extents, extent.first, key=_first), extent)
        self.file_bytes += extent.file_bytes
        self.live_bytes += extent.live_bytes

    def revive(self, piece: Piece, num_bytes: int) -> bool:
        """Count a piece as alive; False when no file can hold it."""
        extent = self._find(piece)
        if extent is None:
            return False
        extent.live[piece] = num_bytes
        extent.live_bytes += num_bytes
        self.live_bytes += num_bytes
        return True

    def place(self, piece: Piece) -> Place:
        """Where a piece lies in its file, if nothing that is dead lies between."""
        extent = self._find(piece)
        if extent is None or piece not in extent.live:
            return Place(None, 0, 0)
        num_bytes = extent.live[piece]
        if extent.dead_bytes > _NO_DEAD_SHARE * extent.file_bytes:
            return Place(None, num_bytes, extent.file_bytes)
        return Place(sum(size for other, size in extent.live.items() if other < piece), num_bytes, extent.file_bytes)

    def discard(self, piece: Piece) -> None:
        """Count a piece as dead."""
        extent = self._find(piece)
        if extent is not None:
            num_bytes = extent.live.pop(piece, 0)
            extent.live_bytes -= num_bytes
            self.live_bytes -= num_bytes
            self._may_be_nearly_dead |= extent.dead_bytes >= _NEARLY_DEAD * extent.file_bytes

    def choose(self, limit_bytes: int, unreadable: set[bytes]) -> Sequence[Extent]:
        """Neighbours to rewrite as one file; none while that is not worth it.

        Files that are nearly all dead go at once. The others wait until all files exceed ``limit_bytes``, or a quarter
        of what they hold is dead; then the one with the largest dead share is the cheapest way to free a byte (greedy
        cleaning, Rosenblum and Ousterhout 1991). Files are merged only where there are too many: merging would be most
        of what cleaning writes.
        """
        has_many = len(self._extents) > _MANY + 4 * self.file_bytes // SEGMENT_BYTES
        if not (self._may_be_nearly_dead or self._is_due(self.dead_bytes, limit_bytes) or has_many):
            return ()
        best, best_share, dead_bytes = -1, 0.0, 0
        for index, extent in enumerate(self._extents):
            if extent.first in unreadable:
                continue
            dead_bytes += extent.dead_bytes
            share = extent.dead_bytes / extent.file_bytes
            if share > best_share:
                best, best_share = index, share
        if best_share >= _NEARLY_DEAD or (best >= 0 and self._is_due(dead_bytes, limit_bytes)):
            return self._extents[best : best + 1]
        self._may_be_nearly_dead = False
        return self._many_small(unreadable) if has_many else ()

    def replace(self, run: Sequence[Extent], file_bytes: int) -> None:
        """``run`` was rewritten as one file of what was alive then, ``file_bytes``."""
        start = bisect_left(self._extents, run[0].first, key=_first)
        del self._extents[start : start + len(run)]
        for extent in run:
            self.file_bytes -= extent.file_bytes
            self.live_bytes -= extent.live_bytes
        if file_bytes:
            live = {piece: num_bytes for extent in run for piece, num_bytes in extent.live.items()}
            self.add(Extent(run[0].first, run[-1].last, file_bytes, live, sum(live.values())))

    def _is_due(self, dead_bytes: int, limit_bytes: int) -> bool:
        return dead_bytes > SEGMENT_BYTES and (
            self.file_bytes > limit_bytes or dead_bytes > _MAX_DEAD_SHARE * self.file_bytes
        )

    def _find(self, piece: Piece) -> Extent | None:
        index = bisect_right(self._extents, piece, key=_first_piece) - 1
        if index < 0 or self._extents[index].last[:PIECE_BYTES] < piece:
            return None
        return self._extents[index]

    def _many_small(self, unreadable: set[bytes]) -> Sequence[Extent]:
        longest: Sequence[Extent] = ()
        start, num_bytes = 0, 0
        for end, extent in enumerate(self._extents):
            if extent.first in unreadable:
                start, num_bytes = end + 1, 0
                continue
            num_bytes += extent.file_bytes
            while num_bytes > SEGMENT_BYTES and start < end:
                num_bytes -= self._extents[start].file_bytes
                start += 1
            if end + 1 - start > len(longest):
                longest = self._extents[start : end + 1]
        return longest if len(longest) >= _MERGE_AT_LEAST else ()


def _first(extent: Extent) -> bytes:
    return extent.first


def _first_piece(extent: Extent) -> bytes:
    return extent.first[:PIECE_BYTES]
