"""The engine's one owner task: admission, steps, restores and writes, in the order that keeps state exact.

    while True:
        plan = scheduler.schedule(); sampled = runner.run(plan); scheduler.commit(plan, sampled)

The loop's task owns scheduler, cache manager and prefix tree. The forward runs in a thread; meanwhile callers may only
queue new requests and mark old ones as cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass

from prometheus_client import Counter, Gauge

from services.engine.blocks import num_runs
from services.engine.cache_manager import PoolUse
from services.engine.errors import ContextExceeded, Draining, InvalidRequest, Overloaded
from services.engine.prefix_tree import Node
from services.engine.request import Event, Failed, Finished, Request, Sampled
from services.engine.runner import run, work_of
from services.engine.runtime.paged import PagedRuntime
from services.engine.scheduler import Plan, Scheduler, Terminal
from services.engine.sequence import Sequence, State
from services.engine.ssd_tier import SsdTier, StoredHit

_MEASURE_EVERY_S = 0.5
_log = logging.getLogger(__name__)
_COMPUTED = Counter("fencepost_engine_computed_tokens_total", "Tokens that went through the model.")
_BLOCKS = Gauge("fencepost_engine_blocks", "Device blocks by use.", ["use"])
_SEQUENCES = Gauge("fencepost_engine_sequences", "Requests by state.", ["state"])
_RUNS = Gauge("fencepost_engine_runs_per_sequence", "Mean stretches of consecutive blocks of a running request.")
_BELT_AGE = Gauge("fencepost_engine_belt_age_seconds", "Age of the cached block that would be evicted next.")


@dataclass(frozen=True, slots=True)
class Load:
    """The engine at one moment."""

    queued: int
    running: int
    blocks: PoolUse
    backlog_tokens: int
    belt_age_s: float | None
    is_draining: bool
    leases: int
    pending_writes: int


@dataclass(frozen=True, slots=True)
class _Write:
    """A terminal state on its way to the store; ``node`` is pinned until it is there or dropped."""

    request: Request
    token_ids: bytes
    node: Node


class EngineCore:
    """Runs one model. ``run`` must be running for requests to make progress."""

    def __init__(
        self,
        runtime: PagedRuntime,
        scheduler: Scheduler,
        tier: SsdTier | None,
        compute: ThreadPoolExecutor,
        *,
        context_tokens: int,
        max_waiting: int,
        max_pending_writes: int,
    ) -> None:
        self._runtime = runtime
        self._scheduler = scheduler
        self._cache = scheduler.cache
        self._tier = tier
        self._compute = compute
        self.context_tokens = context_tokens
        self._max_waiting = max_waiting
        self._wake = asyncio.Event()
        self._is_draining = False
        self._tokens_per_s = 100.0
        self._measured_s = 0.0
        self._lookups = 0  # choices whose stored state is being looked up
        self._hits: dict[Sequence, StoredHit] = {}
        self._restores: dict[Sequence, asyncio.Task[None]] = {}
        self._max_pending_writes = max_pending_writes
        self._writes: asyncio.Queue[_Write] = asyncio.Queue()
        self._num_writing = 0  # queued and under way

    @asynccontextmanager
    async def generate(self, request: Request) -> AsyncGenerator[AsyncIterator[list[Event]]]:
        """Queue a request; what is yielded gives its events, all pending ones at a time, up to each choice's
        Finished or one Failed.

        Leaving the context cancels whatever still runs. Raises InvalidRequest, ContextExceeded, Overloaded, Draining.
        """
        sequence = await self._submit(request)
        try:
            yield _events(sequence)
        finally:
            sequence.cancel()
            if (task := self._restores.get(sequence)) is not None:
                # Behind its first step, which is queued already: a task that never began would free nothing.
                asyncio.get_running_loop().call_soon(task.cancel)
            self._wake.set()

    async def run(self) -> None:
        """Step until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            if self._tier is not None:
                tasks.create_task(self._write_all(self._tier))
            while True:
                # Cleared before the look at the queues, so that nothing that comes during the look is slept through.
                self._wake.clear()
                plan = self._scheduler.schedule()
                self._discard_hits()
                for sequence in plan.restores:
                    self._restores[sequence] = tasks.create_task(self._restore(sequence))
                if not plan.rows and not plan.copies:
                    self._measure()
                    await self._wake.wait()
                    continue
                started_s = time.monotonic()
                try:
                    sampled = await loop.run_in_executor(self._compute, run, self._runtime, work_of(plan))
                except Exception:  # noqa: BLE001 - fails the requests of this step, not the engine
                    _log.exception("a step failed")
                    self._scheduler.fail(plan, "the model failed; the engine's log has the details")
                    continue
                self._committed(plan, sampled, time.monotonic() - started_s)

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests and wait until all pending writes are stored, or the time is over."""
        self._is_draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._writes.join()
        except TimeoutError:
            _log.warning("%d terminal states were not stored before the end", self._num_writing)

    def load(self) -> Load:
        """The load now."""
        scheduler, oldest = self._scheduler, self._cache.tree.oldest_s()
        return Load(
            queued=scheduler.num_queued + self._lookups,
            running=len(scheduler.attached),
            blocks=self._cache.use(scheduler.attached),
            backlog_tokens=scheduler.backlog_tokens,
            belt_age_s=None if oldest is None else time.monotonic() - oldest,
            is_draining=self._is_draining,
            leases=0 if self._tier is None else self._tier.num_leases,
            pending_writes=self._num_writing,
        )

    async def _submit(self, request: Request) -> Sequence:
        if self._is_draining:
            raise Draining("the engine is shutting down", retry_after_s=1.0)
        if not request.num_tokens:
            raise InvalidRequest("token_ids", "at least one token is needed")
        if request.num_tokens >= self.context_tokens:
            raise ContextExceeded(request.num_tokens, self.context_tokens)
        choices = request.sampling.choices
        if choices > self._max_waiting:
            raise InvalidRequest("sampling.choices", f"must be at most {self._max_waiting} here")
        waiting = self._scheduler.num_queued + self._lookups
        if waiting + choices > self._max_waiting:
            raise Overloaded(f"{waiting} requests are waiting", retry_after_s=self._retry_after_s())
        room = self.context_tokens - request.num_tokens
        wanted = request.sampling.max_tokens
        sequence = Sequence.of(
            request, self._cache.tree.root(request.cache_scope), room if wanted is None else min(wanted, room)
        )
        if self._tier is not None:
            self._lookups += choices
            try:
                resident = self._cache.match(sequence).num_tokens(self._cache.block_tokens)
                hit = await self._tier.lookup(request, resident)
            finally:
                self._lookups -= choices
            if hit is not None:
                self._hits[sequence] = hit
                sequence.stored_tokens = hit.num_tokens
        self._scheduler.add(sequence)
        self._wake.set()
        return sequence

    def _retry_after_s(self) -> float:
        """Time to compute what waits, at the rate seen lately."""
        return min(120.0, max(1.0, self._scheduler.backlog_tokens / self._tokens_per_s))

    async def _restore(self, sequence: Sequence) -> None:
        assert self._tier is not None
        hit = self._hits.pop(sequence)
        resident = sequence.num_computed
        in_place = resident
        try:
            in_place = await self._tier.restore(sequence.request, hit, tuple(sequence.block_ids), resident)
        except asyncio.CancelledError:
            if not sequence.is_cancelled:
                raise
        except Exception:  # noqa: BLE001 - a restore may fall short, it may not end the engine
            _log.exception("a restore failed")
        finally:
            del self._restores[sequence]
            self._scheduler.restored(sequence, in_place)
            self._wake.set()

    async def _write_all(self, tier: SsdTier) -> None:
        while True:
            write = await self._writes.get()
            try:
                blocks = [node.block_id for node in self._cache.tree.path(write.node)]
                await tier.persist(write.request, write.token_ids, blocks)
            except Exception:  # noqa: BLE001 - a write may be lost, it may not end the engine
                _log.exception("a write failed")
            finally:
                self._cache.tree.unpin(write.node)
                self._num_writing -= 1
                self._writes.task_done()
                self._wake.set()

    def _committed(self, plan: Plan, sampled: list[Sampled], seconds: float) -> None:
        num_tokens = sum(row.num_tokens for row in plan.rows)
        _COMPUTED.inc(num_tokens)
        self._tokens_per_s += 0.1 * (num_tokens / max(seconds, 1e-6) - self._tokens_per_s)
        for terminal in self._scheduler.commit(plan, sampled):
            self._offer(terminal)
        if time.monotonic() - self._measured_s > _MEASURE_EVERY_S:
            self._measure()

    def _offer(self, terminal: Terminal) -> None:
        """Queue a terminal state for the store; dropped when too many wait.

        Of several choices only the first: a conversation goes on from one, and the prompt is the same.
        """
        request = terminal.sequence.request
        if self._tier is None or not request.persist or terminal.sequence.choice:
            return
        if not self._tier.is_worth_writing(terminal.num_tokens):
            return
        if self._num_writing >= self._max_pending_writes:
            self._tier.dropped()
            return
        self._cache.tree.pin(terminal.node)
        self._num_writing += 1
        self._writes.put_nowait(_Write(request, terminal.sequence.ids(0, terminal.num_tokens), terminal.node))

    def _discard_hits(self) -> None:
        """Give back the leases of requests that were admitted without them or left before that."""
        for sequence in [s for s in self._hits if s.state in (State.RUNNING, State.FINISHED)]:
            hit = self._hits.pop(sequence)
            if self._tier is not None:
                self._tier.release_soon(hit)

    def _measure(self) -> None:
        self._measured_s = time.monotonic()
        load = self.load()
        for use in ("free", "held", "cached"):
            _BLOCKS.labels(use).set(getattr(load.blocks, use))
        _SEQUENCES.labels("waiting").set(load.queued)
        _SEQUENCES.labels("running").set(load.running)
        _BELT_AGE.set(load.belt_age_s or 0.0)
        running = self._scheduler.running
        _RUNS.set(sum(num_runs(s.block_ids) for s in running) / len(running) if running else 0)


async def _events(sequence: Sequence) -> AsyncIterator[list[Event]]:
    num_unfinished = sequence.request.sampling.choices
    while num_unfinished:
        events = await sequence.outbox.get_all()
        yield events
        if any(isinstance(event, Failed) for event in events):
            return
        num_unfinished -= sum(isinstance(event, Finished) for event in events)
