"""The engine at one moment, as WatchLoad and the metrics show it."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from prometheus_client import Gauge

from services.engine.blocks import num_runs
from services.engine.cache_manager import PoolUse
from services.engine.sequence import Sequence

_BLOCKS = Gauge("fencepost_engine_blocks", "Device blocks by use.", ["use"])
_SEQUENCES = Gauge("fencepost_engine_sequences", "Requests by state.", ["state"])
_RUNS = Gauge("fencepost_engine_runs_per_sequence", "Mean stretches of consecutive blocks of a running request.")
_BELT_AGE = Gauge("fencepost_engine_belt_age_seconds", "Age of the cached block that would be evicted next.")


@dataclass(frozen=True, slots=True)
class Load:
    """What waits, runs and is held."""

    queued: int
    running: int
    blocks: PoolUse
    backlog_tokens: int
    belt_age_s: float | None
    is_draining: bool
    leases: int
    pending_writes: int


def show(load: Load, running: Many[Sequence]) -> None:
    """Set the gauges."""
    for use in ("free", "held", "cached"):
        _BLOCKS.labels(use).set(getattr(load.blocks, use))
    _SEQUENCES.labels("waiting").set(load.queued)
    _SEQUENCES.labels("running").set(load.running)
    _BELT_AGE.set(load.belt_age_s or 0.0)
    _RUNS.set(sum(num_runs(s.block_ids) for s in running) / len(running) if running else 0)
