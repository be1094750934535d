"""Which pages of prompts were cached once: tells a prompt that was evicted from one that is new. Bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class SeenPages:
    """Page keys of states that were cached, those seen last. Owned by the step loop's task."""

    def __init__(self, max_pages: int = 65_536) -> None:
        self._max_pages = max_pages
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def add(self, keys: Iterable[bytes]) -> None:
        """The state of these pages is cached now."""
        for key in keys:
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._max_pages:
            self._keys.popitem(last=False)

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def clear(self) -> None:
        """What was cached is gone by intention: nobody shall miss it."""
        self._keys.clear()
