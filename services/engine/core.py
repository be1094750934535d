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
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from prometheus_client import Counter

from services.engine.choosing import TokenChooser
from services.engine.conversations import Conversations
from services.engine.errors import ContextExceeded, Draining, InvalidRequest
from services.engine.load import Load, show
from services.engine.queue_limit import QueueLimit
from services.engine.request import Event, Failed, Finished, Priority, Request, Sampled, Tier
from services.engine.restore_cost import PrefillCost
from services.engine.restores import Restores
from services.engine.retry_delay import Pace, RetryDelays
from services.engine.runner import run, work_of
from services.engine.runtime.gate import LayersMissing
from services.engine.runtime.paged import PagedRuntime
from services.engine.scheduler import Scheduler
from services.engine.seen_pages import SeenPages
from services.engine.sequence import Sequence
from services.engine.snapshot_writer import SnapshotWriter, Unsaved
from services.engine.ssd_tier import SsdTier
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
        self._wake = asyncio.Event()
        if writer is not None:
            writer.on_unpinned = self._wake.set
        self._is_draining = False
        self._pace = Pace(prefill_cost.seconds(0, 256) / 256)
        self._measured_s = 0.0
        self._restores = Restores(tier, scheduler, self._wake.set)
        self._queue_limit = QueueLimit(max_waiting, scheduler, self._restores, RetryDelays(self._pace, time.monotonic))

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
            self._restores.cancel(sequence)
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
                self._restores.discard()
                for sequence in plan.restores:
                    self._restores.begin(sequence, tasks)
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
            self._restores.forget(scopes)
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
            queued=scheduler.num_queued + self._restores.num_lookups(tuple(Priority)),
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
        self._queue_limit.check(request)
        room = self.context_tokens - request.num_tokens
        wanted = request.sampling.max_tokens
        sequence = Sequence.of(
            request,
            self._cache.tree.root(request.cache_scope),
            room if wanted is None else min(wanted, room),
            new_chooser=self._new_chooser,
        )
        await self._restores.look_up(sequence)
        self._conversations.arrived(sequence)
        self._scheduler.add(sequence)
        self._wake.set()
        return sequence

    async def _settled(self, plan: Plan) -> bool:
        """Wait for the end of the restore that a step was computed along with; whether the step may be kept."""
        sequence = plan.restoring
        if sequence is None:
            return True
        await self._restores.ended(sequence)
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
        self._pace.observe_step(num_tokens - decoded, len(decodes), seconds)
        if plan.restoring is None:
            positions = sum(row.num_computed * (2 * row.start + row.num_computed - 1) // 2 for row in plan.rows)
            self._prefill_cost.observe(num_tokens, positions, seconds)
        _DRAFTED.inc(sum(len(row.draft) for row in plan.rows))
        num_accepted = sum(row.sequence.num_accepted for row in plan.rows)
        terminals = self._scheduler.commit(plan, chosen)
        _ACCEPTED.inc(sum(row.sequence.num_accepted for row in plan.rows) - num_accepted)
        for terminal in terminals:
            self._pace.observe_output(terminal.sequence.num_output)
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

    def _measure(self) -> None:
        self._measured_s = time.monotonic()
        show(self.load(), self._scheduler.running)


async def _events(sequence: Sequence) -> AsyncIterator[list[Event]]:
    num_unfinished = sequence.request.sampling.choices
    while num_unfinished:
        events = await sequence.outbox.get_all()
        yield events
        if any(isinstance(event, Failed) for event in events):
            return
        num_unfinished -= sum(isinstance(event, Finished) for event in events)
