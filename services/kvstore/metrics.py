"""Counters of one store, in all and by namespace, and what Prometheus sees of them."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Literal

from prometheus_client import Counter as PrometheusCounter
from prometheus_client import Gauge

from services.kvstore.state import Namespace

Event = Literal["hits", "misses", "evictions", "verify_failures", "dropped_writes", "orphan_pages"]

_EVENTS = PrometheusCounter("fencepost_kvstore_events", "What happened to stored state since the start.", ["event"])
BYTES = Gauge("fencepost_kvstore_bytes", "Bytes of pages, manifests and records.")
CAP_BYTES = Gauge("fencepost_kvstore_cap_bytes", "The byte cap.")
PAGES = Gauge("fencepost_kvstore_pages", "Whole pages.")
MANIFESTS = Gauge("fencepost_kvstore_manifests", "Terminal states.")
RECORDS = Gauge("fencepost_kvstore_records", "Records.")
LEASES = Gauge("fencepost_kvstore_leases", "Leases held.")


class Counters:
    """What happened since the start. Any thread may count."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._total: Counter[Event] = Counter()
        self._by_namespace: Counter[tuple[Namespace, Event]] = Counter()

    def add(self, event: Event, namespace: Namespace | None, count: int = 1) -> None:
        """Count; a namespace that holds nothing is given as None, so that unknown ones take no memory."""
        with self._counting:
            self._total[event] += count
            if namespace is not None:
                self._by_namespace[namespace, event] += count
        _EVENTS.labels(event).inc(count)

    def get(self, event: Event, namespace: Namespace | None) -> int:
        """The count in a namespace, or in all."""
        return self._total[event] if namespace is None else self._by_namespace[namespace, event]
