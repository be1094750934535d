"""Recent prompts with the answers they got, to say where a prompt left the nearest earlier one.

The newest ones are kept, within a budget of bytes. Nothing here decides what is reused; it only explains.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from services.tokenizer.conversation import Conversation
from services.tokenizer.events import Cached
from services.tokenizer.prompt.builder import Prompt
from services.tokenizer.rope.prompt_text import TokenIds

NEAR_MISS_TOKENS = 1024
NEAR_MISS_SHARE = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class Footprint:
    """One request: what the model read and wrote. ``ids`` are both, the last sampled token aside."""

    tenant: str
    cache_scope: str
    response_id: str
    source: Conversation | str
    prompt: Prompt
    ids: TokenIds
    cached: Cached

    @property
    def num_bytes(self) -> int:
        """Memory that it keeps alive, about."""
        return self.ids.nbytes + self.prompt.ids.nbytes + 4 * len(self.prompt.encoded.prompt.text)


@dataclass(frozen=True, slots=True)
class Nearest:
    """Of the earlier footprints the one that shares most with a prompt, and how many tokens."""

    footprint: Footprint
    num_common: int

    @property
    def is_near_miss(self) -> bool:
        """Whether nearly all of a long state was shared, but not all: what a caller would have expected to be."""
        length = len(self.footprint.ids)
        return (
            self.num_common >= NEAR_MISS_TOKENS
            and self.num_common > NEAR_MISS_SHARE * length
            and self.num_common < length
        )


class Footprints:
    """Safe to use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._lock = threading.Lock()
        self._footprints: OrderedDict[tuple[str, str], Footprint] = OrderedDict()

    def put(self, footprint: Footprint) -> None:
        """Remember a request under its response's id."""
        key = (footprint.tenant, footprint.response_id)
        with self._lock:
            replaced = self._footprints.pop(key, None)
            self._num_bytes += footprint.num_bytes - (0 if replaced is None else replaced.num_bytes)
            self._footprints[key] = footprint
            while self._num_bytes > self._max_bytes:
                _, oldest = self._footprints.popitem(last=False)
                self._num_bytes -= oldest.num_bytes

    def get(self, tenant: str, response_id: str) -> Footprint | None:
        """The request that a response answered; None for another tenant's and for those that are forgotten."""
        with self._lock:
            return self._footprints.get((tenant, response_id))

    def nearest(self, tenant: str, cache_scope: str, ids: TokenIds, *, before: str | None = None) -> Nearest | None:
        """Of this tenant's and scope's requests the one that shares the longest prefix with ``ids``.

        ``before`` is a response: only requests before it are looked at.
        """
        with self._lock:
            candidates = list(self._footprints.values())
        best: Nearest | None = None
        for footprint in candidates:
            if footprint.tenant != tenant or footprint.cache_scope != cache_scope:
                continue
            if footprint.response_id == before:
                break
            num_common = common_prefix(ids, footprint.ids)
            if best is None or num_common >= best.num_common:
                best = Nearest(footprint, num_common)
        return best


def common_prefix(left: TokenIds, right: TokenIds) -> int:
    """Number of leading ids that are equal."""
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length
