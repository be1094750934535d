"""Fences: what they cost, what they save, and whether anything illegal comes out.

Twenty agent tools in DeepSeek's markup on its V4 vocabulary (``make bench-data`` fetches it). Calls as agents make them
are pushed token by token, and every look at the legal tokens is timed; beside it llguidance with the same tools as one
parametric grammar, over the same tokens. Times are CPU times, best of the rounds where the machine disturbs.

    python -m bench.fence [--json] [--rounds 5] [--answers 150]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import llguidance
import numpy as np

from bench.fences.agent_calls import CALLS
from bench.fences.agent_tools import TOOLS, options_of
from bench.fences.driving import CASES, Case, drive, judge
from bench.fences.forcing import ids_of
from bench.fences.programs import Mode
from bench.fences.vocabularies import compiler, marker_ids
from services.engine.fence.compile import CompiledFence, FenceCompiler
from services.engine.fence.machine import Fence
from services.engine.fence.tokens import FenceTokens

MARK = "｜DSML｜"


def block(name: str, arguments: Mapping[str, Any]) -> str:
    """A call in DeepSeek's markup."""
    parameters = "\n".join(
        f'<{MARK}parameter name="{key}" string="{str(isinstance(value, str)).lower()}">'
        f"{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}</{MARK}parameter>"
        for key, value in arguments.items()
    )
    return f'\n\n<{MARK}tool_calls>\n<{MARK}invoke name="{name}">\n{parameters}\n</{MARK}invoke>\n</{MARK}tool_calls>'


def cpu_us(action: Callable[[], object]) -> float:
    start = time.thread_time_ns()
    action()
    return (time.thread_time_ns() - start) / 1e3


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


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


def measure_llguidance(tokens: FenceTokens, mark_id: int, calls: Sequence[list[int]], rounds: int) -> dict[str, float]:
    """The same tools as one grammar."""
    text = _parametric(f"<[{mark_id}]>")
    grammar = llguidance.LLMatcher.grammar_from_lark(text)
    matcher = llguidance.LLMatcher(tokens.lltokenizer, grammar, log_level=0)
    compiles: list[float] = []
    for _ in range(rounds):
        start = time.thread_time_ns()
        matcher = llguidance.LLMatcher(tokens.lltokenizer, grammar, log_level=0)
        compiles.append((time.thread_time_ns() - start) / 1e6)
    if matcher.is_error():
        raise SystemExit(matcher.get_error())
    looks: list[float] = []
    clones: list[float] = []
    row = np.zeros(tokens.num_words, np.uint32)
    for _ in range(rounds):
        for ids in calls:
            copy = matcher.deep_copy()
            for token_id in ids:
                looks.append(cpu_us(lambda copy=copy: copy.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)))
                clones.append(cpu_us(copy.deep_copy))
                if not copy.consume_token(token_id):
                    raise SystemExit(f"the grammar beside it refuses a call: {copy.get_error()}")
    return {
        "compile_20_ms": min(compiles),
        "mask_p50_us": percentile(looks, 0.5),
        "mask_p99_us": percentile(looks, 0.99),
        "clone_us": statistics.median(clones),
    }


def _parametric(mark: str) -> str:
    def quoted(text: str) -> str:
        return f" {mark} ".join(json.dumps(part, ensure_ascii=False) for part in text.split(MARK))

    lines: list[str] = []
    names: list[str] = []
    for number, (name, schema) in enumerate(TOOLS.items()):
        names.append(f"call{number}")
        required = schema["required"]
        keys = [*required, *(key for key in schema["properties"] if key not in required)]
        lines.append(
            f'call{number}: {quoted(f"<{MARK}invoke name=")} {json.dumps(json.dumps(name))} ">\\n" k{number}::0x0'
        )
        closing = quoted(f"</{MARK}invoke>\n")
        first = f"{closing} %if is_ones([0:{len(required)}])" if required else f'"\\n" {closing} %if is_zeros(_)'
        branches = [first] if required or not keys else [first, f"{closing} %if not(is_zeros(_))"]
        for bit, key in enumerate(keys):
            text, other = options_of(schema["properties"][key])
            for kind, inner in (("true", text), ("false", other)):
                if inner is None:
                    continue
                value = f"v{number}_{bit}_{kind}"
                lines.append(f"{value}: {_value(inner, kind)}")
                opening = f'<{MARK}parameter name="{key}" string="{kind}">'
                end = quoted(f"{MARK}parameter>\n").removeprefix('"" ')
                branches.append(f"{quoted(opening)} {value} {end} k{number}::set_bit({bit}) %if bit_clear({bit})")
        lines.append(f"k{number}::_: " + "\n  | ".join(branches))
    opening, closing = quoted(f"\n\n<{MARK}tool_calls>\n"), quoted(f"</{MARK}tool_calls>")
    start = f"start: {opening} ({' | '.join(names)})+ {closing}"
    return "\n".join([start, *lines, "TEXT: /(?s:.*)<\\//"])


def _value(schema: Mapping[str, Any], kind: str) -> str:
    """Up to the marker of the closing tag."""
    if kind == "false":
        options = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False, "lenient": True}
        return f'(%json {json.dumps({**schema, "x-guidance": options})}) "</"'
    if "enum" in schema:
        return "(" + " | ".join(json.dumps(f"{value}</") for value in schema["enum"]) + ")"
    return "TEXT"


def measure(rounds: int, num_answers: int) -> dict[str, Any]:
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
    result = {key: round(value, 3) if isinstance(value, float) else value for key, value in result.items()}
    result["invalid"] = num_invalid(case, fences, num_answers)
    result["answers"] = num_answers // len(Mode) * len(Mode)
    beside = measure_llguidance(fences.tokens, markers[MARK], calls, rounds)
    result["llguidance"] = {key: round(value, 3) for key, value in beside.items()}
    return result


def main() -> int:
    """Zero when nothing illegal came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print only the last line")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--answers", type=int, default=150, help="driven by random and adversarial tokens")
    options = parser.parse_args()
    result = measure(options.rounds, options.answers)
    if not options.json:
        print(json.dumps(result, indent=1))
    print(json.dumps(result))
    return 1 if result["invalid"] else 0


if __name__ == "__main__":
    sys.exit(main())
