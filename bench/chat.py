"""Time to the first token of a growing conversation, cold and from each tier, through the whole stack.

Starts ``fencepost up`` on a data directory of its own, once for each round and once more for the restart. The last line
is one JSON object: medians in milliseconds and the ratios cold / VRAM hit and cold / SSD hit, per prompt length.

    python -m bench.chat [--json] [--rounds 3] [--tokens 512 2048]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import httpx

from tests.e2e.stack import MODEL, Stack, run_stack

_WORDS = ("river", "stone", "window", "garden", "morning", "letter", "bridge", "winter", "paper", "candle", "music")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time to the first token of a growing conversation.")
    parser.add_argument("--json", action="store_true", help="print only the last line")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 2048])
    options = parser.parse_args()
    samples: dict[int, dict[str, list[float]]] = {n: {"cold": [], "vram": [], "ssd": []} for n in options.tokens}
    decode: list[float] = []
    for round_ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder)
            with run_stack(data) as stack:
                _ask(stack, "warm up")
                answers: dict[int, str] = {}
                for num_tokens, found in samples.items():
                    text = _text(num_tokens, round_)
                    elapsed_ms, answers[num_tokens] = _ask(stack, text)
                    found["cold"].append(elapsed_ms)
                    found["vram"].append(_ask(stack, text, answers[num_tokens], "Go on.")[0])
                decode.append(_tokens_per_s(stack))
            with run_stack(data) as stack:
                _ask(stack, "warm up")
                for num_tokens, found in samples.items():
                    text = _text(num_tokens, round_)
                    found["ssd"].append(_ask(stack, text, answers[num_tokens], "And then?")[0])
        if not options.json:
            print(f"round {round_ + 1}: {samples}", flush=True)
    result: dict[str, object] = {"decode_tok_s": round(statistics.median(decode), 1)}
    for num_tokens, found in samples.items():
        medians = {tier: statistics.median(values) for tier, values in found.items()}
        result |= {f"ttft_{tier}_{num_tokens}_ms": round(value, 1) for tier, value in medians.items()}
        result |= {
            f"{tier}_speedup_{num_tokens}": round(medians["cold"] / medians[tier], 1) for tier in ("vram", "ssd")
        }
    print(json.dumps(result))


def _text(num_tokens: int, round_: int) -> str:
    """About ``num_tokens`` tokens, another text each round and length: one word is one token."""
    size = len(_WORDS)
    return f"{round_} {num_tokens} " + " ".join(_WORDS[(i * i + i * round_) % size] for i in range(num_tokens - 40))


def _ask(stack: Stack, *texts: str) -> tuple[float, str]:
    """Milliseconds to the first token, and the answer; ``texts`` are the user's and the assistant's in turn."""
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    body = {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0, "stream": True}
    started, elapsed_ms, answer = time.perf_counter(), 0.0, ""
    with httpx.stream("POST", f"{stack.url}/v1/chat/completions", json=body, timeout=300) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            choice = json.loads(line.removeprefix("data: "))["choices"][0]
            answer += choice["delta"].get("content") or ""
            # The first token may be the model's end token: then the finish comes first.
            if not elapsed_ms and (answer or choice["finish_reason"]):
                elapsed_ms = (time.perf_counter() - started) * 1000
    return elapsed_ms, answer


def _tokens_per_s(stack: Stack) -> float:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Tell me a long story."}], "max_tokens": 96}
    times: list[float] = []
    with httpx.stream("POST", f"{stack.url}/v1/chat/completions", json=body | {"stream": True}, timeout=300) as answer:
        times += [time.perf_counter() for line in answer.iter_lines() if '"content":"' in line]
    return (len(times) - 1) / (times[-1] - times[0])


if __name__ == "__main__":
    main()
