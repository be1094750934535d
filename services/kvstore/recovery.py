"""Start-up: rebuild the catalog from the small rows, repair what a crash or damage left, collect orphans.

It reads manifests and page rows and seeks once per blob; it never reads state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from services.identity import PAGE_TOKENS
from services.kvstore.catalog import Catalog, shorten
from services.kvstore.database import Batch, Database, Family
from services.kvstore.errors import DamageError, DatabaseError
from services.kvstore.format import (
    PAGE_ROW_PREFIX,
    decode_manifest,
    decode_page,
    encode_manifest,
    manifest_key,
    page_row_key,
)
from services.kvstore.state import BlobId, Manifest, ManifestId, Namespace, Page, PageKey

_log = logging.getLogger(__name__)
_ROWS_AT_ONCE = 1_000
_Parents = dict[tuple[Namespace, PageKey], PageKey | None]


@dataclass(frozen=True, slots=True)
class Recovered:
    """A consistent catalog, and what had to go."""

    catalog: Catalog
    num_orphans: int
    num_damaged: int


def recover(database: Database) -> Recovered:
    """Rebuild the catalog. The database must have no writer; what is deleted here is deleted durably."""
    try:
        rows = _Rows.read(database)
        blobs = database.blob_ids()
    except DatabaseError as error:
        # An empty cache is correct; a store that does not start is not.
        _log.error("stored state is unreadable and is dropped: %s", error)
        database.clear("manifests")
        database.clear("index", PAGE_ROW_PREFIX)
        database.clear("pages")
        return Recovered(Catalog(), 0, 1)

    batch = Batch(deletes=list(rows.damaged))
    pages = {place: page for place, page in rows.pages.items() if page.blob.blob_id in blobs}
    manifests: list[Manifest] = []
    parents: _Parents = {}
    for manifest in rows.manifests:
        whole = _repaired(manifest, pages, parents, blobs)
        if whole is None:
            batch.delete("manifests", manifest_key(manifest.namespace, manifest.manifest_id))
        else:
            manifests.append(whole)
            if whole is not manifest:
                batch.put("manifests", manifest_key(whole.namespace, whole.manifest_id), encode_manifest(whole))
    num_repaired = len(batch.deletes) + len(batch.puts)

    named = {(manifest.namespace, key) for manifest in manifests for key in manifest.page_keys}
    for place in rows.pages.keys() - named:
        batch.delete("index", page_row_key(*place))
    in_use = {pages[place].blob.blob_id for place in named}
    in_use |= {blob.blob_id for m in manifests for blob in (m.tail, m.boundary) if blob is not None}
    orphans = blobs - in_use
    if batch.puts or batch.deletes:
        database.write_durably(batch)
    if orphans:
        database.delete_blobs(orphans)
        database.flush_pages()
    return Recovered(_catalog(manifests, pages), len(orphans), num_repaired)


@dataclass(frozen=True, slots=True)
class _Rows:
    pages: dict[tuple[Namespace, PageKey], Page]
    manifests: list[Manifest]
    damaged: list[tuple[Family, bytes]]

    @classmethod
    def read(cls, database: Database) -> _Rows:
        rows = cls({}, [], [])
        for key, value in _all(database, "index", PAGE_ROW_PREFIX):
            try:
                page = decode_page(value)
                if page_row_key(page.namespace, page.key) != key:
                    raise DamageError("format")
                rows.pages[page.namespace, page.key] = page
            except DamageError:
                rows.damaged.append(("index", key))
        for key, value in _all(database, "manifests", b""):
            try:
                manifest = decode_manifest(value)
                if manifest_key(manifest.namespace, manifest.manifest_id) != key:
                    raise DamageError("format")
                rows.manifests.append(manifest)
            except DamageError:
                rows.damaged.append(("manifests", key))
        return rows


def _all(database: Database, family: Family, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    after: bytes | None = None
    while rows := database.scan(family, prefix, _ROWS_AT_ONCE, after):
        yield from rows
        after = rows[-1][0]


def _repaired(
    manifest: Manifest, pages: dict[tuple[Namespace, PageKey], Page], parents: _Parents, blobs: set[BlobId]
) -> Manifest | None:
    """The manifest itself where everything it names is there, in its place, else the part of it that is."""
    num_pages = 0
    parent: PageKey | None = None
    for index, key in enumerate(manifest.page_keys):
        page = pages.get((manifest.namespace, key))
        if page is None or page.first_token != index * PAGE_TOKENS or page.num_tokens != PAGE_TOKENS:
            break
        if parents.setdefault((manifest.namespace, key), parent) != parent:
            break
        num_pages, parent = num_pages + 1, key
    own = [blob for blob in (manifest.tail, manifest.boundary) if blob is not None]
    if num_pages == len(manifest.page_keys) and all(blob.blob_id in blobs for blob in own):
        return manifest
    return shorten(manifest, num_pages, PAGE_TOKENS)


def _catalog(manifests: list[Manifest], pages: dict[tuple[Namespace, PageKey], Page]) -> Catalog:
    catalog = Catalog()
    placed: set[tuple[Namespace, PageKey]] = set()
    # The order of commits stands in for the order of use, which is not stored.
    for manifest in sorted(manifests, key=lambda found: found.created_ms):
        namespace = manifest.namespace
        new = [key for key in manifest.page_keys if (namespace, key) not in placed]
        placed.update((namespace, key) for key in new)
        changed: dict[ManifestId, Manifest | None] = {manifest.manifest_id: manifest}
        catalog.apply(catalog.plan(namespace, changed, [pages[namespace, key] for key in new]))
    return catalog
