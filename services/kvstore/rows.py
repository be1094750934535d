"""The rows that a change of the catalog writes and deletes, as one atomic batch."""

from __future__ import annotations

from collections.abc import Sequence

from services.kvstore.catalog import Change
from services.kvstore.database import Batch
from services.kvstore.format import encode_manifest, encode_page, manifest_key, page_row_key


def batch_of(changes: Sequence[Change]) -> Batch:
    """Everything but the chunks: those of new pages must be durable already, those of old ones go afterwards."""
    batch = Batch()
    for change in changes:
        namespace = change.namespace
        for page in change.put_pages:
            batch.put("index", page_row_key(namespace, page.key), encode_page(page))
        for manifest in change.put_manifests:
            batch.put("manifests", manifest_key(namespace, manifest.manifest_id), encode_manifest(manifest))
        for key in change.drop_pages:
            batch.delete("index", page_row_key(namespace, key))
        for manifest_id in change.drop_manifests:
            batch.delete("manifests", manifest_key(namespace, manifest_id))
    return batch
