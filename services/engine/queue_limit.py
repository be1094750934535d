"""How many may wait, and what those are told that come beyond."""

from __future__ import annotations

from services.engine.errors import InvalidRequest, Overloaded
from services.engine.request import Priority, Request
from services.engine.restores import Restores
from services.engine.retry_delay import Job, RetryDelays
from services.engine.scheduler import Scheduler
from services.engine.sequence import Sequence, State


class QueueLimit:
    """Background requests take no place in the queue from interactive ones."""

    def __init__(self, max_waiting: int, scheduler: Scheduler, restores: Restores, retry_delays: RetryDelays) -> None:
        """``max_waiting`` counts choices."""
        self._max_waiting = max_waiting
        self._scheduler = scheduler
        self._restores = restores
        self._retry_delays = retry_delays

    def check(self, request: Request) -> None:
        """Raises Overloaded where a request finds no place, InvalidRequest where it never will."""
        choices = request.sampling.choices
        if choices > self._max_waiting:
            raise InvalidRequest("sampling.choices", f"must be at most {self._max_waiting} here")
        classes = tuple(Priority) if request.is_background else (Priority.INTERACTIVE,)
        waiting = self._scheduler.num_queued_of(*classes) + self._restores.num_lookups(classes)
        num_over = waiting + choices - self._max_waiting
        if num_over <= 0:
            return
        delay_s = self._retry_delays.delay_s(
            *self._jobs(),
            self._scheduler.max_running,
            num_over=num_over,
            choices=choices,
            is_background=request.is_background,
        )
        raise Overloaded(f"{waiting} requests are waiting", retry_after_s=delay_s)

    def _jobs(self) -> tuple[list[Job], list[Job]]:
        """What runs, and what waits in order of admission, choice by choice."""
        scheduler = self._scheduler
        attached, waiting = scheduler.attached, list[Job]()
        for sequence in (*attached, *scheduler.waiting):
            if sequence.state is State.WAITING:
                waiting.append(_job(sequence, scheduler.admission.num_uncached(sequence)))
            waiting += [_job(sequence, 0)] * sequence.num_to_follow
        return [_job(s, 0 if s.num_output else s.num_pending) for s in attached], waiting


def _job(sequence: Sequence, prompt_tokens: int) -> Job:
    return Job(prompt_tokens, sequence.num_output, sequence.max_tokens)
