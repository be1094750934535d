"""What to give up for space: leaf first, by value.

What may go next is a tail with its boundary record, or a page that nothing lies behind. Its value is the cost of
computing it again times the chance that somebody asks, over its bytes. The cost of a token grows with its position, as
attention reads all that came before; the chance is taken from how often and how lately it was used (the order of
GreedyDual-Size-Frequency, Cherkasova 1998, with age in place of its clock). A superseded terminal state has no value:
its conversation went on from a later one. State of layouts that nobody has asked for goes before all other.

A page goes after everything behind it, so an ancestor outlives its descendants and a shared prefix the tails of all who
share it. A conversation loses its end first: what is left of it is still a prefix.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from services.identity import PAGE_TOKENS
from services.kvstore.catalog import Catalog, ManifestEntry, Use, shorten
from services.kvstore.format import manifest_bytes
from services.kvstore.leases import Pins
from services.kvstore.state import TOKEN_BYTES, Manifest, ManifestId, Namespace, PageKey

Cuts = Mapping[Namespace, Mapping[ManifestId, Manifest | None]]
"""What becomes of manifests: a shorter one, or None."""

_ATTENTION_TOKENS = 8_192
"""Position at which attention costs a token as much again as all else does; near it for dense models."""


def choose_cuts(
    catalog: Catalog, pins: Pins, bytes_to_free: int, now_ms: float, is_wanted: Callable[[Namespace], bool]
) -> Cuts | None:
    """Manifests to drop or shorten together; None when even all that may go would not free enough.

    What is pinned stays. ``is_wanted`` tells namespaces whose layout is in use.
    """
    eviction = _Eviction(catalog, pins, now_ms, is_wanted)
    while eviction.freed_bytes < bytes_to_free:
        if not eviction.step():
            return None
    return eviction.cuts()


@dataclass(frozen=True, slots=True)
class _Place:
    """A manifest's own bytes (``manifest_id`` given), or the page ``key``."""

    namespace: Namespace
    key: PageKey | None
    manifest_id: ManifestId | None


class _Eviction:
    def __init__(self, catalog: Catalog, pins: Pins, now_ms: float, is_wanted: Callable[[Namespace], bool]) -> None:
        self.freed_bytes = 0
        self._catalog = catalog
        self._pins = pins
        self._now_ms = now_ms
        self._is_wanted = is_wanted
        self._order = itertools.count()
        self._heap: list[tuple[bool, float, float, int, _Place]] = []
        self._entries: dict[tuple[Namespace, ManifestId], ManifestEntry] = {}
        self._cut: dict[tuple[Namespace, ManifestId], None] = {}
        self._gone: set[tuple[Namespace, PageKey]] = set()
        # By page: manifests with bytes of their own that end there and are left, and children that are not.
        self._num_tails: Counter[tuple[Namespace, PageKey]] = Counter()
        self._num_gone_children: Counter[tuple[Namespace, PageKey]] = Counter()
        for entry in catalog.entries():
            self._add(entry)
        for namespace, key in dict.fromkeys((e.manifest.namespace, _last(e.manifest)) for e in self._entries.values()):
            self._offer_page(namespace, key)

    def step(self) -> bool:
        """Give up what is worth least; False when nothing more may go."""
        if not self._heap:
            return False
        place = heapq.heappop(self._heap)[-1]
        namespace, key = place.namespace, place.key
        if place.manifest_id is not None:
            entry = self._entries[namespace, place.manifest_id]
            self._cut[namespace, place.manifest_id] = None
            left = shorten(entry.manifest, len(entry.manifest.page_keys), PAGE_TOKENS)
            self.freed_bytes += entry.num_bytes - (0 if left is None else manifest_bytes(left))
            if key is not None:
                self._num_tails[namespace, key] -= 1
            self._offer_page(namespace, key)
        elif key is not None:
            page = self._catalog.page_entry(namespace, key)
            self._gone.add((namespace, key))
            self.freed_bytes += page.num_bytes
            for manifest in self._catalog.manifests_of_page(namespace, key):
                self._cut[namespace, manifest.manifest_id] = None
                if page.parent is None:
                    left = shorten(manifest, len(manifest.page_keys), PAGE_TOKENS)
                    self.freed_bytes += 0 if left is None else manifest_bytes(left)
            if page.parent is not None:
                self._num_gone_children[namespace, page.parent] += 1
            self._offer_page(namespace, page.parent)
        return True

    def cuts(self) -> Cuts:
        """What becomes of every manifest that lost something.

        One that only names pages is kept where no other names its last one.
        """
        cuts: dict[Namespace, dict[ManifestId, Manifest | None]] = {}
        named: set[tuple[Namespace, PageKey]] = set()
        for namespace, manifest_id in self._cut:
            manifest = self._entries[namespace, manifest_id].manifest
            kept = sum((namespace, key) not in self._gone for key in manifest.page_keys)
            left = shorten(manifest, kept, PAGE_TOKENS)
            if left is not None:
                last = (namespace, left.page_keys[-1])
                if last in named or self._is_named(*last):
                    left = None
                else:
                    named.add(last)
            cuts.setdefault(namespace, {})[manifest_id] = left
        return cuts

    def _is_named(self, namespace: Namespace, key: PageKey) -> bool:
        """Whether a page that stays lies behind this one, or a manifest that stays whole ends there."""
        children = self._catalog.page_entry(namespace, key).children
        if any((namespace, child) not in self._gone for child in children):
            return True
        ends = self._catalog.manifests_behind(namespace, key)
        return any((namespace, entry.manifest.manifest_id) not in self._cut for entry in ends)

    def _add(self, entry: ManifestEntry) -> None:
        manifest = entry.manifest
        namespace, last = manifest.namespace, _last(manifest)
        self._entries[namespace, manifest.manifest_id] = entry
        if manifest.tail is None and manifest.boundary is None:
            return
        if last is not None:
            self._num_tails[namespace, last] += 1
        if self._pins.holds_manifest(namespace, manifest.manifest_id):
            return
        tail_tokens = len(manifest.tail_token_ids) // TOKEN_BYTES
        # Without its boundary record a state that cannot be cut is lost as a whole.
        num_tokens = tail_tokens if manifest.boundary is None else manifest.token_count
        value = 0.0
        if manifest.is_head:
            value = self._value(entry.use, manifest.token_count - num_tokens, num_tokens, entry.num_bytes)
        self._offer(_Place(namespace, last, manifest.manifest_id), value, entry.use)

    def _offer_page(self, namespace: Namespace, key: PageKey | None) -> None:
        """Let a page go next, if nothing lies behind it any more."""
        if key is None or self._pins.holds_page(namespace, key):
            return
        entry = self._catalog.page_entry(namespace, key)
        if self._num_tails[namespace, key] or self._num_gone_children[namespace, key] < len(entry.children):
            return
        value = self._value(entry.use, entry.page.first_token, entry.page.num_tokens, entry.num_bytes)
        self._offer(_Place(namespace, key, None), value, entry.use)

    def _offer(self, place: _Place, value: float, use: Use) -> None:
        wanted = self._is_wanted(place.namespace)
        heapq.heappush(self._heap, (wanted, value, use.last_ms, next(self._order), place))

    def _value(self, use: Use, first_token: int, num_tokens: int, num_bytes: int) -> float:
        """Token costs per byte and second."""
        cost = num_tokens * (1 + first_token / _ATTENTION_TOKENS)
        age_s = max(1.0, self._now_ms - use.last_ms) / 1_000
        return cost * math.log2(1 + use.count) / age_s / num_bytes


def _last(manifest: Manifest) -> PageKey | None:
    return manifest.page_keys[-1] if manifest.page_keys else None
