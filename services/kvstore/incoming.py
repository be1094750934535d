"""The chunks of one Write, checked as they arrive. Pure: it says what to store, the caller stores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from crc32c import crc32c

from services.kvstore.errors import FormatDiffersError, InvalidRequestError
from services.kvstore.state import (
    MAX_CHUNK_BYTES,
    TOKEN_BYTES,
    Blob,
    BlobId,
    ChunkHead,
    ManifestId,
    Namespace,
    Owner,
    Page,
    PageKey,
    Span,
    new_blob_id,
    shared_spans,
)

_MAX_SPANS = 65_536
_MAX_PAGES = 65_536
_MAX_TENANT_BYTES = 1_024


@dataclass(frozen=True, slots=True)
class Header:
    """What a writer says about its terminal state."""

    namespace: Namespace
    manifest_id: ManifestId
    parent_id: ManifestId | None
    round: int
    is_head: bool
    token_count: int
    resident_bytes: int
    page_keys: tuple[PageKey, ...]
    tail_token_ids: bytes
    has_boundary: bool
    tenant: str
    page_tokens: int

    def check(self, page_tokens: int) -> None:
        """Raises FormatDiffersError when ``page_tokens`` is not the store's, InvalidRequestError for the rest."""
        if self.page_tokens != page_tokens:
            raise FormatDiffersError(f"page_tokens: this store's pages hold {page_tokens} tokens")
        if len(self.page_keys) > _MAX_PAGES or len(set(self.page_keys)) != len(self.page_keys):
            raise InvalidRequestError("page_keys: too many, or one is there twice")
        tail_tokens, rest = divmod(len(self.tail_token_ids), TOKEN_BYTES)
        if rest or tail_tokens >= page_tokens:
            raise InvalidRequestError("tail_token_ids: not int32 ids of less than a page")
        if self.token_count == 0 or self.token_count != len(self.page_keys) * page_tokens + tail_tokens:
            raise InvalidRequestError("token_count: not what the pages and the tail hold together")
        if not self.tenant or len(self.tenant.encode()) > _MAX_TENANT_BYTES:
            raise InvalidRequestError("tenant: empty or too long")


@dataclass(frozen=True, slots=True)
class IncomingChunk:
    """A chunk as it was sent; ``page_key`` is there for pages only."""

    owner: Owner
    page_key: PageKey | None
    layer: int
    channel: int
    offset: int
    total: int
    crc32c: int
    data: bytes
    token_ids: bytes | None


@dataclass(frozen=True, slots=True)
class Accepted:
    """A chunk to be stored in a blob."""

    blob_id: BlobId
    span: Span
    head: ChunkHead
    token_ids: bytes
    data: bytes
    crc32c: int


@dataclass(frozen=True, slots=True)
class Received:
    """What a finished Write brought."""

    pages: tuple[Page, ...]
    tail: Blob | None
    boundary: Blob | None


@dataclass(slots=True)
class _Growing:
    """A blob of which chunks have arrived; ``ends`` maps (layer, channel) to (bytes so far, bytes in all)."""

    blob_id: BlobId
    token_ids: bytes
    spans: list[Span] = field(default_factory=list[Span])
    ends: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict[tuple[int, int], tuple[int, int]])

    def add(self, chunk: IncomingChunk) -> Span:
        place = (chunk.layer, chunk.channel)
        end, total = self.ends.get(place, (0, chunk.total))
        if chunk.offset != end or chunk.total != total or end + len(chunk.data) > total:
            raise InvalidRequestError(f"offset: layer {place[0]}, channel {place[1]} goes on at {end} of {total}")
        if len(self.spans) >= _MAX_SPANS:
            raise InvalidRequestError(f"chunk: more than {_MAX_SPANS} of one page")
        self.ends[place] = (end + len(chunk.data), total)
        self.spans.append(Span(chunk.layer, chunk.channel, chunk.offset, len(chunk.data)))
        return self.spans[-1]

    def finish(self, what: str) -> Blob:
        if any(end != total for end, total in self.ends.values()):
            raise InvalidRequestError(f"commit: {what} is not whole")
        return Blob(self.blob_id, shared_spans(tuple(sorted(self.spans))))


class Incoming:
    """Collects the chunks of one Write; ``needed`` maps the page keys that may be sent to their indexes."""

    def __init__(self, header: Header, needed: Mapping[PageKey, int]) -> None:
        self._header = header
        self._needed = needed
        self._growing: dict[tuple[Owner, PageKey | None], _Growing] = {}

    @property
    def blob_ids(self) -> list[BlobId]:
        """Every blob that was begun."""
        return [growing.blob_id for growing in self._growing.values()]

    @property
    def num_pages(self) -> int:
        """Pages begun."""
        return sum(owner is Owner.PAGE for owner, _ in self._growing)

    def accept(self, chunk: IncomingChunk) -> Accepted:
        """Check a chunk against what came before it. Raises InvalidRequestError naming the field."""
        first_token, num_tokens = self._token_range(chunk)
        if not 0 < len(chunk.data) <= MAX_CHUNK_BYTES:
            raise InvalidRequestError(f"data: {len(chunk.data)} bytes; 1 to {MAX_CHUNK_BYTES} are allowed")
        if crc32c(chunk.data) != chunk.crc32c:
            raise InvalidRequestError("crc32c: does not fit the data")
        growing = self._growing.get((chunk.owner, chunk.page_key))
        is_first = (chunk.layer, chunk.channel, chunk.offset) == (0, 0, 0)
        if (growing is None) != is_first:
            raise InvalidRequestError("offset: layer 0, channel 0, offset 0 comes first, and once")
        token_ids = chunk.token_ids or b""
        if len(token_ids) != (TOKEN_BYTES * num_tokens if is_first else 0):
            raise InvalidRequestError("token_ids: all ids of the page or tail in its first chunk, and in no other")
        if is_first and chunk.owner is Owner.TAIL and token_ids != self._header.tail_token_ids:
            raise InvalidRequestError("token_ids: not the tail_token_ids of the header")
        if growing is None:
            growing = _Growing(new_blob_id(), token_ids)
        span = growing.add(chunk)
        self._growing[chunk.owner, chunk.page_key] = growing
        header = self._header
        owner_id = header.manifest_id if chunk.page_key is None else chunk.page_key
        place = (chunk.layer, chunk.channel, chunk.offset, chunk.total)
        head = ChunkHead(header.namespace, chunk.owner, owner_id, first_token, num_tokens, *place)
        return Accepted(growing.blob_id, span, head, token_ids, chunk.data, chunk.crc32c)

    def finish(self) -> Received:
        """Everything that arrived, whole. Raises InvalidRequestError where bytes are missing."""
        pages: list[Page] = []
        for key, index in self._needed.items():
            growing = self._growing.get((Owner.PAGE, key))
            if growing is not None:
                first_token = index * self._header.page_tokens
                blob = growing.finish(f"page {index}")
                pages.append(Page(self._header.namespace, key, first_token, growing.token_ids, blob))
        tail = self._growing.get((Owner.TAIL, None))
        if (tail is None) != (not self._header.tail_token_ids):
            raise InvalidRequestError("tail: the header names ids, and no chunk of it came")
        boundary = self._growing.get((Owner.BOUNDARY, None))
        if (boundary is None) == self._header.has_boundary:
            raise InvalidRequestError("boundary: the header promises a record, and no chunk of it came")
        return Received(
            tuple(pages),
            None if tail is None else tail.finish("the tail"),
            None if boundary is None else boundary.finish("the boundary record"),
        )

    def _token_range(self, chunk: IncomingChunk) -> tuple[int, int]:
        header = self._header
        behind_pages = len(header.page_keys) * header.page_tokens
        if chunk.owner is Owner.PAGE:
            index = None if chunk.page_key is None else self._needed.get(chunk.page_key)
            if index is None:
                raise InvalidRequestError("page_key: not among the pages that Need asked for")
            return index * header.page_tokens, header.page_tokens
        if chunk.owner is Owner.TAIL:
            if not header.tail_token_ids:
                raise InvalidRequestError("tail: the header has no tail_token_ids")
            return behind_pages, len(header.tail_token_ids) // TOKEN_BYTES
        if not header.has_boundary:
            raise InvalidRequestError("boundary: the header says that there is none")
        return header.token_count, 0
