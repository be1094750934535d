"""Read: which chunks in which order, checked one by one as they come from disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from crc32c import crc32c

from services.identity import PAGE_TOKENS
from services.kvstore.database import Database
from services.kvstore.errors import DamageError, DatabaseError
from services.kvstore.format import chunk_key, decode_chunk
from services.kvstore.leases import Pin
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
    token_digest,
)
from services.kvstore.store import Store

_HOP_BYTES = 4 * 2**20


class Order(Enum):
    """What comes first: a layer of all pages, or a page with all its layers."""

    LAYER_MAJOR = 1
    PAGE_MAJOR = 2


@dataclass(frozen=True, slots=True)
class ReadQuery:
    """Pages, first page first, then the tail and boundary record of a manifest."""

    namespace: Namespace
    page_keys: tuple[PageKey, ...]
    manifest_id: ManifestId | None
    order: Order


@dataclass(frozen=True, slots=True)
class Skipped:
    """Nothing from this page on is usable; the number of pages when only the tail is not."""

    first_page: int
    reason: str


@dataclass(frozen=True, slots=True)
class Item:
    """A chunk to read: its key, what it must say about itself, and the digest its ids must have (first chunk only)."""

    page_index: int
    key: bytes
    head: ChunkHead
    length: int
    token_digest: bytes | None


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """A chunk that passed every check; ``token_ids`` is None unless it is the first one of a page or tail."""

    head: ChunkHead
    token_ids: bytes | None
    data: bytes
    crc32c: int


_Results = list[tuple[Item, ReadChunk | str]]


def plan(pages: Sequence[Page], manifest: Manifest | None, order: Order) -> list[Item]:
    """Chunks in the order in which they are sent; a boundary record is always last."""
    items: list[Item] = []
    for index, page in enumerate(pages):
        what = (page.namespace, Owner.PAGE, page.key, page.first_token, page.num_tokens)
        items += _items(index, page.blob, what, page.token_digest)
    behind = len(pages)
    last: list[Item] = []
    if manifest is not None and manifest.tail is not None:
        num_tokens = len(manifest.tail_token_ids) // TOKEN_BYTES
        first_token = len(manifest.page_keys) * PAGE_TOKENS
        what = (manifest.namespace, Owner.TAIL, manifest.manifest_id, first_token, num_tokens)
        items += _items(behind, manifest.tail, what, token_digest(manifest.tail_token_ids))
    if manifest is not None and manifest.boundary is not None:
        what = (manifest.namespace, Owner.BOUNDARY, manifest.manifest_id, manifest.token_count, 0)
        last += _items(behind, manifest.boundary, what, None)
    if order is Order.LAYER_MAJOR:
        items.sort(key=lambda item: item.head.layer)
    return items + last


async def read(store: Store, query: ReadQuery) -> AsyncGenerator[ReadChunk | Skipped]:
    """Stream what is there. Damage is dropped from the store and shortens the stream; it never raises."""
    namespace, num_asked = query.namespace, len(query.page_keys)
    pages = store.catalog.leading_pages(namespace, query.page_keys)
    manifest = None if query.manifest_id is None else store.catalog.manifest(namespace, query.manifest_id)
    if len(pages) < num_asked:
        manifest = None
    is_short = len(pages) < num_asked or (query.manifest_id is not None and manifest is None)
    # Early where every page is waited for from the start, in its place where pages follow one another.
    if is_short and query.order is Order.LAYER_MAJOR:
        yield Skipped(len(pages), "missing")
    pin = Pin(namespace, tuple(page.key for page in pages), manifest and manifest.manifest_id)
    store.touch(pin)
    # Held for the length of the read, whatever becomes of the lease.
    store.pins.pin(pin)
    hops = _hops(plan(pages, manifest, query.order))
    ahead = _start(store.database, hops)
    usable = num_asked + 1
    try:
        while ahead is not None:
            results = await ahead
            # The next hop reads while this one is being sent.
            ahead = _start(store.database, hops)
            for item, result in results:
                if item.page_index >= usable:
                    continue
                if isinstance(result, ReadChunk):
                    yield result
                    continue
                usable = item.page_index
                page = pages[usable] if item.head.owner is Owner.PAGE else None
                await store.drop_damaged(namespace, page, manifest if page is None else None)
                yield Skipped(usable, result)
        if is_short and query.order is Order.PAGE_MAJOR and usable > len(pages):
            yield Skipped(len(pages), "missing")
    finally:
        store.pins.unpin(pin)
        if ahead is not None:
            ahead.cancel()


def _items(index: int, blob: Blob, what: tuple[Namespace, Owner, bytes, int, int], digest: bytes | None) -> list[Item]:
    totals = blob.totals()
    items: list[Item] = []
    for span in blob.spans:
        total = totals[span.layer, span.channel]
        head = ChunkHead(*what, span.layer, span.channel, span.offset, total)
        is_first = span is blob.spans[0]
        items.append(Item(index, chunk_key(blob.blob_id, span), head, span.length, digest if is_first else None))
    return items


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


def _start(database: Database, hops: Iterator[list[Item]]) -> asyncio.Task[_Results] | None:
    hop = next(hops, None)
    return None if hop is None else asyncio.create_task(database.run(_read_hop, database, hop))


def _read_hop(database: Database, hop: list[Item]) -> _Results:
    return [(item, _read_chunk(database, item)) for item in hop]


def _read_chunk(database: Database, item: Item) -> ReadChunk | str:
    """The chunk, or why it is unusable."""
    try:
        value = database.get("pages", item.key)
        if value is None:
            return "missing"
        head, token_ids, data = decode_chunk(value)
    except DatabaseError:
        return "checksum"
    except DamageError as error:
        return error.reason
    if head != item.head or len(data) != item.length:
        return "format"
    if (token_digest(token_ids) if token_ids else None) != item.token_digest:
        return "format"
    return ReadChunk(head, token_ids or None, data, crc32c(data))
