"""Applies what a fence allows to a model's logits."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from services.engine.fence.allowed import Allowed, Free, Ids, Mask

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_MOST = np.where(_BITS, np.float32(np.inf), np.float32(-np.inf))
"""By byte of a row: the most that each of its eight logits may be. Three times as fast as unpacking the bits."""


def is_allowed(allowed: Allowed, token_id: int) -> bool:
    """Whether a token may come next."""
    match allowed:
        case Free():
            return True
        case Ids(ids):
            return token_id in ids
        case Mask(row):
            return bool(int(row[token_id >> 5]) >> (token_id & 31) & 1)


def masked(
    logits: npt.NDArray[np.float32], allowed: Allowed, excluded: Collection[int] = ()
) -> npt.NDArray[np.float32]:
    """A copy of ``logits`` [vocabulary] in which all but the allowed ones are minus infinity.

    ``excluded`` ids are left out too, unless nothing else is allowed: then the fence is right.
    """
    kept = _only(logits, allowed)
    if excluded:
        places = list(excluded)
        before = kept[places]
        kept[places] = -np.inf
        if not np.isfinite(kept.max()):
            kept[places] = before
    return kept


def _only(logits: npt.NDArray[np.float32], allowed: Allowed) -> npt.NDArray[np.float32]:
    match allowed:
        case Free():
            return logits.copy()
        case Ids(ids):
            places = list(ids)
            kept = np.full_like(logits, -np.inf)
            kept[places] = logits[places]
            return kept
        case Mask(row):
            most = np.take(_MOST, row.view(np.uint8), axis=0).reshape(-1)[: len(logits)]
            return np.minimum(most, logits, out=most)
