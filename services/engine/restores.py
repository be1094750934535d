"""What the store has of requests: looked up as they come, leased while they wait, read when they are admitted."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Counts
from collections.abc import Callable, Collection

from services.engine.request import MissReason, Priority
from services.engine.scheduler import Scheduler
from services.engine.sequence import Sequence, State
from services.engine.ssd_tier import Restored, SsdTier, StoredHit

_log = logging.getLogger(__name__)


class Restores:
    """Of one engine, with a disk tier or without. Owned by the step loop's task; ``wake`` has that loop look again."""

    def __init__(self, tier: SsdTier | None, scheduler: Scheduler, wake: Callable[[], None]) -> None:
        self._tier = tier
        self._scheduler = scheduler
        self._wake = wake
        self._lookups = Counts[Priority]()
        self._hits: dict[Sequence, StoredHit] = {}
        self._under_way: dict[Sequence, asyncio.Task[None]] = {}

    def num_lookups(self, classes: Collection[Priority]) -> int:
        """Choices of requests of some classes that are looked up just now, and not queued yet."""
        return sum(self._lookups[one] for one in classes)

    async def look_up(self, sequence: Sequence) -> None:
        """Lease what the store has of a prompt beyond what is resident."""
        if self._tier is None:
            return
        cache, priority = self._scheduler.cache, sequence.request.priority
        choices = sequence.request.sampling.choices
        self._lookups[priority] += choices
        try:
            resident = cache.match(sequence).num_tokens(cache.block_tokens)
            found = await self._tier.lookup(sequence.request, resident)
        finally:
            self._lookups[priority] -= choices
        sequence.stored_is_short = found.is_short
        if found.hit is not None:
            self._hits[sequence] = found.hit
            sequence.stored_tokens = found.hit.num_tokens

    def begin(self, sequence: Sequence, tasks: asyncio.TaskGroup) -> None:
        """Read into the blocks of a sequence that was admitted for it."""
        self._under_way[sequence] = tasks.create_task(self._restore(sequence))

    def cancel(self, sequence: Sequence) -> None:
        """Its caller has left."""
        if (task := self._under_way.get(sequence)) is not None:
            # Behind its first step, which is queued already: a task that never began would free nothing.
            asyncio.get_running_loop().call_soon(task.cancel)

    async def ended(self, sequence: Sequence) -> None:
        """Wait for the end of a sequence's restore, if one is under way."""
        if (task := self._under_way.get(sequence)) is not None:
            await asyncio.wait((task,))

    def discard(self) -> None:
        """Give back the leases of requests that were admitted without them or left before that."""
        for sequence in [s for s in self._hits if s.state in (State.RUNNING, State.FINISHED)]:
            self._release(sequence)

    def forget(self, cache_scopes: Collection[str]) -> None:
        """After a flush of scopes: those that wait have nothing in the store any more."""
        for sequence in [s for s in self._hits if s.state is State.WAITING and s.request.cache_scope in cache_scopes]:
            sequence.stored_tokens = 0
            self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        assert self._tier is not None
        self._tier.release_soon(self._hits.pop(sequence))

    async def _restore(self, sequence: Sequence) -> None:
        assert self._tier is not None
        assert sequence.gate is not None
        hit, gate = self._hits.pop(sequence), sequence.gate
        gate.on_open = self._wake
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
            del self._under_way[sequence]
            self._scheduler.restored(sequence, restored.num_tokens, restored.miss)
            self._wake()
