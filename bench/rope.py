"""CPU time of encoding a growing session: all of it, the seed's back-off, and the rope; and whether the ids are right.

Each round takes the session through all three, in changing order, each with nothing remembered, and counts the CPU time
of the whole process. The last line is one JSON object; its speedups are the minimum over tokenizers.

    make bench-data
    python -m bench.rope [--json] [--rounds 5] [--prompts 300] [--tokenizers qwen3 …]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from bench.corpus.edits import changed, grown
from bench.corpus.session import NUM_TURNS, first_prompt, session
from bench.data import NAMES, tokenizer_path
from services.tokenizer.rope.encoded import EncodePath
from services.tokenizer.rope.encoder import RopeEncoder, RopeLimits
from services.tokenizer.rope.prompt_text import ExactSpan, PromptText, TokenIds
from services.tokenizer.rope.seam import SeamSplice
from services.tokenizer.rope.spliced import SplicedEncoder
from services.tokenizer.rope.statistics import CacheStatistics
from services.tokenizer.rope.whole import WholeEncoder, encode_text

Encode = Callable[[str, str], TokenIds]
"""Ids of a prompt of a conversation."""

CONTENDERS = ("full", "back_off", "rope")
_LIMITS = RopeLimits()
_FINE = RopeLimits(min_chars=1, chunk_chars=64)
"""Many more cuts than in service, so that more of them are tried."""


def encoder(contender: str, name: str, tokenizer: Tokenizer) -> Encode:
    """One of the contenders, with nothing remembered yet."""
    whole = WholeEncoder(tokenizer)
    if contender == "full":
        return lambda _, text: whole.encode(PromptText(text)).ids
    if contender == "back_off":
        splice = SeamSplice(tokenizer, _LIMITS.overlap_tokens, _LIMITS.resync_tokens)
        back_off = SplicedEncoder(whole, splice, _LIMITS.entries, _LIMITS.max_chars, CacheStatistics())
        return lambda key, text: back_off.encode(PromptText(text), key).ids
    rope = RopeEncoder(tokenizer, _LIMITS)
    if not rope.is_certified:
        raise SystemExit(f"{name} is not certified: {rope.why_not}")
    return lambda key, text: rope.encode(PromptText(text), key).ids


def timed_ms(encode: Encode, key: str, text: str) -> tuple[float, TokenIds]:
    start = time.process_time()
    ids = encode(key, text)
    return (time.process_time() - start) * 1e3, ids


def measure_sessions(name: str, tokenizer: Tokenizer, rounds: int) -> dict[str, Any]:
    """CPU milliseconds of a whole session, of the first turn of other sessions, and of what is no plain growth.

    Of each prompt the round counts that took least: what else the machine does only adds.
    """
    prompts = session(name, tokenizer, 0)
    others = [first_prompt(name, tokenizer, seed) for seed in (1, 2, 3)]
    last = prompts[-1]
    changes = {
        "fork": prompts[NUM_TURNS // 2] + "and now for something else",
        "rewind": prompts[NUM_TURNS - 2],
        "edit_in_line_1": last[:40] + "!" + last[40:],
    }
    least: dict[tuple[str, int], float] = {}
    least_changed = dict.fromkeys(changes, math.inf)
    expected = [encode_text(tokenizer, text) for text in (*prompts, *others)]
    wrong = 0
    for round_ in range(rounds):
        shift = round_ % len(CONTENDERS)
        for contender in CONTENDERS[shift:] + CONTENDERS[:shift]:
            encode = encoder(contender, name, tokenizer)
            for turn, text in enumerate((*prompts, *others)):
                key = "one" if turn < len(prompts) else f"other-{turn}"
                ms, ids = timed_ms(encode, key, text)
                least[contender, turn] = min(ms, least.get((contender, turn), math.inf))
                wrong += contender == "rope" and not np.array_equal(ids, expected[turn])
            for change, text in changes.items() if contender == "rope" else ():
                encode("one", last)
                ms, ids = timed_ms(encode, "one", text)
                least_changed[change] = min(ms, least_changed[change])
                wrong += not np.array_equal(ids, encode_text(tokenizer, text))
    total = {c: sum(least[c, turn] for turn in range(len(prompts))) for c in CONTENDERS}
    first = {c: sum(least[c, len(prompts) + i] for i in range(len(others))) / len(others) for c in CONTENDERS}
    return {
        "wrong": wrong,
        "tokens": [len(expected[0]), len(expected[len(prompts) - 1])],
        "session_cpu_ms": rounded(total),
        "session_speedup": round(total["full"] / total["rope"], 2),
        "over_backoff": round(total["back_off"] / total["rope"], 2),
        "new_session_cpu_ms": rounded(first),
        "new_session_share": round(first["rope"] / first["full"], 4),
        "rope_cpu_ms": rounded(least_changed),
    }


def check_prompts(name: str, tokenizer: Tokenizer, num_prompts: int) -> dict[str, Any]:
    """How many of the prompts that grow, and of those that change, get other ids than by encoding all of them."""
    rope = RopeEncoder(tokenizer, _FINE)
    added = WholeEncoder(tokenizer).added
    splice = SeamSplice(tokenizer, _LIMITS.overlap_tokens, _LIMITS.resync_tokens)
    back_off = SplicedEncoder(WholeEncoder(tokenizer), splice, _LIMITS.entries, _LIMITS.max_chars, CacheStatistics())
    counts = {"grown": 0, "changed": 0, "marked": 0, "wrong": 0, "wrong_of_back_off": 0, "reused": 0}
    for kind, prompts in (("grown", grown), ("changed", changed)):
        for key, text in prompts(name, num_prompts, added.contents):
            ids = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
            counts[kind] += 1
            encoded = rope.encode(PromptText(text), key)
            counts["reused"] += encoded.path is EncodePath.DELTA
            counts["wrong"] += not np.array_equal(encoded.ids, ids)
            counts["wrong_of_back_off"] += not np.array_equal(back_off.encode(PromptText(text), key).ids, ids)
    for key, prompt in marked(grown(name, num_prompts, added.contents)):
        counts["marked"] += 1
        counts["wrong"] += not np.array_equal(rope.encode(prompt, key).ids, rope.encode_full(prompt))
    if rope.mode != "rope":
        counts["wrong"] += 1
    return counts


def marked(prompts: Iterator[tuple[str, str]]) -> Iterator[tuple[str, PromptText]]:
    """The same prompts, where what each turn adds is in turn markup, literal content, and a sampled answer."""
    key_before, length = "", 0
    literals: list[tuple[int, int]] = []
    exact: list[ExactSpan] = []
    for turn, (key, text) in enumerate(prompts):
        if key != key_before:
            key_before, length, literals, exact = key, 0, [], []
        if length and turn % 3 == 1:
            literals.append((length, len(text)))
        elif length and turn % 3 == 2:
            exact.append(ExactSpan(length, len(text), np.arange(turn % 7, dtype=np.int32)))
        length = len(text)
        yield f"marked-{key}", PromptText(text, tuple(literals), tuple(exact))


def rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in values.items()}


def measure(names: Sequence[str], rounds: int, num_prompts: int, *, quiet: bool) -> dict[str, Any]:
    """Raises SystemExit where a tokenizer is missing or cannot be cut."""
    by_name: dict[str, Any] = {}
    for name in names:
        if not tokenizer_path(name).exists():
            raise SystemExit(f"{tokenizer_path(name)} is missing: make bench-data fetches it")
        tokenizer = Tokenizer.from_file(str(tokenizer_path(name)))
        details = measure_sessions(name, tokenizer, rounds)
        checked = check_prompts(name, tokenizer, num_prompts)
        by_name[name] = details | checked | {"wrong": details["wrong"] + checked["wrong"]}
        if not quiet:
            print(name, json.dumps(by_name[name], indent=1), flush=True)
    return {
        "bench": "rope",
        "wrong": sum(details["wrong"] for details in by_name.values()),
        "session_speedup": min(details["session_speedup"] for details in by_name.values()),
        "over_backoff": min(details["over_backoff"] for details in by_name.values()),
        "new_session_share": max(details["new_session_share"] for details in by_name.values()),
        "tokenizers": by_name,
    }


def main() -> int:
    """Zero when all ids are right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print only the last line")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=300, help="of each kind, for each tokenizer")
    parser.add_argument("--tokenizers", nargs="+", choices=NAMES, default=NAMES)
    options = parser.parse_args()
    result = measure(options.tokenizers, options.rounds, options.prompts, quiet=options.json)
    print(json.dumps(result))
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
