"""What order of admission, gate, belt and disk tier are worth together, on one engine that has too many sessions.

Coding agents (bench/agents/) play their sessions to an engine of SmolLM2-135M-Instruct whose memory holds the states of
some of them: the measured shape of Codex with tokens divided by 80 in real seconds, and with ``--traces`` the sessions
of public traces. Every policy gets the same sessions, in a process of its own, one after the other; what counts are
turns that end within the measured time, after a time in which all have begun. Drafts are off. The last line is one
JSON object; every policy's row goes to stderr as soon as it is there. Ten times a policy is played, 80 s each.

    python -m bench.belt [--json] [--traces DIR] [--sweep] [--sessions 20] [--rounds 2] [--policies fcfs,lpm,...]

lpm_over_fcfs, all_over_fcfs: turns per second over those of arrival order with LRU and no disk tier.
starved: requests, of all policies, that waited longer than the engine's bound allows, admitted in the end or not.
policies: a row for each, the medians of its rounds; after the first round only those are played that the ratios name.
``late_turns_per_s`` is that of the second half of the measured time: where it is far from
``turns_per_s``, the sessions had not settled. ``hit_ratio`` counts prompt tokens; waits run from arrival to admission,
or to the end.

The number of sessions is that of the knee of arrival order, which ``--sweep`` shows: the first at which its turns per
second are fewer than with fewer sessions. It moves with the machine's pace. Traces have knees of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fencepost.engine.v1 import engine_pb2 as pb

from bench.agents.play import Plan, Played, play
from bench.agents.served import starved
from bench.agents.session import Session
from bench.agents.synthetic import Scale, sessions
from bench.agents.traces import read_trace, trace_names
from bench.stack import Stack, serving_stack
from services.models.store import resolve

_MODEL = "smollm2-135m-instruct"
_SCALE = Scale()
_POOL_TOKENS = 5_000
"""For the states of ten sessions of mean length, and what all share."""
_BYTES_PER_TOKEN = 46_080
_MEAN_PROMPT_TOKENS = 600
"""Of the sessions that are made up; traces are scaled to it."""
_WARM_UP_S = 1.5
"""For each session: all of them begin with a prompt of which little is cached, which takes about a second."""
_PATIENCE_S = 60.0 * _SCALE.time
_MAX_PASSES = 4
_SWEEP = (12, 16, 20, 28)
_FLAGS = (
    *("--drafts", "off", "--loop-guard", "off", "--block-tokens", "16", "--step-tokens", "128", "--threads", "1"),
    *("--max-running", "48", "--patience-s", str(_PATIENCE_S), "--max-passes", str(_MAX_PASSES)),
)


@dataclass(frozen=True, slots=True)
class Policy:
    """Which of the engine's means are used."""

    admission: str
    eviction: str = "lru"
    is_gated: bool = False
    restore: str | None = None

    def flags(self) -> tuple[str, ...]:
        """The engine's."""
        choices = ("--admission", self.admission, "--eviction", self.eviction)
        gate = ("--working-set-gate", str(self.is_gated).lower())
        return (*_FLAGS, *choices, *gate, *(("--restore", self.restore) if self.restore else ()))


_POLICIES = {
    "fcfs": Policy("fcfs"),
    "fcfs_belt": Policy("fcfs", "belt"),
    "fcfs_ssd": Policy("fcfs", restore="cost"),
    "lpm": Policy("lpm"),
    "lpm_belt": Policy("lpm", "belt"),
    "lpm_belt_gate": Policy("lpm", "belt", is_gated=True),
    "all": Policy("lpm", "belt", is_gated=True, restore="cost"),
    "all_always_restoring": Policy("lpm", "belt", is_gated=True, restore="always"),
}
_COMPARED = ("fcfs", "lpm", "all")
_DEFAULT = tuple(name for name in _POLICIES if name != "all_always_restoring")
_Row = dict[str, float]
_NewSessions = Callable[[], Iterator[Session]]


def main() -> None:
    parser = argparse.ArgumentParser(description="What admission, belt and disk tier are worth together.")
    parser.add_argument("--json", action="store_true", help="as without: stdout has one line")
    parser.add_argument("--traces", type=Path, help="folder of traces to play too, one round of each; 80 s a policy")
    parser.add_argument("--sweep", action="store_true", help="find the knee of arrival order instead")
    parser.add_argument("--policies", default=",".join(_DEFAULT), help=f"of {', '.join(_POLICIES)}")
    parser.add_argument("--sessions", type=int, default=20, help="at a time; 40 are far past the knee")
    parser.add_argument("--seconds", type=float, default=45.0, help="of measured time for each policy")
    parser.add_argument("--rounds", type=int, default=2, help="each with sessions of its own")
    options = parser.parse_args()
    policies: list[str] = options.policies.split(",")
    if unknown := set(policies) - set(_POLICIES):
        parser.error(f"unknown policies: {', '.join(sorted(unknown))}; there are {', '.join(_POLICIES)}")
    if options.sweep:
        result = {str(n): asyncio.run(_Bench(n, options.seconds).round("fcfs", 0)) for n in _SWEEP}
        print(json.dumps({"fcfs_by_sessions": result}))
        return
    bench = _Bench(options.sessions, options.seconds)
    print(json.dumps(asyncio.run(bench.measure(policies, options.rounds, options.traces))))


@dataclass(frozen=True, slots=True)
class _Bench:
    num_sessions: int
    measured_s: float

    async def measure(self, policies: list[str], rounds: int, traces: Path | None) -> dict[str, object]:
        result = await self._compare("synthetic", policies, rounds, self._made_up)
        if traces is None or not trace_names(traces):
            print("traces are skipped: --traces names no folder that has them", file=sys.stderr)
            return result
        for name in trace_names(traces):

            def read(seed: int, name: str = name) -> Iterator[Session]:
                return read_trace(traces, name, mean_prompt_tokens=_MEAN_PROMPT_TOKENS, scale=_SCALE)

            chosen = [policy for policy in _COMPARED if policy in policies]
            result[name] = await self._compare(name, chosen, 1, read)
        return result

    async def round(self, policy: str, seed: int) -> _Row:
        """One policy, with the sessions that are made up."""
        row = await self._play(_POLICIES[policy], seed, self._made_up(seed), joins_late=True)
        _tell(f"{self.num_sessions} sessions: {policy}", row)
        return row

    @staticmethod
    def _made_up(seed: int) -> Iterator[Session]:
        return sessions(seed, _SCALE)

    async def _compare(
        self, name: str, policies: list[str], rounds: int, new_sessions: Callable[[int], Iterator[Session]]
    ) -> dict[str, object]:
        rows: dict[str, list[_Row]] = {policy: [] for policy in policies}
        for seed in range(rounds):
            for policy in policies if seed == 0 else [each for each in policies if each in _COMPARED]:
                joins_late = name == "synthetic"
                row = await self._play(_POLICIES[policy], seed, new_sessions(seed), joins_late=joins_late)
                rows[policy].append(row)
                _tell(f"{name}, round {seed + 1} of {rounds}: {policy}", row)
        median = {
            policy: {
                **{key: round(statistics.median(row[key] for row in found), 3) for key in found[0]},
                "rounds": len(found),
            }
            for policy, found in rows.items()
        }
        result: dict[str, object] = {}
        for policy in ("lpm", "all"):
            if policy in rows and "fcfs" in rows:
                pairs = zip(rows[policy], rows["fcfs"], strict=True)
                ratios = [mine["turns_per_s"] / first["turns_per_s"] for mine, first in pairs]
                result[f"{policy}_over_fcfs"] = round(statistics.median(ratios), 2)
        result["starved"] = int(sum(row["starved"] for found in rows.values() for row in found))
        return result | {"sessions": self.num_sessions, "policies": median}

    async def _play(self, policy: Policy, seed: int, new: Iterator[Session], *, joins_late: bool) -> _Row:
        plan = Plan(
            num_sessions=self.num_sessions,
            ramp_s=15.0 * _SCALE.time,
            warm_up_s=_WARM_UP_S * self.num_sessions,
            measured_s=self.measured_s,
            between_sessions_s=5.0 * _SCALE.time,
            seed=seed,
            joins_late=joins_late,
        )
        with tempfile.TemporaryDirectory() as folder:
            stack = Stack(
                Path(folder),
                resolve(_MODEL),
                vram_bytes=_POOL_TOKENS * _BYTES_PER_TOKEN,
                engine_flags=policy.flags(),
                has_disk_tier=policy.restore is not None,
            )
            async with serving_stack(stack):
                measured = asyncio.create_task(_cpu_s(stack, plan))
                played = await play(stack.engine, new, plan)
                return _row(played, await measured)


def _tell(what: str, row: _Row) -> None:
    figures = ", ".join(f"{key} {value:.3g}" for key, value in row.items())
    print(f"{what}: {figures}", file=sys.stderr, flush=True)


async def _cpu_s(stack: Stack, plan: Plan) -> float:
    """Processor time within the measured time."""
    await asyncio.sleep(plan.warm_up_s)
    before_s = stack.cpu_s()
    await asyncio.sleep(plan.measured_s)
    return stack.cpu_s() - before_s


def _row(played: Played, cpu_s: float) -> _Row:
    finished = played.finished()
    half_s = (played.from_s + played.to_s) / 2
    late = [r for r in finished if r.finished_s is not None and r.finished_s >= half_s]
    prompt = sum(r.prompt_tokens for r in finished) or 1
    waits_s = [(r.admitted_s or played.to_s) - r.arrived_s for r in played.requests]
    ttfts_s = [r.first_token_s - r.arrived_s for r in finished if r.first_token_s is not None]
    return {
        "turns_per_s": len(finished) / (played.to_s - played.from_s),
        "late_turns_per_s": len(late) / (played.to_s - half_s),
        "turns": len(finished),
        "cpu_s_per_turn": cpu_s / max(1, len(finished)),
        "cpus": cpu_s / (played.to_s - played.from_s),
        "hit_ratio": sum(r.cached_tokens for r in finished) / prompt,
        "ssd_ratio": sum(r.cached_by_tier.get(pb.TIER_SSD, 0) for r in finished) / prompt,
        "prompt_tokens_per_turn": prompt / max(1, len(finished)),
        "computed_per_turn": sum(r.prompt_tokens - r.cached_tokens for r in finished) / max(1, len(finished)),
        "computed_per_s": sum(r.prompt_tokens - r.cached_tokens for r in finished) / (played.to_s - played.from_s),
        "ttft_median_s": statistics.median(ttfts_s) if ttfts_s else 0.0,
        "wait_median_s": statistics.median(waits_s),
        "wait_max_s": max(waits_s),
        "starved": len(starved(played.requests, until_s=played.to_s, patience_s=_PATIENCE_S, max_passes=_MAX_PASSES)),
    }


if __name__ == "__main__":
    main()
