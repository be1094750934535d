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
                _first_token_ms(stack, "warm up")
                for num_tokens, found in samples.items():
                    text = _text(num_tokens, round_)
                    found["cold"].append(_first_token_ms(stack, text))
                    found["vram"].append(_first_token_ms(stack, text))
                decode.append(_tokens_per_s(stack))
            with run_stack(data) as stack:
                _first_token_ms(stack, "warm up")
                for num_tokens, found in samples.items():
                    found["ssd"].append(_first_token_ms(stack, _text(num_tokens, round_)))
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


def _first_token_ms(stack: Stack, text: str) -> float:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 2, "temperature": 0}
    started = time.perf_counter()
    with httpx.stream("POST", f"{stack.url}/v1/chat/completions", json=body | {"stream": True}, timeout=300) as answer:
        for line in answer.iter_lines():
            if '"content":"' in line and '"content":""' not in line:
                return (time.perf_counter() - started) * 1000
    raise RuntimeError("the stream had no text")


def _tokens_per_s(stack: Stack) -> float:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Tell me a long story."}], "max_tokens": 96}
    times: list[float] = []
    with httpx.stream("POST", f"{stack.url}/v1/chat/completions", json=body | {"stream": True}, timeout=300) as answer:
        times += [time.perf_counter() for line in answer.iter_lines() if '"content":"' in line]
    return (len(times) - 1) / (times[-1] - times[0])


if __name__ == "__main__":
    main()
