"""What the store may use: the part of the settings that the domain knows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one store; sizes in bytes, times in seconds."""

    cap_bytes: int
    disk_reserve_bytes: int = 0
    max_writers: int = 8
    lease_s: float = 60.0
    response_ttl_s: float = 30 * 86_400.0
    replay_ttl_s: float = 7 * 86_400.0
    sweep_s: float = 300.0
