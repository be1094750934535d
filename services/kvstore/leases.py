"""Pins keep state from being evicted; a lease is a pin that a client holds under an unguessable id for a while."""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass
from typing import TypeVar

from services.kvstore.state import ManifestId, Namespace, PageKey

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Pin:
    """Pages of a namespace and at most one manifest."""

    namespace: Namespace
    page_keys: tuple[PageKey, ...]
    manifest_id: ManifestId | None = None


class Pins:
    """Counts who protects what. A pin outlives what it names: deletion and damage do not wait for it."""

    def __init__(self) -> None:
        self._pages: Counter[tuple[Namespace, PageKey]] = Counter()
        self._manifests: Counter[tuple[Namespace, ManifestId]] = Counter()

    def pin(self, pin: Pin) -> None:
        """Protect from eviction until the same pin is unpinned."""
        self._pages.update((pin.namespace, key) for key in pin.page_keys)
        if pin.manifest_id is not None:
            self._manifests[pin.namespace, pin.manifest_id] += 1

    def unpin(self, pin: Pin) -> None:
        """Undo one ``pin``."""
        for key in pin.page_keys:
            _decrement(self._pages, (pin.namespace, key))
        if pin.manifest_id is not None:
            _decrement(self._manifests, (pin.namespace, pin.manifest_id))

    def holds_page(self, namespace: Namespace, key: PageKey) -> bool:
        """Whether anybody protects this page."""
        return (namespace, key) in self._pages

    def holds_manifest(self, namespace: Namespace, manifest_id: ManifestId) -> bool:
        """Whether anybody protects this manifest."""
        return (namespace, manifest_id) in self._manifests

    @property
    def is_empty(self) -> bool:
        """Nothing is protected."""
        return not self._pages and not self._manifests


@dataclass(slots=True)
class _Lease:
    pin: Pin
    expires_s: float


class LeaseTable:
    """Leases by id. Times are seconds of a monotonic clock that the caller reads."""

    def __init__(self, pins: Pins) -> None:
        self._pins = pins
        self._leases: dict[str, _Lease] = {}

    def acquire(self, pin: Pin, now_s: float, duration_s: float) -> str:
        """Pin, and return the id under which it can be extended or released."""
        lease_id = secrets.token_urlsafe(18)
        self._pins.pin(pin)
        self._leases[lease_id] = _Lease(pin, now_s + duration_s)
        return lease_id

    def extend(self, lease_id: str, now_s: float, duration_s: float) -> float:
        """Let it live ``duration_s`` from now; the seconds it has left, 0 when it is not there."""
        self.expire(now_s)
        lease = self._leases.get(lease_id)
        if lease is None:
            return 0.0
        lease.expires_s = now_s + duration_s
        return duration_s

    def release(self, lease_id: str) -> None:
        """Unpin; an unknown id is fine."""
        lease = self._leases.pop(lease_id, None)
        if lease is not None:
            self._pins.unpin(lease.pin)

    def expire(self, now_s: float) -> None:
        """Release those whose time is up."""
        for lease_id in [id_ for id_, lease in self._leases.items() if lease.expires_s <= now_s]:
            self.release(lease_id)

    def count(self, namespace: Namespace | None) -> int:
        """Leases held in a namespace, or in all."""
        pins = [lease.pin for lease in self._leases.values()]
        return sum(namespace is None or pin.namespace == namespace for pin in pins)


def _decrement(counter: Counter[_T], key: _T) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
