"""Finds stop texts in the bytes of sampled tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopHit:
    """``index`` of the stop text, and how many output tokens lie wholly before it."""

    index: int
    tokens_before: int


class StopScanner:
    """One request's search. Keeps only as many bytes as the longest stop text can reach back over."""

    def __init__(self, stop_texts: Sequence[bytes]) -> None:
        self._stop_texts = stop_texts
        self._reach = max(map(len, stop_texts), default=0) - 1
        self._window = b""
        self._num_bytes = 0
        self._ends: list[int] = []

    def push(self, token: bytes) -> StopHit | None:
        """Add a token's bytes; the earliest stop text that they complete, the longest of several at one place."""
        self._num_bytes += len(token)
        self._ends.append(self._num_bytes)
        if not self._stop_texts:
            return None
        window = self._window + token
        found = [
            (place, -len(text), index)
            for index, text in enumerate(self._stop_texts)
            if (place := window.find(text)) >= 0
        ]
        if not found:
            self._window = window[-self._reach :] if self._reach else b""
            return None
        place, _, index = min(found)
        start = self._num_bytes - len(window) + place
        return StopHit(index, bisect_right(self._ends, start))
