"""The index in memory: every committed page and manifest, who names whom, and how many bytes they take.

Pure: it never touches the database. A change is first planned (``plan``), then written by the store, then applied
(``apply``), so memory never runs ahead of the disk.

Pages form a tree: the page in front of another is its parent. Invariants: a page is in the catalog exactly while a
manifest names it, so its parent is there too; a page was used whenever a page behind it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from services.kvstore.format import manifest_bytes, page_bytes
from services.kvstore.state import (
    BlobId,
    Manifest,
    ManifestId,
    Namespace,
    Page,
    PageKey,
)


@dataclass(slots=True)
class Use:
    """When something was used last, milliseconds since 1970, and how often, its writing included."""

    last_ms: float
    count: int = 1


@dataclass(slots=True)
class PageEntry:
    """A page, its place in the tree, its stored bytes and the manifests that name it."""

    page: Page
    parent: PageKey | None
    num_bytes: int
    use: Use
    children: set[PageKey] = field(default_factory=set[PageKey])
    manifest_ids: set[ManifestId] = field(default_factory=set[ManifestId])


@dataclass(slots=True)
class ManifestEntry:
    """A manifest and its own stored bytes, pages excluded."""

    manifest: Manifest
    num_bytes: int
    use: Use


@dataclass(frozen=True, slots=True)
class Change:
    """A step from one consistent state to the next, inside one namespace."""

    namespace: Namespace
    put_manifests: tuple[Manifest, ...]
    drop_manifests: tuple[ManifestId, ...]
    put_pages: tuple[Page, ...]
    drop_pages: tuple[PageKey, ...]
    garbage: tuple[BlobId, ...]


@dataclass(slots=True)
class _Space:
    pages: dict[PageKey, PageEntry] = field(default_factory=dict[PageKey, PageEntry])
    manifests: dict[ManifestId, ManifestEntry] = field(default_factory=dict[ManifestId, ManifestEntry])
    first_pages: set[PageKey] = field(default_factory=set[PageKey])
    # None stands for a state shorter than a page.
    ids_by_last_page: dict[PageKey | None, set[ManifestId]] = field(
        default_factory=dict[PageKey | None, set[ManifestId]]
    )
    num_bytes: int = 0

    def children(self, key: PageKey | None) -> set[PageKey]:
        return self.first_pages if key is None else self.pages[key].children


class Catalog:
    """Owned by the event loop; no method blocks."""

    def __init__(self) -> None:
        self._spaces: dict[Namespace, _Space] = {}
        self.num_bytes = 0

    def page(self, namespace: Namespace, key: PageKey) -> Page | None:
        """The page stored under a key."""
        entry = self._space(namespace).pages.get(key)
        return None if entry is None else entry.page

    def page_entry(self, namespace: Namespace, key: PageKey) -> PageEntry:
        """A page that is known to be there."""
        return self._spaces[namespace].pages[key]

    def manifest(self, namespace: Namespace, manifest_id: ManifestId) -> Manifest | None:
        """The manifest of an id."""
        entry = self._space(namespace).manifests.get(manifest_id)
        return None if entry is None else entry.manifest

    def leading_pages(self, namespace: Namespace, keys: Iterable[PageKey]) -> list[Page]:
        """The longest run of present pages from the first key on."""
        pages = self._space(namespace).pages
        return [pages[key].page for key in itertools.takewhile(pages.__contains__, keys)]

    def pages_behind(self, namespace: Namespace, key: PageKey | None) -> list[Page]:
        """The pages that follow one page; None asks for first pages."""
        space = self._space(namespace)
        return [space.pages[child].page for child in space.children(key)]

    def manifests_behind(self, namespace: Namespace, key: PageKey | None) -> list[ManifestEntry]:
        """Those whose last page this is; None asks for states shorter than a page."""
        space = self._space(namespace)
        return [space.manifests[id_] for id_ in space.ids_by_last_page.get(key, ())]

    def manifests_of_page(self, namespace: Namespace, key: PageKey) -> list[Manifest]:
        """Those that name a page."""
        space = self._space(namespace)
        entry = space.pages.get(key)
        return [] if entry is None else [space.manifests[id_].manifest for id_ in entry.manifest_ids]

    def touch(
        self, namespace: Namespace, keys: Iterable[PageKey], manifest_id: ManifestId | None, now_ms: float
    ) -> None:
        """Mark pages, from the first of a prompt on, and a manifest as used; what is not there is passed over."""
        space = self._space(namespace)
        uses = [space.pages[key].use for key in keys if key in space.pages]
        if manifest_id is not None and manifest_id in space.manifests:
            uses.append(space.manifests[manifest_id].use)
        for use in uses:
            use.last_ms = max(use.last_ms, now_ms)
            use.count += 1

    def entries(self) -> Iterator[ManifestEntry]:
        """Every manifest of every namespace."""
        for space in self._spaces.values():
            yield from space.manifests.values()

    def count_pages(self, namespace: Namespace | None) -> int:
        """Pages of a namespace, or of all."""
        return sum(len(space.pages) for space in self._selected(namespace))

    def count_manifests(self, namespace: Namespace | None) -> int:
        """Manifests of a namespace, or of all."""
        return sum(len(space.manifests) for space in self._selected(namespace))

    def count_bytes(self, namespace: Namespace | None) -> int:
        """Stored bytes of a namespace, or of all."""
        return sum(space.num_bytes for space in self._selected(namespace))

    def first_misplaced(self, namespace: Namespace, keys: Sequence[PageKey]) -> int | None:
        """Index of the first key whose page is present behind another page than the one before it in ``keys``."""
        pages = self._space(namespace).pages
        for index, key in enumerate(keys):
            if key in pages and pages[key].parent != (keys[index - 1] if index else None):
                return index
        return None

    def plan(
        self,
        namespace: Namespace,
        manifests: Mapping[ManifestId, Manifest | None],
        new_pages: Sequence[Page] = (),
    ) -> Change:
        """What follows from putting (or, for None, dropping) manifests; ``new_pages`` are not in the catalog yet."""
        space = self._space(namespace)
        puts = tuple(manifest for manifest in manifests.values() if manifest is not None)
        named = {key for manifest in puts for key in manifest.page_keys}
        old = [space.manifests[id_].manifest for id_ in manifests if id_ in space.manifests]
        drop_pages = tuple(
            key
            for key in dict.fromkeys(key for manifest in old for key in manifest.page_keys)
            if key not in named and space.pages[key].manifest_ids <= manifests.keys()
        )
        kept = {blob.blob_id for manifest in puts for blob in (manifest.tail, manifest.boundary) if blob is not None}
        blobs = [blob for manifest in old for blob in (manifest.tail, manifest.boundary) if blob is not None]
        blobs += [space.pages[key].page.blob for key in drop_pages]
        return Change(
            namespace=namespace,
            put_manifests=puts,
            drop_manifests=tuple(id_ for id_, new in manifests.items() if new is None and id_ in space.manifests),
            put_pages=tuple(new_pages),
            drop_pages=drop_pages,
            garbage=tuple(blob.blob_id for blob in blobs if blob.blob_id not in kept),
        )

    def apply(self, change: Change) -> None:
        """Make a written change visible."""
        space = self._spaces.setdefault(change.namespace, _Space())
        before = space.num_bytes
        new_pages = {page.key: page for page in change.put_pages}
        for manifest_id in change.drop_manifests:
            self._remove(space, manifest_id)
        for manifest in change.put_manifests:
            use = self._remove(space, manifest.manifest_id)
            self._add(space, manifest, new_pages, use or Use(manifest.created_ms))
        for key in change.drop_pages:
            entry = space.pages.pop(key)
            space.num_bytes -= entry.num_bytes
            if entry.parent is None:
                space.first_pages.discard(key)
            elif entry.parent in space.pages:
                space.pages[entry.parent].children.discard(key)
        self.num_bytes += space.num_bytes - before
        if not space.manifests:
            del self._spaces[change.namespace]

    def check_integrity(self) -> None:
        """Assert every invariant, at the cost of a walk over everything; for tests."""
        for space in self._spaces.values():
            for key, entry in space.pages.items():
                named_by = {id_ for id_, found in space.manifests.items() if key in found.manifest.page_keys}
                assert entry.manifest_ids == named_by
                assert named_by
                assert key in space.children(entry.parent)
                assert all(space.pages[child].parent == key for child in entry.children)
                assert all(space.pages[child].use.last_ms <= entry.use.last_ms for child in entry.children)
            assert all(space.pages[key].parent is None for key in space.first_pages)
            for found in space.manifests.values():
                parents = [space.pages[key].parent for key in found.manifest.page_keys]
                assert parents == [None, *found.manifest.page_keys][: len(parents)]
            sizes = [page_bytes(entry.page) for entry in space.pages.values()]
            sizes += [manifest_bytes(found.manifest) for found in space.manifests.values()]
            assert space.num_bytes == sum(sizes)
            assert sum(map(len, space.ids_by_last_page.values())) == len(space.manifests)
        assert self.num_bytes == sum(space.num_bytes for space in self._spaces.values())

    def _add(self, space: _Space, manifest: Manifest, new_pages: Mapping[PageKey, Page], use: Use) -> None:
        entry = ManifestEntry(manifest, manifest_bytes(manifest), use)
        space.manifests[manifest.manifest_id] = entry
        space.ids_by_last_page.setdefault(_last_page(manifest), set()).add(manifest.manifest_id)
        space.num_bytes += entry.num_bytes
        parent: PageKey | None = None
        for key in manifest.page_keys:
            found = space.pages.get(key)
            if found is None:
                page = new_pages[key]
                found = space.pages[key] = PageEntry(page, parent, page_bytes(page), Use(use.last_ms))
                space.children(parent).add(key)
                space.num_bytes += found.num_bytes
            found.use.last_ms = max(found.use.last_ms, use.last_ms)
            found.manifest_ids.add(manifest.manifest_id)
            parent = key

    def _remove(self, space: _Space, manifest_id: ManifestId) -> Use | None:
        entry = space.manifests.pop(manifest_id, None)
        if entry is None:
            return None
        space.num_bytes -= entry.num_bytes
        last = _last_page(entry.manifest)
        space.ids_by_last_page[last].discard(manifest_id)
        if not space.ids_by_last_page[last]:
            del space.ids_by_last_page[last]
        for key in entry.manifest.page_keys:
            space.pages[key].manifest_ids.discard(manifest_id)
        return entry.use

    def _space(self, namespace: Namespace) -> _Space:
        return self._spaces.get(namespace) or _Space()

    def _selected(self, namespace: Namespace | None) -> Iterable[_Space]:
        return self._spaces.values() if namespace is None else (self._space(namespace),)


def shorten(manifest: Manifest, num_pages: int, page_tokens: int) -> Manifest | None:
    """What is left of a manifest without what lies behind ``num_pages`` pages; None when nothing is.

    It is no conversation's newest state any more: a name for its pages.
    """
    if num_pages == 0:
        return None
    return Manifest(
        namespace=manifest.namespace,
        manifest_id=manifest.manifest_id,
        parent_id=manifest.parent_id,
        round=manifest.round,
        is_head=False,
        token_count=num_pages * page_tokens,
        resident_bytes=manifest.resident_bytes,
        created_ms=manifest.created_ms,
        tenant=manifest.tenant,
        page_keys=manifest.page_keys[:num_pages],
        tail_token_ids=b"",
        tail=None,
        boundary=None,
    )


def _last_page(manifest: Manifest) -> PageKey | None:
    return manifest.page_keys[-1] if manifest.page_keys else None
