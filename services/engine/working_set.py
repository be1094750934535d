"""Which sessions were active lately, and how many blocks they would need to go on. Pure.

A session is what one conversation key names within a cache scope. Its working set are the blocks of its latest turn,
without those that it found in place when it was first seen: these belong to all who share them (a static prefix).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

_RETURNS_WITHIN_S = 15.0
"""Most of an agent's turns begin within this after the one before (tools take 5.2 s in the median). Simulated with 25
and 40 sessions in a pool for ten, 15 s gave more turns than 30 s or 90 s."""
_MAX_SESSIONS = 1_024


@dataclass(slots=True)
class _Session:
    shared_blocks: int
    blocks: int
    last_s: float
    num_running: int = 0


class WorkingSets:
    """Owned by the step loop's task. Bounded: of the sessions that do not run, the latest ones are known."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[tuple[str, str], _Session] = OrderedDict()

    def enter(self, key: tuple[str, str], matched_blocks: int, blocks: int, now_s: float) -> None:
        """A session's request was admitted with ``blocks``, of which it found ``matched_blocks`` in place."""
        session = self._sessions.setdefault(key, _Session(matched_blocks, blocks, now_s))
        session.blocks, session.last_s = blocks, now_s
        session.num_running += 1
        self._sessions.move_to_end(key)
        if len(self._sessions) > _MAX_SESSIONS:
            oldest = next((k for k, s in self._sessions.items() if not s.num_running), key)
            if oldest != key:
                del self._sessions[oldest]

    def leave(self, key: tuple[str, str], blocks: int, now_s: float) -> None:
        """A request that had entered no longer runs; its state takes ``blocks``."""
        session = self._sessions[key]
        session.blocks, session.last_s = blocks, now_s
        session.num_running -= 1
        self._sessions.move_to_end(key)

    def is_active(self, key: tuple[str, str], now_s: float) -> bool:
        """Whether the session runs or is expected back soon."""
        session = self._sessions.get(key)
        return session is not None and _is_active(session, now_s)

    def is_resident(self, key: tuple[str, str], matched_blocks: int) -> bool:
        """Whether blocks of the session's own are among those that its prompt finds in place."""
        session = self._sessions.get(key)
        return session is not None and matched_blocks > session.shared_blocks

    def room(self, capacity_blocks: float, now_s: float) -> float:
        """Blocks that a session beside the active ones may take, so that all fit ``capacity_blocks``.

        It is expected to grow to the mean of the others: where that does not fit, there is no room at all. O(sessions).
        """
        sets = [max(0, s.blocks - s.shared_blocks) for s in self._sessions.values() if _is_active(s, now_s)]
        left = capacity_blocks - sum(sets)
        return math.inf if not sets else left if left >= sum(sets) / len(sets) else 0.0


def _is_active(session: _Session, now_s: float) -> bool:
    return session.num_running > 0 or now_s - session.last_s < _RETURNS_WITHIN_S
