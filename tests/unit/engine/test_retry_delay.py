"""A refused request is told when it will find room, as far as that can be known."""

import heapq
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.retry_delay import MAX_DELAY_S, Job, Pace, RetryDelays
from services.engine.sequence import Sequence, State
from services.engine.waiting import AdmissionPolicy
from tests.unit.engine.simulated import Device

PROMPT_TOKEN_S = 0.01
STEP_S = 0.05
_ids = itertools.count(2)


def pace(output_tokens: int = 20) -> Pace:
    known = Pace(PROMPT_TOKEN_S, STEP_S)
    for _ in range(100):
        known.observe_output(output_tokens)
    return known


def test_the_pace_is_learned_from_steps():
    known = Pace(1.0, 1.0)
    for _ in range(200):
        known.observe_step(0, 4, 0.05)
        known.observe_step(100, 4, 1.05)
        known.observe_step(5, 4, 100.0)  # says nothing
    job = Job(100, 0, 10)
    # The second begins when the first has ended: its prompt of a second, and ten steps.
    assert known.seconds_until([job], [job], 1, 1) == pytest.approx(1.0 + 10 * 0.05, rel=0.01)


def test_slots_are_free_as_outputs_end_and_prompts_are_computed_one_after_the_other():
    known = pace()
    running = [Job(0, 5, 15), Job(0, 0, 30)]
    waiting = [Job(100, 0, 10), Job(50, 0, 10), Job(10, 0, 10)]
    # Ends behind 10, 20 (the first that waited) and 20 steps (as long as outputs are expected to be).
    seconds = [known.seconds_until(running, waiting, 2, count) for count in (1, 2, 3)]
    assert seconds == pytest.approx([10 * 0.05, 1.0 + 20 * 0.05, 1.5 + 20 * 0.05], rel=0.02)


def test_an_output_that_is_longer_than_expected_goes_on():
    known = pace(20)
    early, late = Job(0, 19, 1_000), Job(0, 500, 1_000)
    assert known.seconds_until([early], [early], 1, 1) == pytest.approx(10 * 0.05, rel=0.1)
    assert known.seconds_until([late], [early], 1, 1) == pytest.approx(10 * 0.05, rel=0.1)
    assert known.seconds_until([Job(0, 500, 502)], [early], 1, 1) == pytest.approx(2 * 0.05)


jobs = st.lists(st.builds(lambda p, w, n: Job(p, w, w + n), *[st.integers(0, 5_000)] * 2, st.integers(1, 5_000)))


@given(jobs, jobs, st.integers(1, 16), st.integers(1, 300))
def test_every_delay_is_positive_and_grows_with_the_queue(
    running: list[Job], waiting: list[Job], slots: int, count: int
):
    known = pace()
    one, more = (known.seconds_until(running, waiting, slots, number) for number in (count, count + 1))
    assert 0 <= one <= more
    delays = RetryDelays(known, clock=lambda: 0.0)
    told = [
        delays.delay_s(running, waiting, slots, num_over=1, choices=1, is_background=is_background)
        for is_background in (False, False, True)
    ]
    assert 1 <= told[0] <= told[1] <= told[2] <= MAX_DELAY_S


def test_who_is_refused_comes_back_behind_those_refused_before_and_background_ones_behind_all():
    now = [0.0]
    delays = RetryDelays(pace(), clock=lambda: now[0])
    one = [Job(0, 0, 10)]

    def told(*, is_background: bool = False) -> float:
        return delays.delay_s(one, one, 1, num_over=6, choices=1, is_background=is_background)

    assert [told() for _ in range(3)] == pytest.approx([3.0, 3.5, 4.0])
    assert [told(is_background=True) for _ in range(2)] == pytest.approx([4.5, 5.0])
    assert told() == pytest.approx(4.5)
    # Those who were expected back are not waited for longer than that.
    now[0] = 10.0
    assert told() == pytest.approx(3.0)


class Server:
    """A queue of bounded length, and callers that come back when they are told to."""

    def __init__(self, device: Device, max_waiting: int, max_tokens: int) -> None:
        self.device = device
        self.delays = RetryDelays(pace(max_tokens), device.clock)
        self.num_refusals: dict[int, int] = {}
        self.told_s: list[float] = []
        self._max_waiting = max_waiting
        self._max_tokens = max_tokens
        self._calls: list[tuple[float, int, int]] = []
        self._names = itertools.count()

    def call_at(self, time_s: float, prompt_tokens: int) -> None:
        heapq.heappush(self._calls, (time_s, next(self._names), prompt_tokens))

    def run(self) -> None:
        device = self.device
        while self._calls or device.scheduler.attached or device.scheduler.num_queued:
            while self._calls and self._calls[0][0] <= device.now_s:
                _, name, prompt_tokens = heapq.heappop(self._calls)
                self._call(name, prompt_tokens)
            _, terminals = device.step()
            for _ in terminals:
                self.delays.pace.observe_output(self._max_tokens)

    def _call(self, name: int, prompt_tokens: int) -> None:
        scheduler = self.device.scheduler
        num_over = scheduler.num_queued + 1 - self._max_waiting
        if num_over <= 0:
            self.device.ask([next(_ids) for _ in range(prompt_tokens)], self._max_tokens)
            self.num_refusals.setdefault(name, 0)
            return
        delay_s = self.delays.delay_s(
            [job(s, 0 if s.num_output else s.num_pending) for s in scheduler.attached],
            [job(s, s.num_tokens) for s in scheduler.waiting],
            4,
            num_over=num_over,
            choices=1,
            is_background=False,
        )
        self.told_s.append(delay_s)
        self.num_refusals[name] = self.num_refusals.get(name, 0) + 1
        heapq.heappush(self._calls, (self.device.now_s + delay_s, name, prompt_tokens))


def job(sequence: Sequence, prompt_tokens: int) -> Job:
    assert sequence.state is not State.FINISHED
    return Job(prompt_tokens, sequence.num_output, sequence.max_tokens)


@pytest.mark.parametrize("num_blocks", [400, 40])
def test_the_delay_grows_with_the_queue_and_who_comes_back_after_it_finds_room(num_blocks: int):
    """With slots, and with blocks, as what is scarce."""
    rng = random.Random(num_blocks)
    policy = AdmissionPolicy(is_gated=False)
    device = Device(num_blocks, policy=policy, prompt_token_s=PROMPT_TOKEN_S, step_s=STEP_S)
    server = Server(device, max_waiting=6, max_tokens=20)
    for number in range(40):
        server.call_at(0.5 + 0.01 * number, rng.randint(20, 60))
    server.run()
    assert len(server.num_refusals) == 40
    assert server.told_s[:20] == sorted(server.told_s[:20])
    assert server.told_s[20] > 3 * server.told_s[0]
    refused = [number for number in server.num_refusals.values() if number]
    assert len(refused) >= 28
    # Told once, and then admitted to the queue: nearly always.
    assert sum(number == 1 for number in refused) >= 0.9 * len(refused)
    assert max(refused) <= 2
