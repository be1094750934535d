"""The latest prompt of each conversation, and how much of it a new prompt repeats."""

import threading
from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

_SHORT_CHARS = 64


class Sized(Protocol):
    """What is kept."""

    @property
    def num_chars(self) -> int:
        """Characters of text that it holds on to."""
        ...


_Anchor = TypeVar("_Anchor", bound=Sized)


class AnchorCache(Generic[_Anchor]):
    """One immutable anchor for each key; least recently used out; any thread may call."""

    def __init__(self, max_entries: int, max_chars: int) -> None:
        self._max_entries = max_entries
        self._max_chars = max_chars
        self._lock = threading.Lock()
        self._anchor_by_key: OrderedDict[str, _Anchor] = OrderedDict()
        self._num_chars = 0

    @property
    def num_chars(self) -> int:
        """Characters of text held."""
        return self._num_chars

    def __len__(self) -> int:
        return len(self._anchor_by_key)

    def get(self, key: str) -> _Anchor | None:
        """The anchor of ``key``, which becomes the latest used."""
        with self._lock:
            anchor = self._anchor_by_key.get(key)
            if anchor is not None:
                self._anchor_by_key.move_to_end(key)
        return anchor

    def put(self, key: str, anchor: _Anchor) -> None:
        """Replace the anchor of ``key``. One that alone is over the limit is not kept."""
        with self._lock:
            old = self._anchor_by_key.pop(key, None)
            self._num_chars -= old.num_chars if old else 0
            self._anchor_by_key[key] = anchor
            self._num_chars += anchor.num_chars
            while self._num_chars > self._max_chars or len(self._anchor_by_key) > self._max_entries:
                _, oldest = self._anchor_by_key.popitem(last=False)
                self._num_chars -= oldest.num_chars


def common_prefix(left: str, right: str) -> int:
    """The number of leading characters that are equal, at the speed of comparing memory."""
    high = min(len(left), len(right))
    shorter, longer = (left, right) if len(left) == high else (right, left)
    if longer.startswith(shorter):
        return high
    low = 0
    # Invariant: the first `low` characters are equal, the first `high` are not.
    while high - low > _SHORT_CHARS:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    while left[low] == right[low]:
        low += 1
    return low
