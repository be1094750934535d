"""The step loop on a device in miniature: outputs depend on the exact tokens before them and on nothing else."""

import os
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.end_rules import EndRules
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
from services.engine.scheduler import Scheduler
from services.engine.sequence import Sequence, State
from services.engine.step import Plan, PlanRow, Terminal
from tests.unit.engine.memory import Memory, Prefix, to_ids

BLOCK = 4
END = 99
CONTEXT = 64


def next_token(prefix: Prefix, choice: int = 0) -> int:
    """A stand-in for a model and a choice's generator: any function of all the tokens before."""
    return random.Random(repr((choice, prefix) if choice else prefix)).randint(1, 9)


def verified(row: PlanRow) -> tuple[Sampled, ...]:
    """What the model says behind a row, for as long as the row's draft foretells it."""
    prefix, chosen = to_ids(row.sequence.token_ids), list[Sampled]()
    for guess in (*row.draft, None):
        token_id = next_token(prefix, row.sequence.choice)
        chosen.append(Sampled(token_id))
        if token_id != guess:
            break
        prefix += (token_id,)
    return tuple(chosen)


class Loop:
    def __init__(
        self,
        num_blocks: int = 32,
        step_tokens: int = 8,
        max_running: int = 4,
        drafts: bool = True,
        **decisions: Any,
    ) -> None:
        self.memory = Memory(num_blocks, BLOCK)
        context = min(CONTEXT, num_blocks * BLOCK)
        rules = EndRules(frozenset({END}), context, lambda token: b"%d" % token)
        self.scheduler = Scheduler(
            self.memory.cache,
            rules,
            step_tokens=step_tokens,
            max_running=max_running,
            drafts=drafts,
            clock=self.memory.tick,
            **decisions,
        )
        self.terminals: list[Terminal] = []

    def add(self, ids: list[int], **options: object) -> Sequence:
        sequence = self.memory.sequence(ids, **options)  # type: ignore[arg-type]
        sequence.max_tokens = min(sequence.max_tokens, CONTEXT - len(ids))
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> Plan:
        plan = self.scheduler.schedule()
        self.memory.copy(plan.copies)
        for row in plan.rows:
            self.memory.compute(row.sequence, row.start, row.num_tokens, row.draft)
        chosen = [verified(row) for row in plan.rows if row.samples]
        self.terminals += self.scheduler.commit(plan, chosen)
        self.memory.check_accounts(self.scheduler.attached)
        return plan

    def run(self, limit: int = 2_000) -> None:
        for _ in range(limit):
            if not self.step().rows and not self.scheduler.waiting:
                return
        raise AssertionError("the loop makes no progress")


def output(sequence: Sequence) -> list[int]:
    return list(to_ids(sequence.token_ids)[sequence.num_prompt :])


def expected(ids: list[int], count: int, choice: int = 0) -> list[int]:
    tokens = list(ids)
    for _ in range(count):
        tokens.append(next_token(tuple(tokens), choice))
    return tokens[len(ids) :]


def output_of(sequence: Sequence, choice: int) -> list[int]:
    """What the request's caller got of one choice."""
    tokens = [event for event in sequence.outbox._events if isinstance(event, Tokens) and event.choice == choice]
    return [token_id for event in tokens for token_id in event.ids]


def ends(sequence: Sequence) -> dict[int, Finished]:
    return {event.choice: event for event in sequence.outbox._events if isinstance(event, Finished)}


def finished(sequence: Sequence) -> Finished:
    event = sequence.outbox._events[-1]
    assert isinstance(event, Finished)
    return event


def test_a_request_gets_its_tokens_and_its_account():
    loop = Loop()
    sequence = loop.add([1, 2, 3, 4, 5], max_tokens=6)
    loop.run()
    assert output(sequence) == expected([1, 2, 3, 4, 5], 6)
    end = finished(sequence)
    assert (end.reason, end.prompt_tokens, end.output_tokens) == (FinishReason.LENGTH, 5, 6)
    assert end.cache.miss is MissReason.COLD
    first = sequence.outbox._events[0]
    assert isinstance(first, Admitted)
    assert sum(len(e.ids) for e in sequence.outbox._events if isinstance(e, Tokens)) == 6


def test_the_next_turn_reuses_prompt_and_output_but_the_last_token():
    loop = Loop()
    first = loop.add([1, 2, 3, 4, 5], max_tokens=6)
    loop.run()
    prompt = [1, 2, 3, 4, 5, *output(first), 8, 8]
    second = loop.add(prompt, max_tokens=2)
    loop.run()
    assert finished(second).cache.tokens_by_tier == {Tier.VRAM: 5 + 6 - 1}
    assert output(second) == expected(prompt, 2)


@settings(max_examples=400 if os.environ.get("FENCEPOST_SOAK") else 40, deadline=None)
@given(st.data())
def test_any_mix_on_any_pool_gives_each_request_its_own_output(data: st.DataObject):
    loop = Loop(
        num_blocks=data.draw(st.integers(16, 40)),
        step_tokens=data.draw(st.integers(1, 12)),
        max_running=data.draw(st.integers(1, 5)),
    )
    known: list[list[int]] = [[]]
    requests: list[tuple[list[int], int, Sequence]] = []
    for _ in range(data.draw(st.integers(1, 8))):
        base = data.draw(st.sampled_from(known))
        ids = (base + data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=10)))[:40]
        count = data.draw(st.integers(1, 12))
        choices = data.draw(st.integers(1, 3))
        requests.append((ids, count, loop.add(ids, max_tokens=count, choices=choices)))
        known.append(ids + expected(ids, count, choices - 1))
        for _ in range(data.draw(st.integers(0, 6))):
            loop.step()
        if data.draw(st.integers(0, 5)) == 0:
            requests.pop()[2].cancel()
    loop.run()
    for ids, count, sequence in requests:
        choices = range(sequence.request.sampling.choices)
        assert [output_of(sequence, choice) for choice in choices] == [expected(ids, count, one) for one in choices]
        assert set(ends(sequence)) == set(choices)
    use = loop.memory.cache.use(loop.scheduler.attached)
    assert use.held == 0


def test_a_pool_too_small_for_all_preempts_the_youngest_and_finishes_all():
    loop = Loop(num_blocks=16, max_running=4)
    prompts = [[i] * 12 for i in range(1, 5)]
    sequences = [loop.add(ids, max_tokens=30) for ids in prompts]
    loop.run()
    for ids, sequence in zip(prompts, sequences, strict=True):
        assert output(sequence) == expected(ids, 30)
    assert loop.memory.cache.use([]).held == 0


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
def test_a_cancelled_request_holds_nothing_and_its_complete_blocks_stay(steps: int):
    loop = Loop(step_tokens=6)
    sequence = loop.add([1] * 20, max_tokens=10)
    for _ in range(steps):
        loop.step()
    computed = sequence.num_computed
    sequence.cancel()
    loop.run()
    assert finished(sequence).reason is FinishReason.CANCELLED
    assert loop.memory.cache.use(loop.scheduler.attached).held == 0
    again = loop.add([1] * 20, max_tokens=1)
    loop.run()
    assert sum(finished(again).cache.tokens_by_tier.values()) >= min(computed, 19) // BLOCK * BLOCK
    assert not loop.terminals or all(t.sequence is not sequence for t in loop.terminals)


def test_a_stop_text_ends_the_output_and_the_terminal_state_before_it():
    loop = Loop()
    ids = [1, 2, 3]
    tokens = expected(ids, 20)
    text = "".join(map(str, tokens))
    stop = text[5:8]
    sequence = loop.add(ids, stop_texts=(stop.encode(),))
    loop.run()
    end = finished(sequence)
    seen = text.index(stop) + len(stop)
    assert (end.reason, end.stop_text, end.output_tokens) == (FinishReason.STOP_TEXT, 0, seen)
    assert loop.terminals[0].num_tokens == 3 + text.index(stop)


def test_an_end_token_ends_the_output_unless_it_is_to_be_ignored():
    ids = [1, 2, 3]
    tokens = expected(ids, 20)
    at = next(i for i in range(3, 20) if tokens[i] not in tokens[:i])
    loop = Loop()
    sequence = loop.add(ids, stop_token_ids=frozenset({tokens[at]}))
    loop.run()
    assert finished(sequence).reason is FinishReason.STOP
    assert output(sequence) == tokens[: at + 1]


def test_a_prefill_computes_the_prompt_and_samples_nothing():
    loop = Loop()
    sequence = loop.add([1] * 11, max_tokens=0)
    loop.run()
    assert finished(sequence).reason is FinishReason.PREFILLED
    again = loop.add([1] * 11 + [2], max_tokens=1)
    loop.run()
    assert finished(again).cache.tokens_by_tier == {Tier.VRAM: 11}


def test_decodes_go_on_while_a_long_prompt_is_computed():
    loop = Loop(step_tokens=4)
    short = loop.add([1, 2], max_tokens=10)
    loop.step()
    loop.add([3] * 30, max_tokens=1)
    before = len(output(short))
    for _ in range(3):
        loop.step()
    assert len(output(short)) == before + 3


def test_a_fork_is_named_with_its_token():
    loop = Loop()
    loop.add([1] * 12, max_tokens=1)
    loop.run()
    sequence = loop.add([1] * 6 + [2] * 6, max_tokens=1)
    loop.run()
    cache = finished(sequence).cache
    assert (cache.miss, cache.miss_at_token) == (MissReason.FORKED, 6)


def test_a_restore_holds_its_blocks_and_is_computed_from_where_it_ended():
    loop = Loop()
    sequence = loop.add([1] * 20, max_tokens=3)
    sequence.stored_tokens = 16
    plan = loop.step()
    assert plan.restores == (sequence,)
    assert sequence.state is State.RESTORING
    for position in range(10):
        loop.memory.slots[loop.memory._slot(sequence, position)] = tuple([1] * (position + 1))
    loop.scheduler.restored(sequence, 10, MissReason.RESTORE_FAILED)
    loop.run()
    assert output(sequence) == expected([1] * 20, 3)
    assert finished(sequence).cache.tokens_by_tier == {Tier.VRAM: 0, Tier.SSD: 10}


def test_a_failed_restore_is_a_miss_with_its_reason():
    loop = Loop()
    sequence = loop.add([1] * 20, max_tokens=3)
    sequence.stored_tokens = 16
    loop.step()
    loop.scheduler.restored(sequence, 0, MissReason.RESTORE_FAILED)
    loop.run()
    assert output(sequence) == expected([1] * 20, 3)
    assert finished(sequence).cache.miss is MissReason.RESTORE_FAILED


def test_a_restore_that_ends_short_says_so_and_from_where():
    loop = Loop()
    sequence = loop.add([1] * 20, max_tokens=3)
    sequence.stored_tokens = 16
    loop.step()
    for position in range(9):
        loop.memory.slots[loop.memory._slot(sequence, position)] = tuple([1] * (position + 1))
    loop.scheduler.restored(sequence, 9, MissReason.RESTORE_FAILED)
    loop.run()
    cache = finished(sequence).cache
    assert (cache.miss, cache.miss_at_token) == (MissReason.RESTORE_FAILED, 9)
    assert (cache.tokens_by_tier[Tier.SSD], cache.recomputed_tokens) == (9, 11)


def test_stored_state_that_costs_more_to_read_than_to_compute_is_left_and_named():
    loop = Loop(is_worth_restoring=lambda resident, stored: (resident, stored) != (9, 16))
    loop.add([1] * 9, max_tokens=1)
    loop.run()
    sequence = loop.add([1] * 9 + [2] * 11, max_tokens=1)
    sequence.stored_tokens = 16
    loop.run()
    cache = finished(sequence).cache
    assert sequence.gate is None
    assert (cache.miss, cache.miss_at_token) == (MissReason.RESTORE_SKIPPED, 9)


def test_what_was_cached_once_is_evicted_and_what_never_was_is_cold():
    loop = Loop(was_cached=lambda sequence, at_token: sequence.token_ids[0] == 1)
    for first, reason in ((1, MissReason.EVICTED), (2, MissReason.COLD)):
        sequence = loop.add([first] * 9, max_tokens=1)
        loop.run()
        assert (finished(sequence).cache.miss, finished(sequence).cache.miss_at_token) == (reason, 0)
    again = loop.add([2] * 9 + [3], max_tokens=1)
    loop.run()
    assert finished(again).cache.miss is None
    short = loop.add([5] * 9, max_tokens=1)
    short.stored_is_short = True
    loop.run()
    assert finished(short).cache.miss is MissReason.TOO_SHORT


def test_what_follows_a_restore_is_computed_along_with_it_where_nothing_else_is_to_do():
    loop = Loop()
    sequence = loop.add([1] * 20, max_tokens=3)
    sequence.stored_tokens = 16
    loop.step()
    assert sequence.gate is not None
    assert loop.scheduler.schedule().rows == ()
    sequence.gate.open(1)
    plan = loop.scheduler.schedule()
    assert plan.restoring is sequence
    assert [(row.start, row.num_tokens, row.samples) for row in plan.rows] == [(16, 4, True)]
    # Others would wait for its layers.
    loop.add([7] * 6, max_tokens=2)
    plan = loop.step()
    assert plan.restoring is None
    assert [row.sequence for row in plan.rows] != [sequence]
    for position in range(16):
        loop.memory.slots[loop.memory._slot(sequence, position)] = tuple([1] * (position + 1))
    loop.scheduler.restored(sequence, 16, None)
    loop.run()
    assert output(sequence) == expected([1] * 20, 3)


def test_a_flush_reaches_those_that_wait():
    loop = Loop(max_running=1)
    loop.add([1] * 9, max_tokens=1)
    loop.run()
    running = loop.add([3] * 5, max_tokens=8)
    loop.step()
    waiting = loop.add([1] * 9, max_tokens=1)
    loop.memory.tree.flush(["a"])
    loop.scheduler.move_to_roots(["a"])
    loop.run()
    assert finished(waiting).cache.tokens_by_tier == {Tier.VRAM: 0}
    assert output(running) == expected([3] * 5, 8)
    late = loop.add([3] * 5, max_tokens=1)
    loop.run()
    assert finished(late).cache.tokens_by_tier == {Tier.VRAM: 0}


def test_a_failed_step_ends_its_requests_and_frees_their_blocks():
    loop = Loop()
    sequence = loop.add([1] * 6, max_tokens=3)
    loop.scheduler.fail(loop.scheduler.schedule(), "broken")
    assert sequence.state is State.FINISHED
    assert loop.memory.cache.use(loop.scheduler.attached).held == 0
    loop.memory.check_accounts([])


def test_an_output_whose_fence_breaks_fails_alone():
    loop = Loop(num_blocks=40, step_tokens=16, drafts=False)
    broken, other = loop.add([1] * 6, max_tokens=9, choices=2), loop.add([2] * 5, max_tokens=9)
    loop.step()
    loop.step()
    plan = loop.scheduler.schedule()
    for row in plan.rows:
        loop.memory.compute(row.sequence, row.start, row.num_tokens)
    chosen = [verified(row) for row in plan.rows]
    place = next(at for at, row in enumerate(plan.rows) if row.sequence is broken)
    chosen[place] = (replace(chosen[place][0], is_broken=True),)
    num_before = len(output(broken))
    loop.scheduler.commit(plan, chosen)
    assert len(output(broken)) == num_before
    assert any(isinstance(event, Failed) for event in broken.outbox._events)
    loop.run()
    assert finished(other).reason in (FinishReason.LENGTH, FinishReason.STOP)
    assert output_of(other, 0) == expected([2] * 5, len(output_of(other, 0)))
    assert loop.memory.cache.use(loop.scheduler.attached).held == 0


def test_choices_share_the_prompt_and_each_goes_its_own_way():
    loop = Loop(num_blocks=40, step_tokens=16)
    ids = [1] * 30
    sequence = loop.add(ids, max_tokens=9, choices=3)
    assert (loop.scheduler.num_queued, loop.scheduler.backlog_tokens) == (3, 30)
    loop.step()
    loop.step()
    assert (loop.scheduler.num_queued, loop.scheduler.backlog_tokens) == (2, 0)
    computed = sum(row.num_tokens for row in loop.step().rows)
    # The prompt's last two tokens are in no whole block.
    assert computed == 1 + 2 * 2
    assert len(loop.scheduler.running) == 3
    # Seven blocks of the prompt, and of each choice its last one and one to grow.
    assert loop.memory.cache.use(loop.scheduler.attached).held == 7 + 3 * 2
    loop.run()
    assert [output_of(sequence, choice) for choice in range(3)] == [expected(ids, 9, choice) for choice in range(3)]
    assert loop.memory.cache.use([]).held == 0


def test_each_choice_has_an_account_of_its_output_and_all_have_the_same_of_the_prompt():
    loop = Loop(num_blocks=40)
    loop.add([1] * 12, max_tokens=1)
    loop.run()
    ids = [1] * 12 + [2] * 9
    sequence = loop.add(ids, max_tokens=20, choices=2, stop_texts=(b"%d" % expected(ids, 1, 1)[0],))
    loop.run()
    first, second = ends(sequence)[0], ends(sequence)[1]
    assert second.output_tokens == 1
    assert second.reason is FinishReason.STOP_TEXT
    assert first.prompt_tokens == second.prompt_tokens == 21
    assert first.cache == second.cache
    assert first.cache.tokens_by_tier == {Tier.VRAM: 12}
    assert first.output_tokens == len(output_of(sequence, 0))
    kinds = [type(event) for event in sequence.outbox._events]
    assert kinds.count(Admitted) == 1
    assert Progress not in kinds[kinds.index(Tokens) :]


def test_a_choice_that_ends_leaves_the_others_running():
    loop = Loop(num_blocks=40)
    ids = [3] * 10
    stop = "".join(map(str, expected(ids, 6)[2:6]))
    sequence = loop.add(ids, max_tokens=12, choices=2, stop_texts=(stop.encode(),))
    loop.run()
    assert (ends(sequence)[0].reason, ends(sequence)[1].reason) == (FinishReason.STOP_TEXT, FinishReason.LENGTH)
    assert output_of(sequence, 0) == expected(ids, 6)
    assert output_of(sequence, 1) == expected(ids, 12, 1)


@pytest.mark.parametrize("steps", range(12))
def test_a_cancelled_request_ends_all_its_choices(steps: int):
    loop = Loop(num_blocks=24, step_tokens=6)
    sequence = loop.add([1] * 13, max_tokens=30, choices=4)
    for _ in range(steps):
        loop.step()
    sequence.cancel()
    loop.run()
    assert not loop.scheduler.num_queued
    assert loop.memory.cache.use(loop.scheduler.attached).held == 0


def test_more_choices_than_may_run_take_turns():
    loop = Loop(num_blocks=16, max_running=2)
    ids = [1] * 9
    sequence = loop.add(ids, max_tokens=20, choices=7)
    loop.run()
    assert [output_of(sequence, choice) for choice in range(7)] == [expected(ids, 20, choice) for choice in range(7)]
