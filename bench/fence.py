"""Fences: what they cost, what they save, and whether anything illegal comes out.

Twenty agent tools in DeepSeek's markup on its V4 vocabulary (``make bench-data`` fetches it). Calls as agents make them
are pushed token by token, and every look at the legal tokens is timed; beside it llguidance with the same tools as one
parametric grammar, and xgrammar where it is installed, over the same tokens. Times are CPU times, best of the rounds
where the machine disturbs. ``step_over_free_*``: a decode step of the default model with 8 fenced rows over one without
fences, no drafts (bench/fences/step_cost.py).

    python -m bench.fence [--json] [--rounds 5] [--answers 150] [--steps 60] [--threads 1]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.fences.agent_calls import CALLS
from bench.fences.agent_tools import TOOLS
from bench.fences.driving import CASES, Case, drive, judge
from bench.fences.forcing import ids_of
from bench.fences.peer_grammars import MARK, measure_llguidance, measure_xgrammar
from bench.fences.programs import Mode
from bench.fences.step_cost import StepCost
from bench.fences.timing import cpu_us, percentile
from bench.fences.vocabularies import compiler, marker_ids
from services.engine.fence.compile import FenceCompiler
from services.engine.fence.compiled import CompiledFence
from services.engine.fence.machine import Fence
from services.models.store import DEFAULT_MODEL, resolve


def block(name: str, arguments: Mapping[str, Any]) -> str:
    """A call in DeepSeek's markup."""
    parameters = "\n".join(
        f'<{MARK}parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
        f"{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}</{MARK}parameter>"
        for key, value in arguments.items()
    )
    return f'\n\n<{MARK}tool_calls>\n<{MARK}invoke name="{name}">\n{parameters}\n</{MARK}invoke>\n</{MARK}tool_calls>'


def measure_compile(case: Case, fences: FenceCompiler, rounds: int) -> dict[str, float]:
    """With nothing compiled before, and with the tools of an earlier request."""
    cold: list[float] = []
    warm: list[float] = []
    required, auto = (case.program(fences, TOOLS, mode) for mode in (Mode.REQUIRED, Mode.AUTO))
    for _ in range(rounds):
        fresh = FenceCompiler(fences.rows)
        cold.append(cpu_us(partial(fresh.compile, required)) / 1e3)
        warm.append(cpu_us(partial(fresh.compile, auto)) / 1e3)
    return {"compile_20_ms": min(cold), "compile_other_mode_ms": min(warm)}


def measure_masks(compiled: CompiledFence, calls: Sequence[list[int]], rounds: int) -> dict[str, float]:
    """Every look of all rounds counts, the first one at each state included."""
    looks: list[float] = []
    clones: list[float] = []
    pushes: list[float] = []
    for _ in range(rounds):
        for ids in calls:
            fence = Fence(compiled)
            for token_id in ids:
                looks.append(cpu_us(fence.allowed))
                clones.append(cpu_us(fence.clone))
                pushes.append(cpu_us(lambda fence=fence, token_id=token_id: fence.push(token_id)))
    return {
        "mask_p50_us": percentile(looks, 0.5),
        "mask_p99_us": percentile(looks, 0.99),
        "mask_max_us": max(looks),
        "clone_us": statistics.median(clones),
        "clone_p99_us": percentile(clones, 0.99),
        "push_p50_us": percentile(pushes, 0.5),
    }


def forward_passes(compiled: CompiledFence, calls: Sequence[list[int]]) -> float:
    """Of a call's tokens, the share that needs logits, where forced ones are appended to what was sampled."""
    num_tokens = num_passes = 0
    for ids in calls:
        fence, position = Fence(compiled), 0
        while position < len(ids):
            run = fence.forced()
            if not run:
                num_passes += 1
                run = ids[position : position + 1]
            for token_id in run[: len(ids) - position]:
                if token_id != ids[position] or not fence.push(token_id):
                    raise SystemExit("a call of an agent is not legal")
                position += 1
        num_tokens += len(ids)
    return num_passes / num_tokens


def num_invalid(case: Case, fences: FenceCompiler, num_answers: int) -> int:
    """Of answers that random and adversarial tokens drive out of the fence."""
    invalid = 0
    for mode in Mode:
        for number in range(num_answers // len(Mode)):
            rng = random.Random(f"{mode.value} {number}")
            try:
                compiled = case.compile(fences, TOOLS, mode)
                judge(drive(case, compiled, rng, is_adversarial=number % 2 == 1), case, TOOLS, mode)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with an answer makes it invalid
                print(f"{mode.value} {number}: {error}", file=sys.stderr)
                invalid += 1
    return invalid


def measure(rounds: int, num_answers: int, num_steps: int, threads: int) -> dict[str, Any]:
    case = next(case for case in CASES if case.id == "dsml")
    try:
        fences = compiler(case.vocabulary, Path())
    except FileNotFoundError as error:
        raise SystemExit(str(error)) from None
    markers = marker_ids(fences, MARK)
    calls = [ids_of(fences.tokens, block(name, arguments), markers) for name, arguments in CALLS]
    compiled = case.compile(fences, TOOLS, Mode.REQUIRED)
    result: dict[str, Any] = {"bench": "fence", **measure_compile(case, fences, rounds)}
    result |= measure_masks(compiled, calls, rounds)
    result["forward_passes_over_free"] = forward_passes(compiled, calls)
    result["invalid"] = num_invalid(case, fences, num_answers)
    result["answers"] = num_answers // len(Mode) * len(Mode)
    result |= StepCost(resolve(DEFAULT_MODEL), threads).measure_all(num_steps)
    beside = measure_llguidance(fences.tokens, markers[MARK], calls, rounds)
    result["llguidance"] = {key: round(value, 3) for key, value in beside.items()}
    result |= measure_xgrammar(fences.tokens, calls)
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in result.items()}


def main() -> int:
    """Zero when nothing illegal came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print only the last line")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--answers", type=int, default=150, help="driven by random and adversarial tokens")
    parser.add_argument("--steps", type=int, default=60, help="of the default model with 8 rows, of each kind")
    parser.add_argument("--threads", type=int, default=1, help="of these steps' forward")
    options = parser.parse_args()
    result = measure(options.rounds, options.answers, options.steps, options.threads)
    if not options.json:
        print(json.dumps(result, indent=1))
    print(json.dumps(result))
    return 1 if result["invalid"] else 0


if __name__ == "__main__":
    sys.exit(main())
