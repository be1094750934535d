"""The longest stored prefix of a prompt: whole pages by key, then what lies behind them by its token ids.

Behind the last whole page three things may follow: a terminal state whose tail the prompt continues (a boundary), and
tails and pages that agree with the prompt for a while and then differ, or reach beyond its end (a partial).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.identity import PAGE_TOKENS
from services.kvstore.catalog import Catalog, ManifestEntry
from services.kvstore.state import TOKEN_BYTES, Manifest, Namespace, Page, PageKey


@dataclass(frozen=True, slots=True)
class TailQuery:
    """The prompt's int32-LE ids behind its first ``first_page`` pages."""

    first_page: int
    token_ids: bytes

    def ids_from(self, num_pages: int, end_tokens: Sequence[int] = ()) -> bytes | None:
        """Ids behind ``num_pages`` pages, up to the first of ``end_tokens``; None when they were not given."""
        if num_pages < self.first_page:
            return None
        first_token = num_pages * PAGE_TOKENS
        ends = [token - first_token for token in end_tokens if token >= first_token]
        start = (num_pages - self.first_page) * PAGE_TOKENS * TOKEN_BYTES
        return self.token_ids[start : start + TOKEN_BYTES * min(ends, default=len(self.token_ids))]


@dataclass(frozen=True, slots=True)
class Partial:
    """The page, or the manifest with the tail, whose first ``num_tokens`` ids the prompt goes on with."""

    owner: Page | Manifest
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Match:
    """Whole pages, the terminal state that ends behind them inside the prompt, and what reaches further than that."""

    pages: Sequence[Page]
    boundary: Manifest | None
    partial: Partial | None

    @property
    def is_empty(self) -> bool:
        """Nothing was found."""
        return not self.pages and self.boundary is None and self.partial is None


def match(
    catalog: Catalog,
    namespace: Namespace,
    keys: Sequence[PageKey],
    tail: TailQuery | None,
    extra_positions: Sequence[int] = (),
) -> Match:
    """Ids alone are compared behind the pages, so nothing reaches over an extra (tokens of the prompt)."""
    pages = catalog.leading_pages(namespace, keys)
    ids = None if tail is None else tail.ids_from(len(pages), extra_positions)
    if ids is None:
        return Match(pages, None, None)
    last = pages[-1].key if pages else None
    manifests = [
        entry for entry in catalog.manifests_behind(namespace, last) if len(entry.manifest.page_keys) == len(pages)
    ]
    boundary = _best_boundary(manifests, ids)
    partial = _best_partial([*manifests, *catalog.pages_behind(namespace, last)], ids)
    behind = 0 if boundary is None else len(boundary.tail_token_ids) // TOKEN_BYTES
    return Match(pages, boundary, partial if partial is not None and partial.num_tokens > behind else None)


def _best_boundary(entries: Sequence[ManifestEntry], token_ids: bytes) -> Manifest | None:
    """One without a tail counts only if it has a boundary record: the pages alone are as good otherwise."""
    fitting = [
        entry
        for entry in entries
        if (entry.manifest.tail is not None or entry.manifest.boundary is not None)
        and token_ids.startswith(entry.manifest.tail_token_ids)
    ]
    best = max(fitting, key=lambda entry: (entry.manifest.token_count, entry.use.last_ms), default=None)
    return None if best is None else best.manifest


def _best_partial(candidates: Sequence[ManifestEntry | Page], token_ids: bytes) -> Partial | None:
    best: Partial | None = None
    for candidate in candidates:
        owner = candidate if isinstance(candidate, Page) else candidate.manifest
        stored = owner.token_ids if isinstance(owner, Page) else owner.tail_token_ids
        # Most have nothing in common with the prompt, or less than the best.
        least = (best.num_tokens if best else 0) + 1
        if len(stored) >= least * TOKEN_BYTES and token_ids.startswith(stored[: least * TOKEN_BYTES]):
            best = Partial(owner, _common_tokens(stored, token_ids))
    return best


def _common_tokens(left: bytes, right: bytes) -> int:
    low, high = 0, min(len(left), len(right)) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        end = middle * TOKEN_BYTES
        if left[:end] == right[:end]:
            low = middle
        else:
            high = middle - 1
    return low
