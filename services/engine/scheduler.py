"""Decides what each step computes: decode rows first, then prefill chunks under a token budget.

    plan = scheduler.schedule(); chosen = runner.run(plan); scheduler.commit(plan, chosen)

Who waits and who is admitted is decided in ``admission.py``. A decode that cannot grow preempts the youngest running
sequence, background ones before all others; it keeps its cached blocks and its place at the head of the queue. The
oldest one, interactive if there is any, is never preempted, so some request always makes progress.

The further choices of a request are queued when its prompt is computed. Each is admitted with room of its own, and
nothing is kept for it before: it may have to wait for room, but nobody waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from services.engine.admission import Admission
from services.engine.cache_manager import BlockCopy, CacheManager
from services.engine.chunks import chunks
from services.engine.drafting import with_drafts
from services.engine.end_rules import EndRules
from services.engine.node import Node
from services.engine.request import (
    Failed,
    Finished,
    FinishReason,
    MissReason,
    Priority,
    Progress,
    Sampled,
    Tier,
    Tokens,
)
from services.engine.runtime.gate import LayerGate
from services.engine.sequence import Sequence, State
from services.engine.step import Plan, PlanRow, Terminal
from services.engine.waiting import DEFAULT_POLICY, AdmissionPolicy


class Scheduler:
    """Owned by the step loop's task; does no I/O and never waits."""

    def __init__(
        self,
        cache: CacheManager,
        rules: EndRules,
        *,
        step_tokens: int,
        max_running: int,
        drafts: bool = True,
        policy: AdmissionPolicy = DEFAULT_POLICY,
        is_worth_restoring: Callable[[int, int], bool] = lambda resident, stored: True,
        was_cached: Callable[[Sequence, int], bool] = lambda sequence, at_token: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``is_worth_restoring`` is told a prompt's resident and stored tokens; ``was_cached`` says whether more of a
        prompt than its first tokens was cached once."""
        self.restoring: list[Sequence] = []
        self.running: list[Sequence] = []  # oldest admission first
        self.cache = cache
        self._rules = rules
        self._step_tokens = step_tokens
        self.max_running = max_running
        self._drafts = drafts
        self._clock = clock
        self.admission = Admission(
            cache,
            policy,
            context_tokens=rules.context_tokens,
            max_running=max_running,
            step_tokens=step_tokens,
            is_worth_restoring=is_worth_restoring,
            was_cached=was_cached,
            clock=clock,
        )

    @property
    def waiting(self) -> list[Sequence]:
        """Every sequence that has none, about in order of admission."""
        return self.admission.waiting

    @property
    def attached(self) -> list[Sequence]:
        """Every sequence that has blocks."""
        return self.running + self.restoring

    @property
    def num_queued(self) -> int:
        """Choices that wait: for admission, or for the prompt that they share."""
        return self.num_queued_of(Priority.INTERACTIVE, Priority.BACKGROUND)

    def num_queued_of(self, *classes: Priority) -> int:
        """Those of requests of some classes."""
        waiting = [s for s in self.waiting if s.request.priority in classes]
        attached = (s for s in self.attached if s.request.priority in classes)
        return len(waiting) + sum(s.num_to_follow for s in (*waiting, *attached))

    @property
    def backlog_tokens(self) -> int:
        """Prompt tokens still to compute, waiting ones included; once for all choices of a request."""
        running = sum(max(0, s.num_prompt - s.num_computed) for s in self.running if s.choice == 0)
        waiting = (min(s.num_prompt, self.admission.num_uncached(s)) for s in self.waiting if s.choice == 0)
        return running + sum(waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. The caller has checked that it can ever fit."""
        self.admission.add(sequence)

    def schedule(self) -> Plan:
        """The next step; empty rows mean that there is nothing to compute now."""
        self._drop_cancelled()
        rows: list[PlanRow] = []
        for sequence in list(self.running):
            if sequence.state is State.RUNNING and sequence.num_pending == 1 and sequence.num_output:
                if not self._room_for(sequence):
                    continue
                rows.append(PlanRow(sequence, sequence.num_computed, 1, True))
        copies, restores = self._admit()
        # A preemption may have taken blocks from a row planned before it, or have sent its sequence back.
        rows = [row for row in rows if row.sequence.state is State.RUNNING and row.start == row.sequence.num_computed]
        budget = self._step_tokens - len(rows)
        if self._drafts and rows:
            num_prefill = min(budget, sum(s.num_pending for s in self.running) - len(rows))
            rows = with_drafts(rows, num_prefill, budget, self.cache, self._rules.context_tokens)
            budget -= sum(len(row.draft) for row in rows)
        planned = {id(row.sequence) for row in rows}
        prefilling = [s for s in self.running if s.num_pending and id(s) not in planned]
        is_alone = all(row.sequence.request.is_background for row in rows)
        for sequence, count in chunks(prefilling, budget, self._step_tokens, is_alone=is_alone):
            samples = count == sequence.num_pending and sequence.max_tokens > 0
            rows.append(PlanRow(sequence, sequence.num_computed, count, samples))
        if not rows and not copies and (early := self._early_row()) is not None:
            return Plan((early,), (), tuple(restores), early.sequence)
        return Plan(tuple(rows), tuple(copies), tuple(restores))

    def commit(self, plan: Plan, chosen: Iterable[tuple[Sampled, ...]]) -> list[Terminal]:
        """Take a step's results: the tokens chosen for each sampling row, in row order. Returns what has ended."""
        for copy in plan.copies:
            self.cache.copied(copy)
        tokens = iter(chosen)
        terminals: list[Terminal] = []
        for row in plan.rows:
            sequence = row.sequence
            num_taken = self._take(row, next(tokens)) if row.samples else 0
            # Invariant: state of guesses that were not taken lies behind num_computed, where nothing is read or kept.
            sequence.num_computed = row.start + row.num_tokens + max(0, num_taken - 1)
            self.cache.give_back(sequence, row.draft_blocks)
            self.cache.publish(sequence)
            if not row.samples and not sequence.num_pending:
                sequence.finish_reason = FinishReason.PREFILLED
            elif not (row.samples or sequence.choice or sequence.num_output):
                # Where the answer has begun, a prompt is computed again that has been reported.
                sequence.outbox.put(Progress(sequence.num_computed, sequence.num_prompt))
            if sequence.is_broken:
                self._fail(sequence, "the answer's fence could not be kept")
            elif sequence.finish_reason is not None:
                terminals.append(self._finish(sequence, sequence.finish_reason))
        return terminals

    def _early_row(self) -> PlanRow | None:
        """Where nothing else is to be done: what follows a restore, computed layer by layer as its state comes in.

        Nobody else waits on the layers: a step with other rows in it would.
        """
        for sequence in self.restoring:
            if sequence.gate is not None and sequence.gate.num_open and not sequence.is_cancelled:
                count = min(sequence.num_tokens - sequence.stored_tokens, self._step_tokens)
                samples = sequence.stored_tokens + count == sequence.num_tokens and sequence.max_tokens > 0
                return PlanRow(sequence, sequence.stored_tokens, count, samples)
        return None

    def restored(self, sequence: Sequence, num_tokens: int, miss: MissReason | None) -> None:
        """A restore has ended with the first ``num_tokens`` tokens in place; ``miss``: why these are not all."""
        self.restoring.remove(sequence)
        self.running.append(sequence)
        sequence.state = State.RUNNING
        sequence.gate = None
        sequence.times.restored_s = self._clock()
        gained = num_tokens - sequence.num_computed
        if gained > 0:
            sequence.cached_by_tier[Tier.SSD] = gained
            sequence.num_computed = num_tokens
        if miss is not None:
            sequence.miss, sequence.miss_at_token = miss, sequence.num_computed
        self.cache.publish(sequence)

    def fail(self, plan: Plan, message: str) -> None:
        """A step could not be computed: its requests end with an error, what they had before stays cached."""
        for copy in plan.copies:
            self.cache.copied(copy)
        for row in plan.rows:
            self._fail(row.sequence, message)

    def _fail(self, sequence: Sequence, message: str) -> None:
        """End a running request with an error, all its choices with it."""
        self.running.remove(sequence)
        sequence.state = State.FINISHED
        self._release(sequence, sequence.num_computed)
        sequence.cancel()
        sequence.outbox.put(Failed(message))

    def move_to_roots(self, cache_scopes: Collection[str]) -> None:
        """After a flush of scopes: those that wait find nothing of what was there before."""
        self.admission.move_to_roots(cache_scopes)

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence wherever it stands (but not while a restore writes to its blocks)."""
        if sequence.state is State.WAITING:
            self.admission.remove(sequence)
            sequence.state = State.FINISHED
            sequence.outbox.put(self._finished(sequence, reason))
        elif sequence.state is State.RUNNING:
            self._finish(sequence, reason)

    def _drop_cancelled(self) -> None:
        for sequence in [s for s in (*self.waiting, *self.running) if s.is_cancelled]:
            self.end(sequence, FinishReason.CANCELLED)

    def _room_for(self, sequence: Sequence) -> bool:
        """Let a decode grow, preempting the youngest others until it can; False when it had to give way itself."""
        if not self.admission.may_grow(sequence):
            self._preempt(sequence)
            return False
        while not self.cache.grow(sequence, sequence.num_tokens):
            victim = self._youngest_background() or self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _youngest_background(self) -> Sequence | None:
        return next((s for s in reversed(self.running) if s.request.is_background), None)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence, sequence.num_tokens)
        sequence.state = State.WAITING
        self.admission.put_back([sequence])

    def _release(self, sequence: Sequence, num_tokens: int) -> Node:
        self.admission.left(sequence)
        return self.cache.release(sequence, num_tokens)

    def _admit(self) -> tuple[list[BlockCopy], list[Sequence]]:
        copies: list[BlockCopy] = []
        restores: list[Sequence] = []
        self.admission.renew()
        while True:
            admittee = self.admission.next(self.running, self.restoring)
            if admittee is None:
                if self.admission.is_blocked and (background := self._youngest_background()) is not None:
                    self._preempt(background)
                    continue
                return copies, restores
            sequence = admittee.sequence
            copies += admittee.copies
            if admittee.restores:
                sequence.state = State.RESTORING
                sequence.gate = LayerGate()
                self.restoring.append(sequence)
                restores.append(sequence)
            else:
                sequence.state = State.RUNNING
                self.running.append(sequence)

    def _take(self, row: PlanRow, chosen: tuple[Sampled, ...]) -> int:
        """Add the chosen tokens up to the first that ends the output; how many these are."""
        sequence = row.sequence
        if sequence.times.first_token_s is None:
            sequence.times.first_token_s = self._clock()
        if sequence.num_to_follow:
            # At the head of the queue: their request has been admitted.
            self.admission.put_back(sequence.followers())
        taken: list[Sampled] = []
        for one in chosen:
            if one.is_broken:
                sequence.is_broken = True
                break
            taken.append(one)
            self._rules.push(sequence, one)
            if sequence.finish_reason is not None:
                break
        logprobs = tuple(one.logprobs for one in taken if one.logprobs is not None)
        if taken:
            sequence.outbox.put(Tokens(tuple(one.token_id for one in taken), logprobs, sequence.choice))
        if row.draft:
            num_accepted = min(len(taken), len(chosen) - 1)
            sequence.num_drafted += len(row.draft)
            sequence.num_accepted += num_accepted
            sequence.drafter.verified(len(row.draft), len(chosen) - 1)
        return len(taken)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> Terminal:
        self.running.remove(sequence)
        sequence.state = State.FINISHED
        kept = sequence.num_computed
        if reason is FinishReason.STOP_TEXT and sequence.stop_hit is not None:
            kept = min(kept, sequence.num_prompt + sequence.stop_hit.tokens_before)
        node = self._release(sequence, kept)
        sequence.outbox.put(self._finished(sequence, reason))
        return Terminal(sequence, node, kept)

    def _finished(self, sequence: Sequence, reason: FinishReason) -> Finished:
        hit = sequence.stop_hit if reason is FinishReason.STOP_TEXT else None
        return Finished(
            reason,
            sequence.num_prompt,
            sequence.num_output,
            sequence.cache_use(),
            sequence.times.timings(self._clock()),
            None if hit is None else hit.index,
            sequence.choice,
            sequence.num_drafted,
            sequence.num_accepted,
            sequence.chooser.relaxed,
        )
