"""The engine's one owner task: admission, steps, restores and writes, in the order that keeps state exact.

    while True:
        plan = scheduler.schedule(); chosen = runner.run(plan); scheduler.commit(plan, chosen)

The loop's task owns scheduler, cache manager and prefix tree. The forward runs in a thread; meanwhile callers may only
queue new requests and mark old ones as cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter as Counts
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from prometheus_client import Counter

from services.engine.choosing import TokenChooser
from services.engine.conversations import Conversations
from services.engine.errors import ContextExceeded, Draining, InvalidRequest, Overloaded
from services.engine.load import Load, show
from services.engine.request import Event, Failed, Finished, MissReason, Priority, Request, Sampled, Tier
from services.engine.restore_cost import PrefillCost
from services.engine.retry_delay import Job, Pace, RetryDelays
from services.engine.runner import run, work_of
from services.engine.runtime.gate import LayersMissing
from services.engine.runtime.paged import PagedRuntime
from services.engine.scheduler import Scheduler
from services.engine.seen_pages import SeenPages
from services.engine.sequence import Sequence, State
from services.engine.snapshot_writer import SnapshotWriter, Unsaved
from services.engine.ssd_tier import Restored, SsdTier, StoredHit
from services.engine.step import Plan, Terminal

_MEASURE_EVERY_S = 0.5
_LOOK_EVERY_S = 0.5
"""While somebody waits though nothing runs: for state to grow old, or for the end of patience."""
_MAX_DECODE_TOKENS = 16
"""A row of an answer with more tokens computes again what a preemption has cost."""
_log = logging.getLogger(__name__)
_COMPUTED = Counter("fencepost_engine_computed_tokens_total", "Tokens that went through the model.")
_DRAFTED = Counter("fencepost_engine_drafted_tokens_total", "Guesses that went through the model.")
_ACCEPTED = Counter("fencepost_engine_accepted_tokens_total", "Of them, those that were right and part of an output.")


@dataclass(frozen=True, slots=True)
class Flushed:
    """What a flush removed."""

    blocks: int
    stored_bytes: int


class EngineCore:
    """Runs one model. ``run`` must be running for requests to make progress."""

    def __init__(
        self,
        runtime: PagedRuntime,
        scheduler: Scheduler,
        tier: SsdTier | None,
        writer: SnapshotWriter | None,
        compute: ThreadPoolExecutor,
        prefill_cost: PrefillCost,
        *,
        new_chooser: Callable[[Request, int], TokenChooser],
        keys_of: Callable[[str, bytes], list[bytes]],
        seen: SeenPages,
        context_tokens: int,
        max_waiting: int,
    ) -> None:
        self._runtime = runtime
        self._scheduler = scheduler
        self._cache = scheduler.cache
        self._conversations = Conversations(self._cache.tree, time.monotonic)
        self._tier = tier
        self._writer = writer
        self._compute = compute
        self._prefill_cost = prefill_cost
        self._new_chooser = new_chooser
        self._keys_of = keys_of
        self._seen = seen
        self.context_tokens = context_tokens
        self._max_waiting = max_waiting
        self._wake = asyncio.Event()
        if writer is not None:
            writer.on_unpinned = self._wake.set
        self._is_draining = False
        self._retry_delays = RetryDelays(Pace(prefill_cost.seconds(0, 256) / 256), time.monotonic)
        self._measured_s = 0.0
        self._lookups = Counts[Priority]()  # choices whose stored state is being looked up
        self._hits: dict[Sequence, StoredHit] = {}
        self._restores: dict[Sequence, asyncio.Task[None]] = {}

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
            self._conversations.left(sequence)
            if (task := self._restores.get(sequence)) is not None:
                # Behind its first step, which is queued already: a task that never began would free nothing.
                asyncio.get_running_loop().call_soon(task.cancel)
            self._wake.set()

    async def run(self) -> None:
        """Step until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            if self._writer is not None:
                tasks.create_task(self._writer.run())
            while True:
                # Cleared before the look at the queues, so that nothing that comes during the look is slept through.
                self._wake.clear()
                plan = self._scheduler.schedule()
                self._discard_hits()
                for sequence in plan.restores:
                    self._restores[sequence] = tasks.create_task(self._restore(sequence))
                if not plan.rows and not plan.copies:
                    self._measure()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_EVERY_S if self._scheduler.waiting else None):
                            await self._wake.wait()
                    continue
                started_s = time.monotonic()
                try:
                    chosen = await loop.run_in_executor(self._compute, run, self._runtime, work_of(plan))
                except LayersMissing as error:
                    self._begin_again(plan, error)
                    continue
                except Exception:  # noqa: BLE001 - fails the requests of this step, not the engine
                    _log.exception("a step failed")
                    await self._settled(plan)
                    self._scheduler.fail(plan, "the model failed; the engine's log has the details")
                    continue
                if await self._settled(plan):
                    self._committed(plan, chosen, time.monotonic() - started_s)

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests and wait until all pending writes are stored, or the time is over."""
        self._is_draining = True
        if self._writer is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._writer.drain()
        except TimeoutError:
            _log.warning("%d terminal states were not stored before the end", self._writer.num_pending)

    async def flush(
        self, cache_scopes: Collection[str], namespaces: Collection[bytes], tiers: Collection[Tier]
    ) -> Flushed:
        """Empty tiers of scopes and namespaces; of everything where none is named.

        No request is served from what is removed once this has returned. What runs goes on with the state it has, which
        is neither reused nor stored. Raises StoreUnavailable; what was removed before stays removed.
        """
        is_all = not cache_scopes and not namespaces
        scopes = {scope for scope in self._cache.tree.scopes() if is_all or scope in cache_scopes}
        if self._tier is not None and namespaces:
            scopes |= {scope for scope in self._cache.tree.scopes() if self._tier.namespace(scope) in namespaces}
        num_blocks = 0
        if Tier.VRAM in tiers:
            num_blocks = self._cache.tree.flush(scopes)
            self._conversations.forget(scopes)
            self._scheduler.move_to_roots(scopes)
            self._seen.clear()
        stored_bytes = 0
        if Tier.SSD in tiers and self._tier is not None:
            if self._writer is not None:
                self._writer.forget(() if is_all else scopes | set(cache_scopes))
            for sequence in [s for s in self._hits if s.state is State.WAITING and s.request.cache_scope in scopes]:
                sequence.stored_tokens = 0
                self._tier.release_soon(self._hits.pop(sequence))
            stored_bytes = await self._tier.delete(cache_scopes, namespaces)
        return Flushed(num_blocks, stored_bytes)

    def annotate(self, cache_scope: str, conversation_key: str, wait_classes: Collection[str]) -> None:
        """Say what a conversation waits for, by opaque classes; a hint for eviction."""
        self._conversations.annotate(cache_scope, conversation_key, wait_classes)

    async def release(self, cache_scope: str, conversation_key: str, *, delete: bool) -> None:
        """A conversation is over: its private blocks are evicted first, or deleted with all that was stored of it.

        What others share stays, and so does what a running request uses. Of the disk tier, that which this engine has
        stored for the conversation since it started is deleted. Raises StoreUnavailable; what was deleted before stays
        deleted.
        """
        conversation = self._conversations.release(cache_scope, conversation_key)
        if not delete:
            return
        stored = [] if self._writer is None else await self._writer.discard((cache_scope, conversation_key))
        if conversation is not None:
            self._cache.tree.remove(conversation)
        if self._tier is not None and self._writer is not None:
            await self._tier.delete_states(cache_scope, stored)
            self._writer.deleted((cache_scope, conversation_key))

    def load(self) -> Load:
        """The load now."""
        scheduler, oldest = self._scheduler, self._cache.tree.oldest_s()
        return Load(
            queued=scheduler.num_queued + self._lookups.total(),
            running=len(scheduler.attached),
            blocks=self._cache.use(scheduler.attached),
            backlog_tokens=scheduler.backlog_tokens,
            belt_age_s=None if oldest is None else time.monotonic() - oldest,
            is_draining=self._is_draining,
            leases=0 if self._tier is None else self._tier.num_leases,
            pending_writes=0 if self._writer is None else self._writer.num_pending,
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
        self._refuse_if_full(request)
        room = self.context_tokens - request.num_tokens
        wanted = request.sampling.max_tokens
        sequence = Sequence.of(
            request,
            self._cache.tree.root(request.cache_scope),
            room if wanted is None else min(wanted, room),
            new_chooser=self._new_chooser,
        )
        if self._tier is not None:
            self._lookups[request.priority] += choices
            try:
                resident = self._cache.match(sequence).num_tokens(self._cache.block_tokens)
                found = await self._tier.lookup(request, resident)
            finally:
                self._lookups[request.priority] -= choices
            sequence.stored_is_short = found.is_short
            if found.hit is not None:
                self._hits[sequence] = found.hit
                sequence.stored_tokens = found.hit.num_tokens
        self._conversations.arrived(sequence)
        self._scheduler.add(sequence)
        self._wake.set()
        return sequence

    def _refuse_if_full(self, request: Request) -> None:
        """Raises Overloaded. Background requests take no place in the queue from interactive ones."""
        classes = tuple(Priority) if request.is_background else (Priority.INTERACTIVE,)
        choices = request.sampling.choices
        waiting = self._scheduler.num_queued_of(*classes) + sum(self._lookups[one] for one in classes)
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

    async def _restore(self, sequence: Sequence) -> None:
        assert self._tier is not None
        assert sequence.gate is not None
        hit, gate = self._hits.pop(sequence), sequence.gate
        gate.on_open = self._wake.set
        resident = sequence.num_computed
        restored = Restored(resident, MissReason.RESTORE_FAILED)
        try:
            restored = await self._tier.restore(sequence.request, hit, tuple(sequence.block_ids), resident, gate)
        except asyncio.CancelledError:
            if not sequence.is_cancelled:
                raise
        except Exception:  # noqa: BLE001 - a restore may fall short, it may not end the engine
            _log.exception("a restore failed")
        finally:
            gate.fail()
            del self._restores[sequence]
            self._scheduler.restored(sequence, restored.num_tokens, restored.miss)
            self._wake.set()

    async def _settled(self, plan: Plan) -> bool:
        """Wait for the end of the restore that a step was computed along with; whether the step may be kept."""
        sequence = plan.restoring
        if sequence is None:
            return True
        if (task := self._restores.get(sequence)) is not None:
            await asyncio.wait((task,))
        return sequence.num_computed == sequence.stored_tokens

    def _begin_again(self, plan: Plan, error: LayersMissing) -> None:
        """A step outran its restore: nothing of it is kept, and its sequence waits for the whole restore."""
        assert plan.restoring is not None
        _log.info("computing along with a restore: %s", error)
        plan.restoring.gate = None

    def _committed(self, plan: Plan, chosen: list[tuple[Sampled, ...]], seconds: float) -> None:
        num_tokens = sum(row.num_computed for row in plan.rows)
        _COMPUTED.inc(num_tokens)
        decodes = [row for row in plan.rows if row.sequence.num_output and row.num_tokens <= _MAX_DECODE_TOKENS]
        decoded = sum(row.num_computed for row in decodes)
        self._retry_delays.pace.observe_step(num_tokens - decoded, len(decodes), seconds)
        if plan.restoring is None:
            positions = sum(row.num_computed * (2 * row.start + row.num_computed - 1) // 2 for row in plan.rows)
            self._prefill_cost.observe(num_tokens, positions, seconds)
        _DRAFTED.inc(sum(len(row.draft) for row in plan.rows))
        num_accepted = sum(row.sequence.num_accepted for row in plan.rows)
        terminals = self._scheduler.commit(plan, chosen)
        _ACCEPTED.inc(sum(row.sequence.num_accepted for row in plan.rows) - num_accepted)
        for terminal in terminals:
            self._retry_delays.pace.observe_output(terminal.sequence.num_output)
            self._offer(terminal)
        if self._writer is not None:
            self._writer.press(self._cache.pool.num_free, self._cache.pool.num_blocks)
        if time.monotonic() - self._measured_s > _MEASURE_EVERY_S:
            self._measure()

    def _offer(self, terminal: Terminal) -> None:
        """Hand a terminal state to the writer.

        Of several choices only the first: a conversation goes on from one, and the prompt is the same.
        """
        sequence = terminal.sequence
        request = sequence.request
        if self._cache.tree.is_flushed(request.cache_scope, sequence.root):
            return
        if not sequence.choice:
            self._conversations.ended(sequence, terminal.node, terminal.num_tokens)
        token_ids = sequence.ids(0, terminal.num_tokens)
        self._seen.add(self._keys_of(request.cache_scope, token_ids))
        if self._writer is not None and request.persist and not sequence.choice:
            self._writer.offer(Unsaved(request, token_ids, terminal.node))

    def _discard_hits(self) -> None:
        """Give back the leases of requests that were admitted without them or left before that."""
        for sequence in [s for s in self._hits if s.state in (State.RUNNING, State.FINISHED)]:
            hit = self._hits.pop(sequence)
            if self._tier is not None:
                self._tier.release_soon(hit)

    def _measure(self) -> None:
        self._measured_s = time.monotonic()
        show(self.load(), self._scheduler.running)


def _job(sequence: Sequence, prompt_tokens: int) -> Job:
    return Job(prompt_tokens, sequence.num_output, sequence.max_tokens)


async def _events(sequence: Sequence) -> AsyncIterator[list[Event]]:
    num_unfinished = sequence.request.sampling.choices
    while num_unfinished:
        events = await sequence.outbox.get_all()
        yield events
        if any(isinstance(event, Failed) for event in events):
            return
        num_unfinished -= sum(isinstance(event, Finished) for event in events)
