"""What the store keeps: blobs of chunks, the pages and manifests that name them.

A page, a tail and a boundary record each lie in a *blob*: chunks under one random id that is never written twice. What
a key means is decided by the small rows that name blobs (page rows, manifests), which are committed after the blobs
are durable; so a broken Write leaves only blobs that nobody names.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NewType

from services.kvstore.errors import DamageError

Namespace = NewType("Namespace", bytes)
PageKey = NewType("PageKey", bytes)
ManifestId = NewType("ManifestId", bytes)
BlobId = NewType("BlobId", bytes)

NAMESPACE_BYTES = 32
LAYOUT_BYTES = 16
"""A namespace begins with its layout, which all scopes of one model share."""
ID_BYTES = 16
MAX_CHUNK_BYTES = 2**20
TOKEN_BYTES = 4


class Owner(IntEnum):
    """What a chunk belongs to."""

    PAGE = 1
    TAIL = 2
    BOUNDARY = 3


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Where one chunk's data lies: ``length`` bytes from ``offset`` of the bytes of a layer's channel."""

    layer: int
    channel: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Blob:
    """Chunks written once. Invariant: ``spans`` ascend, start with (0, …, 0) and leave no gap inside a channel."""

    blob_id: BlobId
    spans: tuple[Span, ...]

    @property
    def data_bytes(self) -> int:
        """Bytes of state, envelopes excluded."""
        return sum(span.length for span in self.spans)

    def totals(self) -> dict[tuple[int, int], int]:
        """Bytes of each (layer, channel)."""
        totals: dict[tuple[int, int], int] = {}
        for span in self.spans:
            totals[span.layer, span.channel] = span.offset + span.length
        return totals


@dataclass(frozen=True, slots=True)
class Page:
    """The row that makes a blob the page of a key; ``token_ids`` are int32-LE, one per token."""

    namespace: Namespace
    key: PageKey
    first_token: int
    token_ids: bytes
    blob: Blob

    @property
    def num_tokens(self) -> int:
        """Tokens it covers."""
        return len(self.token_ids) // TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class Manifest:
    """One terminal state: its pages from the root, the ids behind them, and what only this boundary has."""

    namespace: Namespace
    manifest_id: ManifestId
    parent_id: ManifestId | None
    round: int
    is_head: bool
    token_count: int
    resident_bytes: int
    created_ms: int
    tenant: str
    page_keys: tuple[PageKey, ...]
    tail_token_ids: bytes
    tail: Blob | None
    boundary: Blob | None


@dataclass(frozen=True, slots=True)
class ChunkHead:
    """What a stored chunk says about itself; compared with what the reader wanted."""

    namespace: Namespace
    owner: Owner
    owner_id: bytes
    first_token: int
    num_tokens: int
    layer: int
    channel: int
    offset: int
    total: int


def new_blob_id() -> BlobId:
    """Time first, so that what is written together lies together and old files die as a whole."""
    return BlobId(struct.pack(">Q", time.time_ns()) + secrets.token_bytes(8))


@lru_cache(maxsize=256)
def shared_spans(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """The first tuple equal to ``spans``: pages of one model have one layout, so thousands share it."""
    return spans


def check_spans(spans: Sequence[Span]) -> None:
    """Raises DamageError unless Blob's invariant holds."""
    if not spans or (spans[0].layer, spans[0].channel) != (0, 0):
        raise DamageError("format")
    channel, end = (-1, -1), 0
    for span in spans:
        here = (span.layer, span.channel)
        if here != channel:
            if here < channel:
                raise DamageError("format")
            channel, end = here, 0
        if span.offset != end or not 0 < span.length <= MAX_CHUNK_BYTES:
            raise DamageError("format")
        end += span.length
