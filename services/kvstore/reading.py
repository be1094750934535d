"""Read: which chunks in which order, checked one by one as they come from disk.

Checked chunks are handed on as bytes, or put into a region of shared memory that the reader lends.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from services.identity import PAGE_TOKENS
from services.kvstore.database import Database
from services.kvstore.errors import DamagedBlockError, DamageError, DatabaseError, InvalidRequestError
from services.kvstore.format import chunk_key, decode_chunk
from services.kvstore.leases import Pin
from services.kvstore.read_ahead import BlobPart, advise, parts
from services.kvstore.shared_region import SharedRegion
from services.kvstore.state import (
    TOKEN_BYTES,
    Blob,
    ChunkHead,
    Manifest,
    ManifestId,
    Namespace,
    Owner,
    Page,
    PageKey,
    Span,
)
from services.kvstore.store import Store

_HOP_BYTES = 8 * 2**20
_AT_ONCE = 4
_UNAVAILABLE = "unavailable"
"""Why a chunk is not sent that may be whole: the database does not answer."""


class Order(Enum):
    """What comes first: a layer of all pages, or a page with all its layers."""

    LAYER_MAJOR = 1
    PAGE_MAJOR = 2


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """Pages, first page first, then the tail and boundary record of a manifest.

    ``layers`` None reads all layers; ``region`` None hands on the bytes themselves.
    """

    namespace: Namespace
    page_keys: tuple[PageKey, ...]
    manifest_id: ManifestId | None
    order: Order
    layers: range | None = None
    region: SharedRegion | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """Nothing from this page on is usable; the number of pages when only the tail is not."""

    first_page: int
    reason: str


@dataclass(slots=True)
class Item:
    """A chunk to read: its key, what it must say about itself, and the ids it must carry (first chunk only).

    ``place`` is where its data goes in a region: behind the data of all items before it.
    """

    page_index: int
    key: bytes
    head: ChunkHead
    length: int
    token_ids: bytes
    place: int = 0


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """A chunk that passed every check; ``token_ids`` is None unless it is the first one of a page or tail.

    ``data`` is None where it lies in the region, ``length`` bytes from ``place``.
    """

    head: ChunkHead
    token_ids: bytes | None
    data: memoryview | None
    place: int
    length: int
    crc32c: int


_Results = list[tuple[Item, ReadChunk | str]]


def plan(pages: Sequence[Page], manifest: Manifest | None, order: Order, layers: range | None = None) -> list[Item]:
    """Chunks in the order in which they are sent; a boundary record is always last."""
    items: list[Item] = []
    for index, page in enumerate(pages):
        what = (page.namespace, Owner.PAGE, page.key, page.first_token, page.num_tokens)
        items += _items(index, page.blob, what, page.token_ids, layers)
    behind = len(pages)
    last: list[Item] = []
    if manifest is not None and manifest.tail is not None:
        num_tokens = len(manifest.tail_token_ids) // TOKEN_BYTES
        first_token = len(manifest.page_keys) * PAGE_TOKENS
        what = (manifest.namespace, Owner.TAIL, manifest.manifest_id, first_token, num_tokens)
        items += _items(behind, manifest.tail, what, manifest.tail_token_ids, layers)
    if manifest is not None and manifest.boundary is not None:
        what = (manifest.namespace, Owner.BOUNDARY, manifest.manifest_id, manifest.token_count, 0)
        last += _items(behind, manifest.boundary, what, b"", None)
    if order is Order.LAYER_MAJOR:
        items.sort(key=lambda item: item.head.layer)
    return items + last


async def read(store: Store, query: ReadQuery) -> AsyncGenerator[list[ReadChunk] | Skipped]:
    """Stream what is there, some chunks at a time. Damage is dropped from the store and shortens the stream.

    Raises InvalidRequestError where the region is too small, before anything is read.
    """
    namespace, num_asked = query.namespace, len(query.page_keys)
    pages = store.catalog.leading_pages(namespace, query.page_keys)
    manifest = None if query.manifest_id is None else store.catalog.manifest(namespace, query.manifest_id)
    if len(pages) < num_asked:
        manifest = None
    generation = store.database.generation
    items = plan(pages, manifest, query.order, query.layers)
    if query.region is not None:
        _place(items, query.region)
    is_short = len(pages) < num_asked or (query.manifest_id is not None and manifest is None)
    # Early where every page is waited for from the start, in its place where pages follow one another.
    if is_short and query.order is Order.LAYER_MAJOR:
        yield Skipped(len(pages), "missing")
    # Held for the length of the read, whatever becomes of the lease.
    pin = Pin(namespace, tuple(page.key for page in pages), manifest and manifest.manifest_id)
    store.pins.pin(pin)
    if query.order is Order.LAYER_MAJOR and items:
        wanted = parts([page.blob for page in pages], query.layers)
        store.background.spawn(store.database.run(_read_ahead, store.database, wanted))
    hops = _hops(items)
    ahead = _start(store.database, hops, query.region)
    usable = num_asked + 1
    try:
        while ahead is not None:
            results = await ahead
            # The next hop reads while this one is being sent.
            ahead = _start(store.database, hops, query.region)
            chunks: list[ReadChunk] = []
            for item, result in results:
                if item.page_index >= usable:
                    continue
                if isinstance(result, ReadChunk):
                    chunks.append(result)
                    continue
                if chunks:
                    yield chunks
                    chunks = []
                usable = item.page_index
                page = pages[usable] if item.head.owner is Owner.PAGE else None
                if result != _UNAVAILABLE:
                    await store.drop_damaged(namespace, page, manifest if page is None else None, generation)
                yield Skipped(usable, result)
            if chunks:
                yield chunks
        if is_short and query.order is Order.PAGE_MAJOR and usable > len(pages):
            yield Skipped(len(pages), "missing")
    finally:
        store.pins.unpin(pin)
        if ahead is not None and not ahead.cancel():
            ahead.exception()


def _read_ahead(database: Database, wanted: list[BlobPart]) -> None:
    advise(database.ranges(wanted))


def _items(
    index: int,
    blob: Blob,
    what: tuple[Namespace, Owner, bytes, int, int],
    token_ids: bytes,
    layers: range | None,
) -> list[Item]:
    spans = blob.spans
    if layers is not None:
        spans = spans[bisect_left(spans, layers.start, key=_layer) : bisect_left(spans, layers.stop, key=_layer)]
    totals = {(span.layer, span.channel): span.offset + span.length for span in spans}
    items: list[Item] = []
    for span in spans:
        head = ChunkHead(*what, span.layer, span.channel, span.offset, totals[span.layer, span.channel])
        is_first = span is blob.spans[0]
        items.append(Item(index, chunk_key(blob.blob_id, span), head, span.length, token_ids if is_first else b""))
    return items


def _layer(span: Span) -> int:
    return span.layer


def _place(items: list[Item], region: SharedRegion) -> None:
    end = 0
    for item in items:
        item.place = end
        end += item.length
    if end > region.length:
        raise InvalidRequestError(f"region.length: {end} bytes were asked for")


def _hops(items: list[Item]) -> Iterator[list[Item]]:
    """Several chunks for each trip to a database thread."""
    hop: list[Item] = []
    num_bytes = 0
    for item in items:
        hop.append(item)
        num_bytes += item.length
        if num_bytes >= _HOP_BYTES:
            yield hop
            hop, num_bytes = [], 0
    if hop:
        yield hop


def _start(
    database: Database, hops: Iterator[list[Item]], region: SharedRegion | None
) -> asyncio.Task[_Results] | None:
    hop = next(hops, None)
    return None if hop is None else asyncio.create_task(database.run(_read_hop, database, hop, region))


def _read_hop(database: Database, hop: list[Item], region: SharedRegion | None) -> _Results:
    results: _Results = []
    # Few at a time, so that what was read is still in the processor's cache when it is checked and copied.
    for start in range(0, len(hop), _AT_ONCE):
        results += _read_few(database, hop[start : start + _AT_ONCE], region)
    return results


def _read_few(database: Database, items: list[Item], region: SharedRegion | None) -> _Results:
    try:
        values = database.get_many("pages", [item.key for item in items])
    except DamagedBlockError:
        return [(item, _read_one(database, item, region)) for item in items]
    except DatabaseError:
        return [(item, _UNAVAILABLE) for item in items]
    return [(item, _checked(item, value, region)) for item, value in zip(items, values, strict=True)]


def _read_one(database: Database, item: Item, region: SharedRegion | None) -> ReadChunk | str:
    try:
        return _checked(item, database.get("pages", item.key), region)
    except DamagedBlockError:
        return "checksum"
    except DatabaseError:
        return _UNAVAILABLE


def _checked(item: Item, value: bytes | None, region: SharedRegion | None) -> ReadChunk | str:
    """The chunk, or why it is unusable."""
    if value is None:
        return "missing"
    try:
        head, token_ids, data, data_crc32c = decode_chunk(value)
    except DamageError as error:
        return error.reason
    if head != item.head or len(data) != item.length or token_ids != item.token_ids:
        return "format"
    if region is not None:
        region.write(item.place, data)
    return ReadChunk(head, token_ids or None, data if region is None else None, item.place, item.length, data_crc32c)
