"""Chooses a token from logits. Each request has its own generator, so its draws don't depend on the batch."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from services.engine.request import SamplingParams

_HEAD = 1024
"""Nucleus sampling sorts this many of the likeliest tokens first, and all of them only if those don't suffice."""


class Sampler:
    """One request's choice of tokens."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        seed = secrets.randbits(64) if params.seed is None else params.seed
        self._generator = np.random.Generator(np.random.Philox(key=seed))

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self._params.temperature == 0 or self._params.top_k == 1

    def draw(self, logits: npt.NDArray[np.float32]) -> int:
        """Sample from one row: temperature, then top-k, then nucleus (Holtzman et al. 2020), then inverse CDF."""
        scaled = logits.astype(np.float64)
        scaled -= scaled.max()
        scaled /= self._params.temperature
        weights = np.exp(scaled)
        weights /= weights.sum()
        ids = self._candidates(weights)
        cumulative = np.cumsum(weights[ids])
        place = int(np.searchsorted(cumulative, self._generator.random() * float(cumulative[-1]), side="right"))
        return int(ids[min(place, len(ids) - 1)])

    def _candidates(self, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
        """Ids that may be drawn, likeliest first; all of them, in id order, when nothing limits the choice."""
        top_k, top_p = self._params.top_k, self._params.top_p
        if top_k is None and top_p >= 1:
            return np.arange(len(weights))
        limit = len(weights) if top_k is None else min(top_k, len(weights))
        ids = _likeliest(weights, min(limit, _HEAD))
        if len(ids) < limit and (top_p >= 1 or weights[ids].sum() < top_p):
            ids = _likeliest(weights, limit)
        if top_p < 1:
            kept = np.cumsum(weights[ids]) / (weights[ids].sum() if top_k is not None else 1.0)
            ids = ids[: int(np.searchsorted(kept, top_p, side="left")) + 1]
        return ids


def _likeliest(weights: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.intp]:
    ids = np.argpartition(weights, len(weights) - count)[len(weights) - count :]
    # By weight, then by id: equal weights must not be ordered by chance.
    return ids[np.lexsort((ids, -weights[ids]))]


def sample(logits: torch.Tensor, samplers: Sequence[Sampler]) -> list[int]:
    """One token per row of ``logits`` [rows, vocabulary]."""
    chosen = cast("list[int]", cast(Any, logits.argmax(dim=-1)).tolist())
    for row, sampler in enumerate(samplers):
        if not sampler.is_greedy:
            chosen[row] = sampler.draw(logits[row].float().cpu().numpy())
    return chosen
