"""Chooses a token from logits. Each choice has its own generator, so its draws don't depend on the batch."""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

from services.engine.penalties import Penalties
from services.engine.request import SamplingParams

_HEAD = 1024
"""Nucleus sampling sorts this many of the likeliest tokens first, and all of them only if those don't suffice."""


class Sampler:
    """One choice's tokens."""

    def __init__(self, params: SamplingParams, prompt_ids: bytes = b"", choice: int = 0) -> None:
        """``prompt_ids`` are int32 little-endian. Equal seeds and choices draw alike; other choices independently."""
        self._params = params
        self._penalties = Penalties(params, prompt_ids) if Penalties.are_asked(params) else None
        seed = secrets.randbits(64) if params.seed is None else params.seed
        # Philox takes 128 bits: the seed, and above it the choice.
        self._generator = np.random.Generator(np.random.Philox(key=seed | choice << 64))

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to report beside the chosen token; None for no log-probabilities."""
        return self._params.logprobs

    @property
    def takes_likeliest(self) -> bool:
        """Whether the model's likeliest token is always taken."""
        return self._is_greedy and self._penalties is None

    def draw(self, logits: npt.NDArray[np.float32]) -> int:
        """Sample from one row, or take its likeliest token.

        Order: penalties and bias, temperature, top-k, nucleus (Holtzman et al. 2020), min-p (Nguyen et al. 2024),
        inverse CDF.
        """
        scaled = logits.astype(np.float64)
        if self._penalties is None:
            return self._draw(scaled)
        self._penalties.adjust(scaled)
        token_id = self._draw(scaled)
        self._penalties.count(token_id)
        return token_id

    def take(self, token_id: int) -> None:
        """A token comes that nobody drew."""
        if self._penalties is not None:
            self._penalties.count(token_id)

    @property
    def _is_greedy(self) -> bool:
        return self._params.temperature == 0 or self._params.top_k == 1

    def _draw(self, scaled: npt.NDArray[np.float64]) -> int:
        if self._is_greedy:
            return int(scaled.argmax())
        scaled -= scaled.max()
        scaled /= self._params.temperature
        weights = np.exp(scaled)
        weights /= weights.sum()
        ids = self._candidates(weights)
        likelihoods = weights[ids]
        cumulative = np.cumsum(likelihoods)
        place = int(np.searchsorted(cumulative, self._generator.random() * float(cumulative[-1]), side="right"))
        if place == len(ids):
            # By rounding. What is masked out is not to be had, not even then.
            place = int(np.flatnonzero(likelihoods)[-1])
        return int(ids[place])

    def _candidates(self, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
        """Ids that may be drawn, likeliest first; in id order, when neither top-k nor the nucleus limits them."""
        ids = self._in_top_k_and_nucleus(weights)
        if self._params.min_p:
            ids = ids[weights[ids] >= self._params.min_p * weights.max()]
        return ids

    def _in_top_k_and_nucleus(self, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
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
    # By weight, then by id: equal weights must not be told apart by chance, at the cut neither.
    least = np.partition(weights, len(weights) - count)[len(weights) - count]
    above = np.flatnonzero(weights > least)
    ids = np.concatenate((above, np.flatnonzero(weights == least)[: count - len(above)]))
    return ids[np.lexsort((ids, -weights[ids]))]
