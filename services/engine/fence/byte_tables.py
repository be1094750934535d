"""Walks every token of a vocabulary through a small automaton over bytes, at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def walk_all(texts: Sequence[bytes], next_states: NDArray[np.uint8], start: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The state behind each text from each state of ``start``: ``[len(start), len(texts)]``.

    ``next_states`` is ``[states, 256]``. Column by column over the texts' bytes, so the cost is that of one gather per
    byte and start.
    """
    lengths = np.array([len(text) for text in texts], np.int64)
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths)
    starts = ends - lengths
    blob = np.frombuffer(b"".join(texts), np.uint8)
    states = np.repeat(start[:, None], len(texts), axis=1)
    flat = next_states.reshape(-1)
    ordered_starts, ordered_lengths = starts[order], lengths[order]
    for column in range(int(lengths.max(initial=0))):
        num_left = int(np.searchsorted(-ordered_lengths, -column, side="left"))
        found = blob[ordered_starts[:num_left] + column].astype(np.uint16)
        at = states[:, :num_left].astype(np.uint16) * np.uint16(256) + found[None, :]
        states[:, :num_left] = flat[at]
    result = np.empty_like(states)
    result[:, order] = states
    return result
