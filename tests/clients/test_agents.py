"""Real agents in a two-turn tool loop, and what they find cached: in the loop, in a new process, after a restart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from tests.clients.agents import AGENTS, CLAUDE_CODE, PROGRAMS, Agent
from tests.clients.script import FINAL
from tests.clients.stack import Cost, Stack, run_stack

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not PROGRAMS.exists(), reason="make test-clients installs the agents"),
]


def turns_of(agent: Agent, stack: Stack, home: Path, *, resume: bool) -> tuple[Cost, Cost]:
    """Run the agent; what the call and the final answer of its loop cost."""
    num_before = len(stack.costs())
    done = agent.run(home, stack.url, resume=resume)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    assert FINAL in done.stdout, output
    costs = [cost for cost in stack.costs()[num_before:] if cost.kind != "side"]
    assert [cost.kind for cost in costs] == ["call", "final"], costs
    return costs[0], costs[1]


def assert_reuses(later: Cost, earlier: Cost) -> None:
    """All of the earlier turn but its last token, whose state nobody has computed."""
    assert later.num_cached >= earlier.prompt + earlier.output - 1, (earlier, later)


@pytest.mark.parametrize("thinks", [False, True], ids=["plain", "thinking"])
@pytest.mark.parametrize("agent", AGENTS, ids=[agent.name for agent in AGENTS])
def test_an_agent_finds_all_of_its_last_turn(agent: Agent, thinks: bool, model: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    turns: list[Sequence[Cost]] = []
    with run_stack(tmp_path / "stack", model, thinks=thinks, gateway_flags=agent.gateway_flags) as stack:
        turns.append(turns_of(agent, stack, home, resume=False))
        turns.append(turns_of(agent, stack, home, resume=True))
    with run_stack(tmp_path / "stack", model, thinks=thinks, gateway_flags=agent.gateway_flags) as stack:
        turns.append(turns_of(agent, stack, home, resume=True))
        assert any(tier == "TIER_SSD" for tier in turns[-1][0].cached)
    costs = [cost for turn in turns for cost in turn]
    assert costs[0].prompt == pytest.approx(agent.client.first_request_tokens, rel=0.1), "what connect warns of"
    assert (costs[0].num_cached > costs[0].prompt // 2) == agent.warms_up
    for earlier, later in pairwise(costs):
        assert_reuses(later, earlier)


def test_small_requests_without_tools_are_background_work(model: Path, tmp_path: Path) -> None:
    with run_stack(tmp_path / "stack", model, thinks=False) as stack:
        CLAUDE_CODE.run(tmp_path / "home", stack.url, resume=False)
        assert {(cost.kind, cost.background) for cost in stack.costs()} == {
            ("side", True),
            ("call", False),
            ("final", False),
        }
