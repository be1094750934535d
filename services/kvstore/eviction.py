"""Which manifests to give up for space: superseded ones before heads, then the least recently used.

A page goes with the last manifest that names it. Every manifest names all its pages from the root, so an ancestor
outlives its descendants and a shared prefix outlives every tail behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from services.kvstore.catalog import Catalog, ManifestEntry
from services.kvstore.leases import Pins
from services.kvstore.state import Manifest, Namespace, PageKey


def choose_victims(catalog: Catalog, pins: Pins, bytes_to_free: int) -> Sequence[Manifest] | None:
    """Manifests to drop together, least valuable first; None when even all that may go would not free enough.

    A manifest stays while it is pinned, or while it is the last to name a pinned page.
    """
    victims: list[Manifest] = []
    freed = 0
    refs_gone: Counter[tuple[Namespace, PageKey]] = Counter()
    for entry in sorted(catalog.entries(), key=_value):
        if freed >= bytes_to_free:
            break
        manifest = entry.manifest
        namespace = manifest.namespace
        if pins.holds_manifest(namespace, manifest.manifest_id):
            continue
        pages = {key: catalog.page_entry(namespace, key) for key in manifest.page_keys}
        last = [key for key, page in pages.items() if len(page.manifest_ids) - refs_gone[namespace, key] == 1]
        if any(pins.holds_page(namespace, key) for key in last):
            continue
        victims.append(manifest)
        freed += entry.num_bytes + sum(pages[key].num_bytes for key in last)
        refs_gone.update((namespace, key) for key in pages)
    return victims if freed >= bytes_to_free else None


def _value(entry: ManifestEntry) -> tuple[bool, int]:
    return entry.manifest.is_head, entry.last_used
