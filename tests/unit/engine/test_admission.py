"""Who is admitted when: order and its bound, background requests, room, and the gate against thrashing."""

import itertools
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.request import Admitted, Finished, FinishReason, Priority
from services.engine.sequence import Sequence, State
from services.engine.waiting import AdmissionPolicy
from tests.unit.engine.simulated import BLOCK, Device, agents

IS_SOAK = bool(os.environ.get("FENCEPOST_SOAK"))
FCFS = AdmissionPolicy(is_by_prefix=False, is_gated=False)
UNGATED = AdmissionPolicy(is_gated=False)
_ids = itertools.count(2)


def fresh(count: int) -> list[int]:
    """Ids that no other prompt has."""
    return [next(_ids) for _ in range(count)]


def end(sequence: Sequence) -> Finished:
    event = sequence.outbox._events[-1]
    assert isinstance(event, Finished)
    return event


def reused(sequence: Sequence) -> int:
    return sum(sequence.cached_by_tier.values())


def names(sequences: list[Sequence], known: dict[str, Sequence]) -> list[str]:
    return [name for sequence in sequences for name, one in known.items() if one is sequence]


@pytest.mark.parametrize(("policy", "order"), [(UNGATED, ["long", "short", "none"]), (FCFS, ["none", "short", "long"])])
def test_the_longest_cached_prefix_is_next_and_without_it_the_first_come(policy: AdmissionPolicy, order: list[str]):
    device = Device(64, max_running=1, policy=policy)
    long, short = fresh(40), fresh(20)
    for ids in (long, short):
        device.ask(ids, 1)
        device.run()
    device.ask(fresh(4), 30)
    device.step()
    known = {"none": device.ask(fresh(20), 1), "short": device.ask([*short, 1], 1), "long": device.ask([*long, 1], 1)}
    device.run()
    assert names(device.admitted, known) == order


def test_stored_state_that_would_be_restored_counts_as_cached():
    device = Device(64, max_running=1, policy=UNGATED)
    ids = fresh(20)
    device.ask(ids, 1)
    device.run()
    device.ask(fresh(4), 8)
    device.step()
    cached, stored = device.ask([*ids, 1], 1), device.ask(fresh(60), 1)
    stored.stored_tokens = 48
    while not stored.was_admitted:
        device.step()
    assert not cached.was_admitted
    assert stored.state is State.RESTORING
    device.scheduler.restored(stored, 48, None)
    device.run()


def test_what_is_cached_while_a_request_waits_is_found():
    device = Device(64, max_running=1, policy=UNGATED)
    prompt = fresh(40)
    running = device.ask(prompt, 12)
    device.step()
    first = device.ask(fresh(9), 1)
    second = device.ask([*prompt, 1], 1)
    device.run()
    assert device.admitted == [running, second, first]
    assert reused(second) == 40


def test_an_overdue_request_is_passed_a_few_times_and_then_by_nobody():
    policy = AdmissionPolicy(is_gated=False, patience_s=5.0, max_passes=2)
    device = Device(64, max_running=1, policy=policy)
    ids = fresh(40)
    device.ask(ids, 1)
    device.run()
    device.ask(fresh(4), 3)
    device.step()
    cold = device.ask(fresh(40), 1)
    device.now_s += 5.0
    warm = [device.ask([*ids, 1], 1) for _ in range(6)]
    device.run()
    assert device.admitted[-7:] == [*warm[:2], cold, *warm[2:]]


def test_nobody_passes_the_overdue_one_while_it_does_not_fit():
    policy = AdmissionPolicy(is_gated=False, patience_s=5.0, max_passes=0)
    device = Device(16, max_running=4, policy=policy)
    running = device.ask(fresh(8), 40)
    device.step()
    large = device.ask(fresh(56), 1)
    device.now_s += 5.0
    small = device.ask(fresh(4), 1)
    while running.state is State.RUNNING:
        device.step()
        assert not small.was_admitted
    device.run()
    assert device.admitted[1:] == [large, small]


def test_a_smaller_one_passes_what_does_not_fit_yet():
    device = Device(16, max_running=4, policy=UNGATED)
    running = device.ask(fresh(8), 40)
    device.step()
    large, small = device.ask(fresh(56), 1), device.ask(fresh(4), 1)
    device.run()
    assert device.admitted == [running, small, large]


def test_a_prompt_that_fills_the_device_is_admitted_though_its_last_block_agrees_in_part():
    for agreed in (61, 34):
        device = Device(16)
        first = fresh(62)
        device.ask(first, 1)
        device.run()
        again = device.ask([*first[:agreed], *fresh(62 - agreed)], 1)
        device.run()
        assert end(again).reason is FinishReason.LENGTH
        assert agreed // BLOCK * BLOCK <= reused(again) <= agreed


def test_one_long_prompt_is_computed_at_a_time_and_short_ones_beside_it():
    device = Device(200, step_tokens=16, max_running=8, policy=UNGATED)
    long = [device.ask(fresh(100), 2) for _ in range(3)]
    device.step()
    assert [s.was_admitted for s in long] == [True, False, False]
    short = device.ask(fresh(6), 2)
    device.step()
    assert short.num_output == 1
    assert [s.was_admitted for s in long] == [True, False, False]
    device.run()
    assert all(end(s).output_tokens == 2 for s in long)


def test_a_cancelled_prompt_is_computed_no_further():
    device = Device(64, step_tokens=16)
    prompt = fresh(100)
    cancelled, other = device.ask(prompt, 4), device.ask(fresh(12), 40)
    device.step()
    computed = cancelled.num_computed
    assert 0 < computed < 100
    cancelled.cancel()
    plan, _ = device.step()
    assert [row.sequence for row in plan.rows] == [other]
    assert cancelled.state is State.FINISHED
    assert end(cancelled).reason is FinishReason.CANCELLED
    again = device.ask(prompt)
    device.run()
    assert reused(again) == computed


def background(device: Device, ids: list[int], max_tokens: int = 4) -> Sequence:
    return device.ask(ids, max_tokens, priority=Priority.BACKGROUND)


def test_a_background_request_comes_after_all_interactive_ones_and_gives_its_slot_to_them():
    device = Device(64, max_running=1, policy=UNGATED)
    title = background(device, fresh(8), 20)
    device.step()
    device.step()
    assert title.state is State.RUNNING
    first, second = device.ask(fresh(8), 4), device.ask(fresh(8), 4)
    device.step()
    assert (title.state, first.state) == (State.WAITING, State.RUNNING)
    assert device.scheduler.waiting == [second, title]
    device.run()
    assert end(title).output_tokens == 20
    assert title.times.admitted_s == 0.0


def test_a_background_request_gives_its_blocks_to_an_interactive_one():
    device = Device(16, max_running=4, policy=UNGATED)
    title = background(device, fresh(8), 40)
    device.step()
    large = device.ask(fresh(56), 1)
    device.step()
    assert (title.state, large.state) == (State.WAITING, State.RUNNING)
    device.run()
    assert end(title).output_tokens == 40


def test_background_ones_are_preempted_before_the_youngest_interactive_one():
    # Without patience the background one takes what it needs, too.
    device = Device(16, max_running=4, policy=AdmissionPolicy(is_gated=False, patience_s=0.0))
    title = background(device, fresh(8), 30)
    device.step()
    first, second = device.ask(fresh(8), 24), device.ask(fresh(8), 24)
    preempted: list[Sequence] = []
    while not preempted:
        before = list(device.scheduler.running)
        device.step()
        preempted = [s for s in before if s.state is State.WAITING]
    assert preempted == [title]
    device.run()
    assert [end(s).output_tokens for s in (title, first, second)] == [30, 24, 24]


def test_a_background_request_takes_no_block_of_a_session_that_was_active_lately():
    device = Device(16, policy=AdmissionPolicy(patience_s=1_000.0))
    talk = fresh(60)
    device.ask(talk, 1, session="talk")
    device.run()
    title = background(device, fresh(20), 2)
    for _ in range(20):
        device.step()
    assert not title.was_admitted
    again = device.ask([*talk, 1], 1, session="talk")
    device.run_until(lambda: again.state is State.FINISHED)
    assert reused(again) == 60
    # It has room once the session has not been active for long, long before its own patience ends.
    device.run()
    assert title.times.admitted_s is not None
    assert 80 < title.times.admitted_s < 120


def test_a_background_request_that_has_lost_its_patience_takes_what_there_is():
    device = Device(16, policy=AdmissionPolicy(patience_s=20.0))
    device.ask(fresh(60), 1, session="talk")
    device.run()
    title = background(device, fresh(20), 2)
    device.run()
    assert title.times.admitted_s is not None
    assert 20 <= title.times.admitted_s - title.times.arrived_s < 21


def test_a_background_answer_grows_into_no_session_that_was_active_lately():
    device = Device(16, policy=AdmissionPolicy(patience_s=1_000.0))
    talk = fresh(40)
    device.ask(talk, 1, session="talk")
    device.run()
    title = background(device, fresh(8), 40)
    for _ in range(60):
        device.step()
    assert title.num_output < 40
    again = device.ask([*talk, 1], 1, session="talk")
    device.run_until(lambda: again.state is State.FINISHED)
    assert reused(again) == 40
    device.run()
    assert end(title).output_tokens == 40


def test_a_background_prompt_has_a_small_part_of_the_steps_that_others_wait_for():
    device = Device(128, step_tokens=32, policy=UNGATED)
    title = background(device, fresh(60), 2)
    talk = device.ask(fresh(4), 30)
    device.step()
    device.step()
    plan, _ = device.step()
    assert {id(row.sequence): row.num_tokens for row in plan.rows} == {id(talk): 1, id(title): 4}
    device.run()


def busy(num_blocks: int, policy: AdmissionPolicy, *, idle_s: float = 0.0) -> tuple[Device, list[int]]:
    """A session's prompt is being computed, another one waits for its tool; both had 20 blocks. And the other's ids."""
    device = Device(num_blocks, policy=policy)
    one, two = fresh(80), fresh(80)
    for name, ids in (("one", one), ("two", two)):
        device.ask(ids, 1, session=name)
        device.run()
    device.now_s += idle_s
    running = device.ask([*one, *fresh(20)], 18, session="one")
    device.step()
    assert running.num_pending == 4
    return device, two


@pytest.mark.parametrize(("policy", "is_held"), [(AdmissionPolicy(), True), (UNGATED, False)])
def test_a_new_session_waits_while_the_active_ones_need_the_memory(policy: AdmissionPolicy, is_held: bool):
    device, _ = busy(66, policy)
    new = device.ask(fresh(80), 1, session="three")
    device.step()
    assert new.was_admitted is not is_held
    # Now nothing else is to be computed than answers.
    device.step()
    assert new.was_admitted
    assert len(device.scheduler.running) == 2


def test_the_gate_lets_active_sessions_pass_whatever_they_find():
    device, _ = busy(66, AdmissionPolicy())
    new, forked = device.ask(fresh(80), 1, session="three"), device.ask(fresh(80), 1, session="two")
    device.step()
    assert (new.was_admitted, forked.was_admitted) == (False, True)


def test_the_gate_lets_sessions_pass_whose_state_is_still_there():
    device, two = busy(48, AdmissionPolicy(), idle_s=20.0)
    new, known = device.ask(fresh(80), 1, session="three"), device.ask([*two, 1], 1, session="two")
    device.step()
    assert (new.was_admitted, known.was_admitted) == (False, True)


def test_the_gate_lets_overdue_ones_pass():
    device, _ = busy(50, AdmissionPolicy())
    new = device.ask(fresh(80), 1, session="three")
    device.now_s += 60
    again = device.ask(fresh(80), 1, session="four")
    device.step()
    assert (new.was_admitted, again.was_admitted) == (True, False)


def test_under_overload_order_and_gate_save_what_arrival_order_computes_again():
    fcfs = agents(FCFS, 60, until_s=60, warm_up_s=30)
    both = agents(AdmissionPolicy(), 60, until_s=60, warm_up_s=30)
    assert both.hit_ratio > 1.3 * fcfs.hit_ratio
    assert both.num_turns > 1.3 * fcfs.num_turns


@settings(max_examples=400 if IS_SOAK else 40, deadline=None)
@given(st.data())
def test_any_mix_leaks_nothing_and_starves_nobody(data: st.DataObject):
    policy = AdmissionPolicy(
        is_by_prefix=data.draw(st.booleans()),
        is_gated=data.draw(st.booleans()),
        patience_s=data.draw(st.sampled_from([0.0, 1.0, 5.0])),
        max_passes=data.draw(st.integers(0, 3)),
    )
    num_blocks = data.draw(st.integers(8, 24))
    device = Device(
        num_blocks,
        step_tokens=data.draw(st.integers(1, 16)),
        max_running=data.draw(st.integers(1, 4)),
        policy=policy,
    )
    starts = [fresh(data.draw(st.integers(1, 3 * BLOCK))) for _ in range(3)]
    sequences: list[Sequence] = []
    cancelled: set[int] = set()
    limits: dict[int, tuple[int, int]] = {}  # of overdue ones: admissions until then, and from then on at most

    def of_class(sequence: Sequence, others: list[Sequence]) -> list[Sequence]:
        return [s for s in others if s.request.priority is sequence.request.priority]

    def step() -> None:
        in_order = [s for s in sequences if s.state is State.WAITING and not s.was_admitted and not s.is_cancelled]
        for sequence in in_order:
            if id(sequence) not in limits and device.now_s - sequence.times.arrived_s >= policy.patience_s:
                peers = of_class(sequence, in_order)
                before = len(of_class(sequence, device.admitted))
                limits[id(sequence)] = before, (peers.index(sequence) + 1) * (policy.max_passes + 1)
        device.step()
        for sequence in sequences:
            if sequence.was_admitted and id(sequence) in limits and sequence in device.admitted:
                before, limit = limits.pop(id(sequence))
                assert of_class(sequence, device.admitted).index(sequence) < before + limit

    for _ in range(data.draw(st.integers(1, 14))):
        room = num_blocks * BLOCK - 1
        ids = [*data.draw(st.sampled_from(starts)), *fresh(data.draw(st.integers(0, 60)))][:room]
        sequences.append(
            device.ask(
                ids,
                data.draw(st.integers(1, 20)),
                session=data.draw(st.sampled_from(["", "one", "two"])),
                priority=data.draw(st.sampled_from(Priority)),
                choices=data.draw(st.sampled_from([1, 1, 1, 3])),
            )
        )
        for _ in range(data.draw(st.integers(0, 4))):
            step()
        if data.draw(st.integers(0, 4)) == 0:
            victim = data.draw(st.sampled_from(sequences))
            victim.cancel()
            cancelled.add(id(victim))
    for _ in range(3_000):
        if not device.scheduler.attached and not device.scheduler.num_queued:
            break
        step()
    use = device.use()
    assert (use.held, use.free + use.cached) == (0, num_blocks)
    device.tree.check_integrity()
    for sequence in sequences:
        ends = [event for event in sequence.outbox._events if isinstance(event, Finished)]
        if id(sequence) not in cancelled:
            assert sorted(event.choice for event in ends) == list(range(sequence.request.sampling.choices))
            assert all(event.reason is FinishReason.LENGTH for event in ends)
            assert sum(isinstance(event, Admitted) for event in sequence.outbox._events) == 1
