"""Decides what each step computes: decode rows first, then prefill chunks under a token budget.

    plan = scheduler.schedule(); chosen = runner.run(plan); scheduler.commit(plan, chosen)

A waiting request gets blocks for its whole prompt at once or none at all, so nothing holds a part while it waits for
another. A decode that cannot grow preempts the youngest running sequence, which keeps its cached blocks and its place
at the head of the queue. The oldest running sequence is never preempted, so some request always makes progress.

The further choices of a request are queued when its prompt is computed. Each is admitted with room of its own, and
nothing is kept for it before: it may have to wait for room, but nobody waits for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from services.engine.cache_manager import BlockCopy, CacheManager
from services.engine.draft.draft_length import Draft, draft_lengths
from services.engine.prefix_tree import Node
from services.engine.request import (
    Admitted,
    Failed,
    Finished,
    FinishReason,
    MissReason,
    Progress,
    Sampled,
    Tier,
    Tokens,
)
from services.engine.runtime.gate import LayerGate
from services.engine.sequence import Sequence, State


@dataclass(frozen=True, slots=True)
class PlanRow:
    """Compute tokens [start, start + num_tokens) of a sequence; sample behind them if ``samples``.

    ``draft`` are guesses of what will be sampled, computed behind them; ``draft_blocks`` were borrowed for it.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool
    draft: tuple[int, ...] = ()
    draft_blocks: int = 0

    @property
    def num_computed(self) -> int:
        """Tokens that go through the model."""
        return self.num_tokens + len(self.draft)


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. ``copies`` are made before the rows are computed; ``restores`` are begun beside it.

    ``restoring`` is the one sequence of the rows whose state is still being filled, layer before layer.
    """

    rows: tuple[PlanRow, ...]
    copies: tuple[BlockCopy, ...]
    restores: tuple[Sequence, ...]
    restoring: Sequence | None = None


@dataclass(frozen=True, slots=True)
class Terminal:
    """A sequence that has ended by itself: its state of ``num_tokens`` tokens is cached up to ``node``."""

    sequence: Sequence
    node: Node
    num_tokens: int


@dataclass(frozen=True, slots=True)
class EndRules:
    """What ends an output beside the request's own limits."""

    end_token_ids: frozenset[int]
    context_tokens: int
    spell: Callable[[int], bytes]  # bytes of a token for stop texts; b"" for special tokens


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
        is_worth_restoring: Callable[[int, int], bool] = lambda resident, stored: True,
        was_cached: Callable[[Sequence, int], bool] = lambda sequence, at_token: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``is_worth_restoring`` is told a prompt's resident and stored tokens; ``was_cached`` says whether more of a
        prompt than its first tokens was cached once."""
        self.waiting: deque[Sequence] = deque()
        self.restoring: list[Sequence] = []
        self.running: list[Sequence] = []  # oldest admission first
        self.cache = cache
        self._rules = rules
        self._step_tokens = step_tokens
        self._max_running = max_running
        self._drafts = drafts
        self._is_worth_restoring = is_worth_restoring
        self._was_cached = was_cached
        self._clock = clock

    @property
    def attached(self) -> list[Sequence]:
        """Every sequence that has blocks."""
        return self.running + self.restoring

    @property
    def num_queued(self) -> int:
        """Choices that wait: for admission, or for the prompt that they share."""
        return len(self.waiting) + sum(s.num_to_follow for s in (*self.waiting, *self.attached))

    @property
    def backlog_tokens(self) -> int:
        """Prompt tokens still to compute, waiting ones included; once for all choices of a request."""
        first = (s for s in (*self.waiting, *self.running) if s.choice == 0)
        return sum(max(0, s.num_prompt - s.num_computed) for s in first)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence. The caller has checked that it can ever fit."""
        self.waiting.append(sequence)

    def schedule(self) -> Plan:
        """The next step; empty rows mean that there is nothing to compute now."""
        self._drop_cancelled()
        budget = self._step_tokens
        rows: list[PlanRow] = []
        for sequence in list(self.running):
            if sequence.state is State.RUNNING and sequence.num_pending == 1 and sequence.num_output:
                if not self._room_for(sequence):
                    continue
                rows.append(PlanRow(sequence, sequence.num_computed, 1, True))
                budget -= 1
        # A preemption may have taken blocks from a row planned before it.
        rows = [row for row in rows if row.sequence.state is State.RUNNING]
        copies, restores = self._admit()
        if self._drafts and budget > 0:
            rows = self._with_drafts(rows, budget)
            budget -= sum(len(row.draft) for row in rows)
        planned = {id(row.sequence) for row in rows}
        for sequence in self.running:
            if budget <= 0:
                break
            if id(sequence) in planned or not sequence.num_pending:
                continue
            count = min(sequence.num_pending, budget)
            samples = count == sequence.num_pending and sequence.max_tokens > 0
            rows.append(PlanRow(sequence, sequence.num_computed, count, samples))
            budget -= count
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
            if sequence.finish_reason is not None:
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
            sequence = row.sequence
            self.running.remove(sequence)
            sequence.state = State.FINISHED
            self.cache.release(sequence, sequence.num_computed)
            sequence.outbox.put(Failed(message))

    def move_to_roots(self, cache_scopes: Collection[str]) -> None:
        """After a flush of scopes: those that wait find nothing of what was there before."""
        for sequence in self.waiting:
            if sequence.request.cache_scope in cache_scopes:
                sequence.root = self.cache.tree.root(sequence.request.cache_scope)

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence wherever it stands (but not while a restore writes to its blocks)."""
        if sequence.state is State.WAITING:
            self.waiting.remove(sequence)
            sequence.state = State.FINISHED
            sequence.outbox.put(self._finished(sequence, reason))
        elif sequence.state is State.RUNNING:
            self._finish(sequence, reason)

    def _drop_cancelled(self) -> None:
        for sequence in [s for s in (*self.waiting, *self.running) if s.is_cancelled]:
            self.end(sequence, FinishReason.CANCELLED)

    def _room_for(self, sequence: Sequence) -> bool:
        """Let a decode grow, preempting the youngest others until it can; False when it had to give way itself."""
        while not self.cache.grow(sequence, sequence.num_tokens):
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.cache.release(sequence, sequence.num_tokens)
        sequence.state = State.WAITING
        self.waiting.appendleft(sequence)

    def _admit(self) -> tuple[list[BlockCopy], list[Sequence]]:
        copies: list[BlockCopy] = []
        restores: list[Sequence] = []
        while self.waiting and len(self.running) + len(self.restoring) < self._max_running:
            sequence = self.waiting[0]
            match = self.cache.match(sequence)
            in_vram = match.num_tokens(self.cache.block_tokens)
            stored = sequence.stored_tokens
            has_more = not sequence.was_admitted and stored > in_vram
            restores_more = has_more and self._is_worth_restoring(in_vram, stored)
            if restores_more:
                match = match.whole_blocks()
            # Room for one more block than the prompt: a sequence that cannot decode at all is not worth admitting.
            room = min(sequence.num_tokens + self.cache.block_tokens, self._rules.context_tokens)
            made = self.cache.attach(sequence, match, room)
            if made is None:
                break
            copies += made
            self.waiting.popleft()
            is_skipped = has_more and not restores_more
            self._admitted(sequence, stored if restores_more else 0, is_fork=match.is_fork, is_skipped=is_skipped)
            if restores_more:
                sequence.state = State.RESTORING
                sequence.gate = LayerGate()
                self.restoring.append(sequence)
                restores.append(sequence)
            else:
                sequence.state = State.RUNNING
                self.running.append(sequence)
        return copies, restores

    def _admitted(self, sequence: Sequence, stored: int, *, is_fork: bool, is_skipped: bool) -> None:
        if sequence.was_admitted:
            return
        sequence.was_admitted = True
        sequence.times.admitted_s = self._clock()
        reused = sequence.num_computed
        sequence.cached_by_tier = {Tier.VRAM: reused}
        known = max(reused, stored)
        sequence.miss = self._miss(sequence, known, is_fork=is_fork and not stored, is_skipped=is_skipped)
        sequence.miss_at_token = None if sequence.miss is None else known
        provisional = sequence.cache_use()
        if stored:
            by_tier = {Tier.VRAM: reused, Tier.SSD: stored - reused}
            provisional = type(provisional)(by_tier, sequence.num_prompt - stored)
        sequence.outbox.put(Admitted(sequence.num_prompt, provisional))

    def _miss(self, sequence: Sequence, known: int, *, is_fork: bool, is_skipped: bool) -> MissReason | None:
        """Why nothing is reused behind the first ``known`` tokens; None where all that is new there is new."""
        if is_skipped:
            return MissReason.RESTORE_SKIPPED
        if is_fork and known:
            return MissReason.FORKED
        if known < sequence.num_prompt - 1:
            if sequence.stored_is_short:
                return MissReason.TOO_SHORT
            if self._was_cached(sequence, known):
                return MissReason.EVICTED
        return None if known else MissReason.COLD

    def _with_drafts(self, rows: list[PlanRow], budget: int) -> list[PlanRow]:
        """Decode rows with drafts, for which nobody gives way: at most half of the budget that prompts need, and free
        blocks only."""
        drafts = [self._draft(row.sequence) for row in rows]
        num_prefill = min(budget, sum(s.num_pending for s in self.running) - len(rows))
        lengths = draft_lengths(drafts, len(rows) + num_prefill, budget // 2 if num_prefill else budget)
        drafting: list[PlanRow] = []
        for row, draft, length in zip(rows, drafts, lengths, strict=True):
            sequence = row.sequence
            if draft.token_ids and not length:
                sequence.drafter.skipped()
            num_blocks = self.cache.borrow(sequence, sequence.num_tokens + length)
            room = len(sequence.block_ids) * self.cache.block_tokens - sequence.num_tokens
            drafting.append(replace(row, draft=draft.token_ids[: min(length, room)], draft_blocks=num_blocks))
        return drafting

    def _draft(self, sequence: Sequence) -> Draft:
        """At least one token is sampled behind a draft."""
        left = min(sequence.max_tokens - sequence.num_output, self._rules.context_tokens - sequence.num_tokens)
        if left < 2 or not sequence.request.drafts:
            return Draft()
        return sequence.drafter.propose(sequence.token_ids, left - 1)

    def _take(self, row: PlanRow, chosen: tuple[Sampled, ...]) -> int:
        """Add the chosen tokens up to the first that ends the output; how many these are."""
        sequence = row.sequence
        if sequence.times.first_token_s is None:
            sequence.times.first_token_s = self._clock()
        if sequence.num_to_follow:
            # At the head of the queue: their request has been admitted.
            self.waiting.extendleft(reversed(sequence.followers()))
        taken: list[Sampled] = []
        for one in chosen:
            taken.append(one)
            self._push(sequence, one)
            if sequence.finish_reason is not None:
                break
        logprobs = tuple(one.logprobs for one in taken if one.logprobs is not None)
        sequence.outbox.put(Tokens(tuple(one.token_id for one in taken), logprobs, sequence.choice))
        if row.draft:
            num_accepted = min(len(taken), len(chosen) - 1)
            sequence.num_drafted += len(row.draft)
            sequence.num_accepted += num_accepted
            sequence.drafter.verified(len(row.draft), len(chosen) - 1)
        return len(taken)

    def _push(self, sequence: Sequence, sampled: Sampled) -> None:
        token_id = sampled.token_id
        sequence.append(token_id)
        sampling = sequence.request.sampling
        sequence.stop_hit = sequence.stop.push(self._rules.spell(token_id))
        if token_id in sampling.stop_token_ids or (token_id in self._rules.end_token_ids and not sampling.ignore_end):
            sequence.finish_reason = FinishReason.STOP
        elif sequence.stop_hit is not None:
            sequence.finish_reason = FinishReason.STOP_TEXT
        elif sequence.num_output >= sequence.max_tokens or sequence.num_tokens >= self._rules.context_tokens:
            sequence.finish_reason = FinishReason.LENGTH
        elif sampled.is_loop:
            sequence.finish_reason = FinishReason.LOOP

    def _finish(self, sequence: Sequence, reason: FinishReason) -> Terminal:
        self.running.remove(sequence)
        sequence.state = State.FINISHED
        kept = sequence.num_computed
        if reason is FinishReason.STOP_TEXT and sequence.stop_hit is not None:
            kept = min(kept, sequence.num_prompt + sequence.stop_hit.tokens_before)
        node = self.cache.release(sequence, kept)
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
        )
