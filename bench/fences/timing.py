"""Processor time of one thread, and percentiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence


def cpu_us(action: Callable[[], object]) -> float:
    start = time.thread_time_ns()
    action()
    return (time.thread_time_ns() - start) / 1e3


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
