"""When a refused request would find room: the pace of the engine as measured, and what is ahead in the queue. Pure.

Requests leave the queue as those that run end. Their ends are found by list scheduling: as many slots as requests run,
each free when its output is written; the prompts in between are computed one after the other.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

MAX_DELAY_S = 3_600.0
_MIN_DELAY_S = 1.0
_WEIGHT = 0.1
_MIN_PREFILL_TOKENS = 32
"""Steps with fewer tokens of prompts say little about what such a token costs."""
_MAX_EXPECTED = 4_096


@dataclass(frozen=True, slots=True)
class Job:
    """What is left of one choice of a request: tokens of its prompt, and the most tokens of its output."""

    prompt_tokens: int
    written_tokens: int
    max_tokens: int


class Pace:
    """How fast steps are, and how long outputs are, as seen lately.

    The length of an output is a mean plus a mean deviation, as timeouts are in RFC 6298: an estimate that is too short
    sends callers back to a full queue.
    """

    def __init__(self, seconds_per_prompt_token: float, seconds_per_decode_step: float = 0.05) -> None:
        """Both are first guesses."""
        self._prompt_token_s = seconds_per_prompt_token
        self._decode_step_s = seconds_per_decode_step
        self._mean_output = 256.0
        self._deviation = 128.0

    def observe_step(self, prompt_tokens: int, decode_rows: int, seconds: float) -> None:
        """Learn from a step."""
        if not prompt_tokens:
            self._decode_step_s += _WEIGHT * (seconds - self._decode_step_s)
        elif prompt_tokens >= _MIN_PREFILL_TOKENS:
            decode_s = min(self._decode_step_s, 0.9 * seconds) if decode_rows else 0.0
            self._prompt_token_s += _WEIGHT * ((seconds - decode_s) / prompt_tokens - self._prompt_token_s)

    def observe_output(self, num_tokens: int) -> None:
        """Learn from an answer that has ended."""
        error = num_tokens - self._mean_output
        self._deviation += _WEIGHT * (abs(error) - self._deviation)
        self._mean_output += _WEIGHT * error

    def seconds_until(self, running: Iterable[Job], waiting: Iterable[Job], num_slots: int, count: int) -> float:
        """Until ``count`` requests have left the queue: those that wait, in order, and then others like them.

        As many run at a time as do now, or ``num_slots`` if none does. O(n log n) for n jobs.
        """
        slots: list[float] = []
        seconds = steps = 0.0
        for job in running:
            slots.append(self._steps(job))
            seconds += job.prompt_tokens * self._prompt_token_s
        slots = slots or [0.0] * num_slots
        heapq.heapify(slots)
        for place, job in enumerate(islice(cycle(waiting), count), 1):
            steps = slots[0]
            # The last one only has to begin.
            if place < count:
                heapq.heapreplace(slots, steps + self._steps(job))
                seconds += job.prompt_tokens * self._prompt_token_s
        return seconds + steps * self._decode_step_s

    def _steps(self, job: Job) -> float:
        # One that is longer than expected goes on for longer still.
        expected = max(self._mean_output + self._deviation - job.written_tokens, self._mean_output / 2)
        return min(float(job.max_tokens - job.written_tokens), expected)


class RetryDelays:
    """Tells refused requests when to come back: behind all that wait, and behind others that were told so before.

    A refused request is expected back when its delay is over, and then forgotten.
    """

    def __init__(self, pace: Pace, clock: Callable[[], float]) -> None:
        self.pace = pace
        self._clock = clock
        self._expected: list[tuple[float, bool, int]] = []  # heap of times, whether in the background, choices

    def delay_s(
        self,
        running: Sequence[Job],
        waiting: Sequence[Job],
        num_slots: int,
        *,
        num_over: int,
        choices: int,
        is_background: bool,
    ) -> float:
        """Seconds until a request of so many choices finds room, where ``num_over`` have to leave the queue first."""
        now_s = self._clock()
        while self._expected and self._expected[0][0] <= now_s:
            heapq.heappop(self._expected)
        ahead = sum(n for _, is_behind, n in self._expected if is_background or not is_behind)
        seconds = self.pace.seconds_until(running, waiting, num_slots, num_over + ahead)
        delay_s = min(MAX_DELAY_S, max(_MIN_DELAY_S, seconds))
        if len(self._expected) < _MAX_EXPECTED:
            heapq.heappush(self._expected, (now_s + delay_s, is_background, choices))
        return delay_s
