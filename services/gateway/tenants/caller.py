"""Who asks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """What an API key stands for. ``persist``: whether state may be written to disk; None: the server's setting."""

    tenant: str
    cache_scope: str
    persist: bool | None


DEFAULT = Caller("default", "default", None)
"""Everybody, where no keys are configured."""
