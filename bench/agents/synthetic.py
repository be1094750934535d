"""Sessions of the measured shape of Codex, scaled. Pure.

30 turns from 12k to some 80k tokens, of which the first 11.5k are an agent's own and shared; 1.6k new tokens a turn and
200 tokens of output in the median; tools take 5.2 s in the median and 81 s at the 99th percentile. A turn ends with a
call of one of six tools. Which one says how long it will take, rightly most of the time.
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

from bench.agents.session import Piece, Session, Turn

NUM_TURNS = 30
_STATIC_TOKENS = 11_500
_NEW_TOKENS, _NEW_SIGMA, _NEW_MOST = 1_600, 0.77, 20_000
_OUTPUT_TOKENS, _OUTPUT_SIGMA, _OUTPUT_MOST = 200, 0.94, 4_000
_WAIT_S = 5.2
_WAIT_SIGMA = math.log(81 / _WAIT_S) / NormalDist().inv_cdf(0.99)
_TOOLS = ("read", "search", "list", "edit", "test", "build")
_TOOL_ENDS = [NormalDist(0, _WAIT_SIGMA).inv_cdf((i + 1) / len(_TOOLS)) for i in range(len(_TOOLS) - 1)]
"""Logarithms of a wait over the median, where the tools' shares end: each takes a sixth of all waits."""
_RIGHTLY_TOLD = 0.85
_NUM_KINDS = 2


@dataclass(frozen=True, slots=True)
class Scale:
    """Real tokens to one token here, and seconds here to one real second."""

    tokens: float = 80.0
    time: float = 1.0


def sessions(seed: int, scale: Scale) -> Iterator[Session]:
    """Without end; the n-th one is the same whatever became of those before it."""
    number = 0
    while True:
        yield _session(seed, number, scale)
        number += 1


def _session(seed: int, number: int, scale: Scale) -> Session:
    rng = random.Random(f"{seed} {number}")
    name = f"session {seed} {number}"
    static = Piece(f"agent {number % _NUM_KINDS}", round(_STATIC_TOKENS / scale.tokens))
    turns: list[Turn] = []
    for at in range(NUM_TURNS):
        new = _lognormal(rng, _NEW_TOKENS, _NEW_SIGMA, _NEW_MOST) if at else 500 + 5_500 * rng.random()
        output = _lognormal(rng, _OUTPUT_TOKENS, _OUTPUT_SIGMA, _OUTPUT_MOST)
        slowness = rng.gauss(0, _WAIT_SIGMA)
        tool = _TOOLS[bisect(_TOOL_ENDS, slowness)] if rng.random() < _RIGHTLY_TOLD else rng.choice(_TOOLS)
        piece = Piece(f"{name} turn {at}", _tokens(new, scale))
        wait_s = scale.time * _WAIT_S * math.exp(slowness)
        pieces = (piece,) if at else (static, piece)
        turns.append(Turn(pieces, _tokens(output, scale), wait_s, (tool,)))
    return Session(name, tuple(turns))


def _lognormal(rng: random.Random, median: float, sigma: float, most: float) -> float:
    return min(most, median * math.exp(rng.gauss(0, sigma)))


def _tokens(real_tokens: float, scale: Scale) -> int:
    return max(1, round(real_tokens / scale.tokens))
