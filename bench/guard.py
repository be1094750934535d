"""CPU time of the loop guard per token and per clone, beside the least that sampling does: finding the maximum.

Rounds alternate between them; of each the least counts. The last line is one JSON object.

    python -m bench.guard [--json] [--rounds 7]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from services.engine.guard.lexicon import Lexicon
from services.engine.guard.loop_guard import LoopGuard
from services.engine.guard.rules import Region
from services.models.store import DEFAULT_MODEL, resolve
from services.vocabulary import load_vocabulary

_ROOT = Path(__file__).parent.parent
_SENTENCE = "Then I compare the values with the defaults and look at the test that fails once more. "


def texts() -> dict[str, str]:
    """What a guard has little to do with, and what makes it work."""
    return {
        "prose": (_ROOT / "docs" / "architecture.md").read_text(),
        "code": (_ROOT / "services" / "engine" / "scheduler.py").read_text(),
        "sentence": _SENTENCE * 200,
        "zeros": str([0] * 1200),
    }


def cpu_us(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) * 1e6


def measure(rounds: int) -> dict[str, float]:
    """Microseconds by name, and their ratio to finding the maximum."""
    model_dir = resolve(DEFAULT_MODEL)
    vocabulary = load_vocabulary(model_dir)
    lexicon = Lexicon(vocabulary.token_bytes)
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    ids_by_name = {name: tokenizer.encode(text).ids[:2000] for name, text in texts().items()}
    logits = np.random.default_rng(0).normal(size=len(vocabulary.token_bytes))
    used = LoopGuard(lexicon)

    def push(token_ids: list[int]) -> None:
        guard = LoopGuard(lexicon)
        for token_id in token_ids:
            guard.push(token_id, Region.PROSE)

    def repeat(work: Callable[[], object], times: int) -> None:
        for _ in range(times):
            work()

    for token_id in ids_by_name["code"]:
        used.push(token_id)
    least: dict[str, float] = {}
    for _ in range(rounds):
        took = {f"{name}_us": cpu_us(lambda ids=ids: push(ids)) / len(ids) for name, ids in ids_by_name.items()}
        took["clone_us"] = cpu_us(lambda: repeat(used.clone, 1000)) / 1000
        took["maximum_us"] = cpu_us(lambda: repeat(logits.argmax, 1000)) / 1000
        least = {name: min(us, least.get(name, math.inf)) for name, us in took.items()}
    maximum = least["maximum_us"]
    return least | {name.replace("_us", "_ratio"): us / maximum for name, us in least.items() if name != "maximum_us"}


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print only the last line")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    measured = measure(args.rounds)
    if not args.json:
        for name, value in measured.items():
            print(f"{name:16} {value:8.2f}")
    print(json.dumps({"bench": "guard", **{name: round(value, 2) for name, value in measured.items()}}))


if __name__ == "__main__":
    main()
