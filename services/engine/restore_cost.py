"""What a restore costs and what it saves, both as measured: the decision whether to restore. Pure.

Computing n tokens at positions that sum to p takes about a·n + b·p seconds: the second term is attention. Both are
fitted to the prefill steps seen lately, by least squares with forgetting, drawn to a first guess while little is known.
Reading takes what waits to be read and what is asked for, over the bandwidth seen lately.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from services.engine.node import ATTENTION_TOKENS

_FORGET = 0.97
_PRIOR_WEIGHT = 0.02
_HALF_LIFE_S = 120.0
_MIN_READ_BYTES = 2**20
_MIN_STEP_TOKENS = 32
"""Smaller steps are bound by other things than the work on tokens."""


class PrefillCost:
    """Seconds that computing takes."""

    def __init__(self, seconds_per_token: float) -> None:
        """``seconds_per_token`` is a first guess, near position 0."""
        slope = seconds_per_token / ATTENTION_TOKENS
        rows = [(256.0, 256.0 * 128), (256.0, 256.0 * ATTENTION_TOKENS)]
        self._prior_products = np.zeros((2, 2))
        self._prior_moments = np.zeros(2)
        for tokens, positions in rows:
            row = _row(tokens, positions)
            self._prior_products += np.outer(row, row)
            self._prior_moments += row * (seconds_per_token * tokens + slope * positions)
        self._products = self._prior_products * (1 - _PRIOR_WEIGHT)
        self._moments = self._prior_moments * (1 - _PRIOR_WEIGHT)

    def observe(self, num_tokens: int, sum_of_positions: int, seconds: float) -> None:
        """Learn from a step that computed so many tokens."""
        if num_tokens < _MIN_STEP_TOKENS:
            return
        row = _row(num_tokens, sum_of_positions)
        self._products = _FORGET * self._products + np.outer(row, row)
        self._moments = _FORGET * self._moments + row * seconds

    def seconds(self, first: int, last: int) -> float:
        """What tokens [first, last) of a prompt will take."""
        products = self._products + _PRIOR_WEIGHT * self._prior_products
        moments = self._moments + _PRIOR_WEIGHT * self._prior_moments
        each, slope = np.linalg.solve(products, moments)
        row = _row(last - first, (first + last - 1) * (last - first) / 2)
        if each < 0 or slope < 0:
            # Two kinds of steps too alike to be told apart: one rate for both.
            each, slope = moments[0] / products[0, 0], 0.0
        return float(row @ (each, slope))


class ReadCost:
    """Seconds that reading takes, and what waits to be read.

    What was seen fades: a store that was slow is tried again after some minutes.
    """

    def __init__(
        self, bytes_per_s: float = 500e6, latency_s: float = 0.02, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """The figures are a first guess."""
        self.pending_bytes = 0
        """What waits to be read, and what is being read."""
        self._first_bytes_per_s = bytes_per_s
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._clock = clock
        self._observed_s = clock()

    def observe(self, num_bytes: int, seconds: float, *, is_whole: bool = True) -> None:
        """Learn from a read of ``num_bytes`` that was not waiting for another; ``is_whole``: it ended in time."""
        if is_whole and num_bytes < _MIN_READ_BYTES:
            return
        rate, now = num_bytes / max(seconds - self._latency_s, seconds / 2), self._current()
        # Of one that did not end in time no more is known than that the store is slower than this.
        self._bytes_per_s = now + 0.3 * (rate - now) if is_whole else min(now, rate)
        self._observed_s = self._clock()

    def seconds(self, num_bytes: int) -> float:
        """Until so many bytes are there."""
        return self._latency_s + num_bytes / self._current()

    def _current(self) -> float:
        faded = 1 - 0.5 ** ((self._clock() - self._observed_s) / _HALF_LIFE_S)
        # By ratio: on the way from one byte a second to a disk's rate, a sum would be half-way after a second already.
        return max(1.0, self._bytes_per_s) ** (1 - faded) * self._first_bytes_per_s**faded


def _row(num_tokens: float, sum_of_positions: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    # Scaled, so that both columns have one size and the solution is well conditioned.
    return np.array([num_tokens, sum_of_positions / ATTENTION_TOKENS])
