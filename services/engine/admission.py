"""Who is admitted next: room, slots, classes of priority, and the gate against thrashing.

A request gets blocks for its whole prompt and one more at once, or none at all, so nothing holds a part while it waits
for another. What runs ends, and any request that is accepted fits an empty device: by the bound of ``waiting.py`` each
is admitted at last.

Background requests are looked at only while no interactive one waits. They take free blocks, and those of sessions that
were not active lately; after ``patience_s`` also others. Where an interactive one lacks a slot or blocks, the scheduler
preempts them: they never take either from one.

The gate holds back a session that is new, or of whose own state nothing is resident, while the working sets of the
active sessions and its own do not fit: it would evict what is needed again soon, and each of them would compute again
what the others evicted. It opens for who is overdue, and while no prompt is computed: time that nobody else uses costs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from services.engine.cache_manager import BlockCopy, CacheManager
from services.engine.match import follow
from services.engine.request import Admitted, MissReason, Tier
from services.engine.sequence import Sequence
from services.engine.waiting import AdmissionPolicy, Waiting, WaitingQueue
from services.engine.working_set import WorkingSets

_TRIES = 4
"""Requests that are tried at a time: one that does not fit lets smaller ones pass until it is overdue."""
_RENEWALS = 32
"""Requests of a class whose match is renewed before each step."""
_MAX_PREFILLS = 8
"""Prompts that are computed at a time, and of these one that takes more than a step."""
_MAX_RESTORES = 2
"""One is read at a time; the next one waits for it with its blocks in place."""
_STALE_AFTER_S = 90.0
"""State that was not used for so long may give way to a background request: tools' 99th percentile is 81 s."""
_POOL_SHARE = 0.9
"""Of the pool that working sets may fill: sessions grow, and not all state belongs to one."""


@dataclass(frozen=True, slots=True)
class Admittee:
    """Who was given blocks. ``copies`` are to be made before it computes; ``restores``: its state is to be read."""

    sequence: Sequence
    copies: tuple[BlockCopy, ...]
    restores: bool


class Admission:
    """The waiting requests. Owned by the step loop's task; does no I/O and never waits.

    What waiting requests would find cached is kept and brought up to date at the cost of what has changed, a few of
    them a step. Beside that a step costs O(waiting), and one walk over the tree where somebody does not fit.
    """

    def __init__(
        self,
        cache: CacheManager,
        policy: AdmissionPolicy,
        *,
        context_tokens: int,
        max_running: int,
        step_tokens: int,
        is_worth_restoring: Callable[[int, int], bool],
        was_cached: Callable[[Sequence, int], bool],
        clock: Callable[[], float],
    ) -> None:
        self.is_blocked = False
        """The last call of ``next`` found an interactive request that lacks a slot or blocks."""
        self._cache = cache
        self._policy = policy
        self._context_tokens = context_tokens
        self._max_running = max_running
        self._step_tokens = step_tokens
        self._is_worth_restoring = is_worth_restoring
        self._was_cached = was_cached
        self._clock = clock
        self._interactive = WaitingQueue(policy, self._renew)
        self._background = WaitingQueue(policy, self._renew)
        self._sets = WorkingSets()

    @property
    def waiting(self) -> list[Sequence]:
        """All that wait, about in order of admission."""
        return [*self._interactive, *self._background]

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. The caller has checked that it can ever fit."""
        self._queue(sequence).add(sequence)

    def put_back(self, sequences: list[Sequence]) -> None:
        """Queue sequences of one request that was admitted before: preempted, or its further choices."""
        for sequence in sequences[:1]:
            self._queue(sequence).put_back(sequences)

    def remove(self, sequence: Sequence) -> None:
        """A sequence leaves the queue, admitted or not. What is kept for waiting ones only ends here."""
        self._queue(sequence).remove(sequence)
        self._cache.unprotect(sequence)

    def move_to_roots(self, cache_scopes: Collection[str]) -> None:
        """After a flush of scopes: those that wait find nothing of what was there before."""
        for sequence in self.waiting:
            if sequence.request.cache_scope in cache_scopes:
                sequence.root = self._cache.tree.root(sequence.request.cache_scope)
                entry = self._queue(sequence).entry(sequence)
                entry.path, entry.saved_tokens = [], 0

    def renew(self) -> None:
        """Before a step: look at what some of the waiting ones would find cached."""
        self._interactive.renew_some(_RENEWALS)
        self._background.renew_some(_RENEWALS)

    def num_uncached(self, sequence: Sequence) -> int:
        """Tokens of a waiting sequence that are to be computed, as known lately."""
        return sequence.num_tokens - self._queue(sequence).entry(sequence).saved_tokens

    def next(self, running: list[Sequence], restoring: list[Sequence]) -> Admittee | None:
        """Give blocks to the next one, if one has a slot, fits and is not held back."""
        self.is_blocked = False
        queue = self._interactive or self._background
        if not queue:
            return None
        now_s = self._clock()
        num_attached = len(running) + len(restoring)
        # Background ones give way.
        rivals = [s for s in running if queue is self._background or not s.request.is_background]
        prefilling = [s.num_pending for s in rivals if s.num_pending > 1]
        obtainable: int | None = None
        for entry in queue.candidates(_TRIES, now_s, self._gate(prefilling, now_s)):
            if not self._is_useful_now(entry, prefilling, len(restoring)):
                continue
            self.is_blocked = queue is self._interactive
            if num_attached >= self._max_running:
                return None
            if obtainable is None or self._num_fresh(entry) <= obtainable:
                if (admittee := self._attach(entry.sequence, now_s)) is not None:
                    self.is_blocked = False
                    return admittee
                # Others that could not have it either are not worth a try each.
                obtainable = self._cache.pool.num_free + self._cache.tree.num_evictable()
        return None

    def _is_useful_now(self, entry: Waiting, prefilling: list[int], num_restoring: int) -> bool:
        """Whether computing or reading can begin soon: blocks that it would hold before are worth more as cache."""
        if self._restores(entry.sequence, len(entry.path) * self._cache.block_tokens):
            return num_restoring < _MAX_RESTORES
        is_short = entry.sequence.num_tokens - entry.saved_tokens <= self._step_tokens
        is_alone = all(pending <= self._step_tokens for pending in prefilling)
        return len(prefilling) < _MAX_PREFILLS and (is_short or is_alone)

    def may_grow(self, sequence: Sequence) -> bool:
        """Whether a running sequence may have the blocks for its next token."""
        return self._may_take(sequence, self._num_blocks(sequence.num_tokens) - len(sequence.block_ids))

    def left(self, sequence: Sequence) -> None:
        """A sequence is about to give its blocks back: its session needs them again when it returns."""
        if (key := _session(sequence)) is not None:
            self._sets.leave(key, self._num_blocks(sequence.num_computed), self._clock())

    def _queue(self, sequence: Sequence) -> WaitingQueue:
        return self._background if sequence.request.is_background else self._interactive

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._cache.block_tokens)

    def _renew(self, entry: Waiting) -> None:
        """Bring up to date what a waiting request would find cached; that is then evicted last."""
        sequence = entry.sequence
        follow(entry.path, sequence.root, sequence.token_ids, sequence.num_tokens - 1, self._cache.block_tokens)
        resident = len(entry.path) * self._cache.block_tokens
        restores = self._restores(sequence, resident)
        entry.saved_tokens = sequence.stored_tokens if restores else resident
        if not sequence.request.is_background:
            self._cache.protect(sequence, entry.path[-1] if entry.path else sequence.root)

    def _restores(self, sequence: Sequence, resident: int) -> bool:
        """Whether more of a state is to be read. A background request does not make others wait for the disk."""
        if sequence.was_admitted or sequence.request.is_background or sequence.stored_tokens <= resident:
            return False
        return self._is_worth_restoring(resident, sequence.stored_tokens)

    def _gate(self, prefilling: list[int], now_s: float) -> Callable[[Waiting], bool]:
        """Who may pass."""
        if not self._policy.is_gated or not prefilling:
            return lambda entry: True
        room = self._sets.room(_POOL_SHARE * self._cache.pool.num_blocks, now_s)

        def is_open(entry: Waiting) -> bool:
            sequence, matched = entry.sequence, len(entry.path)
            if self._num_blocks(sequence.num_tokens) - matched <= room:
                return True
            key = _session(sequence)
            return key is not None and (self._sets.is_active(key, now_s) or self._sets.is_resident(key, matched))

        return is_open

    def _may_take(self, sequence: Sequence, num_blocks: int) -> bool:
        """Whether a sequence may have so many blocks more, if they can be had at all.

        A background one takes none of a session that was active lately until its patience has ended.
        """
        missing = num_blocks - self._cache.pool.num_free
        if missing <= 0 or not sequence.request.is_background:
            return True
        now_s = self._clock()
        if now_s - sequence.times.arrived_s >= self._policy.patience_s:
            return True
        return self._cache.tree.num_evictable(now_s - _STALE_AFTER_S) >= missing

    def _num_fresh(self, entry: Waiting) -> int:
        """The fewest blocks that would have to be taken for it."""
        return self._num_blocks(entry.sequence.num_tokens) - len(entry.path) - 1

    def _attach(self, sequence: Sequence, now_s: float) -> Admittee | None:
        match = self._cache.match(sequence)
        in_vram = match.num_tokens(self._cache.block_tokens)
        stored = sequence.stored_tokens
        restores = self._restores(sequence, in_vram)
        if restores:
            match = match.whole_blocks()
        # Room for one more block than the prompt: a sequence that cannot decode at all is not worth admitting.
        room = min(sequence.num_tokens + self._cache.block_tokens, self._context_tokens)
        if not self._may_take(sequence, self._num_blocks(room) - len(match.path)):
            return None
        made = self._cache.attach(sequence, match, room)
        if made is None and match.tail is not None:
            # A block to copy from takes room of its own; a request that fills the device has none.
            match = match.whole_blocks()
            made = self._cache.attach(sequence, match, room)
        if made is None:
            return None
        self._queue(sequence).admit(sequence, now_s)
        if (key := _session(sequence)) is not None:
            self._sets.enter(key, len(match.path), len(sequence.block_ids), now_s)
        if not sequence.was_admitted:
            skips = stored > in_vram and not restores
            self._report(sequence, stored if restores else 0, is_fork=match.is_fork, skips=skips)
        return Admittee(sequence, tuple(made), restores)

    def _report(self, sequence: Sequence, stored: int, *, is_fork: bool, skips: bool) -> None:
        """Tell the caller what of the prompt is reused; provisional while ``stored`` tokens are being restored."""
        sequence.was_admitted = True
        sequence.times.admitted_s = self._clock()
        reused = sequence.num_computed
        sequence.cached_by_tier = {Tier.VRAM: reused}
        known = max(reused, stored)
        sequence.miss = self._miss(sequence, known, is_fork=is_fork and not stored, skips=skips)
        sequence.miss_at_token = None if sequence.miss is None else known
        provisional = sequence.cache_use()
        if stored:
            by_tier = {Tier.VRAM: reused, Tier.SSD: stored - reused}
            provisional = type(provisional)(by_tier, sequence.num_prompt - stored)
        sequence.outbox.put(Admitted(sequence.num_prompt, provisional))

    def _miss(self, sequence: Sequence, known: int, *, is_fork: bool, skips: bool) -> MissReason | None:
        """Why nothing is reused behind the first ``known`` tokens; None where all that is new there is new."""
        if skips:
            return MissReason.RESTORE_SKIPPED
        if is_fork and known:
            return MissReason.FORKED
        if known < sequence.num_prompt - 1:
            if sequence.stored_is_short:
                return MissReason.TOO_SHORT
            if self._was_cached(sequence, known):
                return MissReason.EVICTED
        return None if known else MissReason.COLD


def _session(sequence: Sequence) -> tuple[str, str] | None:
    """Whose working set a sequence is part of; None for one that no other will continue."""
    request = sequence.request
    is_known = request.conversation_key and not request.is_background
    return (request.cache_scope, request.conversation_key) if is_known else None
