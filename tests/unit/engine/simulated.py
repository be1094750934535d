"""The scheduler on a device without tensors, whose clock goes as fast as its steps are said to take."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from services.engine.blocks import BlockPool
from services.engine.cache_manager import CacheManager, PoolUse
from services.engine.end_rules import EndRules
from services.engine.prefix_tree import PrefixTree
from services.engine.request import Priority, Request, Sampled, SamplingParams
from services.engine.scheduler import Scheduler
from services.engine.sequence import Sequence, State
from services.engine.step import Plan, Terminal
from services.engine.waiting import DEFAULT_POLICY, AdmissionPolicy
from tests.unit.engine.memory import to_bytes, to_ids

BLOCK = 4


class Device:
    """A step takes ``prompt_token_s`` for each token of a prompt, and ``step_s`` beside that."""

    def __init__(
        self,
        num_blocks: int,
        *,
        step_tokens: int = 16,
        max_running: int = 4,
        policy: AdmissionPolicy = DEFAULT_POLICY,
        prompt_token_s: float = 0.01,
        step_s: float = 0.05,
    ) -> None:
        self.now_s = 0.0
        self.pool = BlockPool(num_blocks)
        self.tree = PrefixTree(BLOCK, clock=self.clock, free_block=lambda block: self.pool.put((block,)))
        self.cache = CacheManager(self.pool, self.tree)
        self.scheduler = Scheduler(
            self.cache,
            EndRules(frozenset(), num_blocks * BLOCK, lambda token: b""),
            step_tokens=step_tokens,
            max_running=max_running,
            drafts=False,
            policy=policy,
            clock=self.clock,
        )
        self.admitted: list[Sequence] = []
        """In order of first admission."""
        self.computed_tokens = 0
        self._prompt_token_s = prompt_token_s
        self._step_s = step_s
        self._waiting: list[Sequence] = []

    def clock(self) -> float:
        return self.now_s

    def sequence(
        self,
        ids: list[int],
        max_tokens: int = 4,
        *,
        session: str = "",
        priority: Priority = Priority.INTERACTIVE,
        choices: int = 1,
    ) -> Sequence:
        sampling = SamplingParams(max_tokens=max_tokens, choices=choices)
        request = Request(
            cache_scope="a", token_ids=to_bytes(ids), sampling=sampling, conversation_key=session, priority=priority
        )
        room = self.pool.num_blocks * BLOCK - len(ids)
        return Sequence.of(request, self.tree.root("a"), min(max_tokens, room), self.clock)

    def ask(self, ids: list[int], max_tokens: int = 4, **options: object) -> Sequence:
        sequence = self.sequence(ids, max_tokens, **options)  # type: ignore[arg-type]
        self.scheduler.add(sequence)
        self._waiting.append(sequence)
        return sequence

    def step(self) -> tuple[Plan, list[Terminal]]:
        """One step; where there is nothing to compute, half a second passes."""
        plan = self.scheduler.schedule()
        new = [s for s in self._waiting if s.was_admitted]
        self._waiting = [s for s in self._waiting if not s.was_admitted and s.state is not State.FINISHED]
        if any(sequence.request.is_background for sequence in new):
            assert all(sequence.request.is_background for sequence in self.scheduler.waiting), "an overtaking"
        self.admitted += new
        prompt_tokens = sum(row.num_tokens for row in plan.rows if row.num_tokens > 1)
        self.computed_tokens += sum(row.num_tokens for row in plan.rows)
        self.now_s += prompt_tokens * self._prompt_token_s + self._step_s if plan.rows else 0.5
        terminals = self.scheduler.commit(
            plan, [(Sampled(next_token(row.sequence)),) for row in plan.rows if row.samples]
        )
        use = self.use()
        assert use.free + use.held + use.cached == use.total
        assert min(use.free, use.held, use.cached) >= 0
        return plan, terminals

    def run(self, limit: int = 5_000) -> None:
        """Until nothing runs or waits."""
        self.run_until(lambda: not self.scheduler.attached and not self.scheduler.num_queued, limit)

    def run_until(self, is_reached: Callable[[], bool], limit: int = 5_000) -> None:
        for _ in range(limit):
            if is_reached():
                return
            self.step()
        raise AssertionError("the scheduler makes no progress")

    def use(self) -> PoolUse:
        return self.cache.use(self.scheduler.attached)


def next_token(sequence: Sequence) -> int:
    """Some id that no prompt of a test has."""
    return 1_000_000 + sequence.num_tokens


@dataclass
class Agent:
    """A session: its tokens so far, and its number of turns."""

    name: str
    ids: list[int]
    num_turns: int = 0


@dataclass
class Outcome:
    """What a workload has come to."""

    num_turns: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    waits_s: list[float] = field(default_factory=list[float])

    @property
    def hit_ratio(self) -> float:
        return 1 - self.computed_tokens / self.prompt_tokens


def agents(
    policy: AdmissionPolicy, num_agents: int, *, until_s: float, seed: int = 1, warm_up_s: float = 100.0
) -> Outcome:
    """Coding agents that take turns with one device, each one's next turn some seconds behind its last answer.

    Shapes as measured of real ones, in tokens divided by 64: 180 that all share, growing to 1,300 in 30 turns; tools
    take 5.2 s in the median, 81 s at the 99th percentile. The device holds the state of about ten of them, and computes
    a thousand tokens in 1.2 s.
    """
    rng = random.Random(seed)
    device = Device(1_950, step_tokens=128, max_running=48, policy=policy, prompt_token_s=0.0012, step_s=0.02)
    outcome = Outcome()
    returns: list[tuple[float, int, Agent]] = []
    running: dict[Sequence, Agent] = {}

    def begin(number: int, num_turns: int = 0) -> Agent:
        ids = [1] * 180 + [rng.randint(2, 10**6) for _ in range(38 * num_turns)]
        return Agent(str(number), ids, num_turns)

    def lognormal(median: float, sigma: float, most: float) -> int:
        return int(min(most, median * math.exp(rng.gauss(0, sigma))))

    num_agents_ever = num_agents
    for number in range(num_agents):
        heapq.heappush(returns, (rng.random() * 15, number, begin(number, rng.randrange(30))))
    while device.now_s < until_s:
        while returns and returns[0][0] <= device.now_s:
            agent = heapq.heappop(returns)[2]
            agent.ids += [rng.randint(2, 10**6) for _ in range(4 + lognormal(25, 0.77, 300))]
            running[device.ask(agent.ids, 1 + lognormal(3, 0.94, 60), session=agent.name)] = agent
        plan, terminals = device.step()
        is_measured = device.now_s > warm_up_s
        if is_measured:
            outcome.computed_tokens += sum(row.num_tokens for row in plan.rows if not row.sequence.num_output)
            firsts = [row.sequence for row in plan.rows if row.samples and row.sequence.num_output == 1]
            outcome.prompt_tokens += sum(sequence.num_prompt for sequence in firsts)
            outcome.waits_s += [device.now_s - sequence.times.arrived_s for sequence in firsts]
        for terminal in terminals:
            agent = running.pop(terminal.sequence)
            agent.ids = list(to_ids(terminal.sequence.token_ids))
            agent.num_turns += 1
            outcome.num_turns += is_measured
            wait_s = 5.2 * math.exp(rng.gauss(0, 1.18))
            if agent.num_turns >= 30:
                agent, wait_s = begin(num_agents_ever), 5.0
                num_agents_ever += 1
            heapq.heappush(returns, (device.now_s + wait_s, num_agents_ever * 1_000 + len(running), agent))
    return outcome
