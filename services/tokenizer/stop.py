"""Finds stop texts in the sampled bytes."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """``index`` of the stop, and where it starts, counted from the first byte of the token that completes it: 0 or
    more inside that token, negative before it."""

    index: int
    start: int


class StopMatcher:
    """Takes tokens in order; how they are grouped into messages doesn't matter.

    The first token that completes a stop ends the search; of several that it completes, the one that starts first
    wins, then the longest. The engine decides alike, so the text ends where the engine's state does. One
    Knuth–Morris–Pratt automaton per stop: constant cost a byte.
    """

    def __init__(self, stops: Sequence[bytes]) -> None:
        """No stop is empty."""
        self._stops = stops
        self._failures = [_failure_table(stop) for stop in stops]
        self._states = [0] * len(stops)

    @property
    def num_held(self) -> int:
        """How many of the last bytes may be the beginning of a stop."""
        return max(self._states, default=0)

    def feed(self, token: bytes) -> StopMatch | None:
        """The stop that a token's bytes complete. After a match the matcher is used up."""
        found: list[tuple[int, int, int]] = []
        for index, stop in enumerate(self._stops):
            end = self._advance(index, stop, token)
            if end is not None:
                found.append((end - len(stop), -len(stop), index))
        if not found:
            return None
        start, _, index = min(found)
        return StopMatch(index, start)

    def _advance(self, index: int, stop: bytes, token: bytes) -> int | None:
        """Number of the token's bytes up to the first end of ``stop``."""
        state, failures = self._states[index], self._failures[index]
        for num_bytes, byte in enumerate(token, 1):
            while state and stop[state] != byte:
                state = failures[state - 1]
            if stop[state] == byte:
                state += 1
            if state == len(stop):
                return num_bytes
        self._states[index] = state
        return None


def _failure_table(pattern: bytes) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix (Knuth, Morris, Pratt 1977)."""
    table = [0] * len(pattern)
    length = 0
    for i in range(1, len(pattern)):
        while length and pattern[i] != pattern[length]:
            length = table[length - 1]
        if pattern[i] == pattern[length]:
            length += 1
        table[i] = length
    return table
