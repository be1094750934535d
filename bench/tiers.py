"""Time to the first token by tier, what restores and writes cost running streams, and what a session writes.

Engine and kvstore as processes, SmolLM2-135M-Instruct, contexts of 512, 2k and 6k tokens, each followed by 64 new ones.
In every round, one after the other: computed from nothing, resident, from disk with a cold page cache, from disk with a
warm one, after a restart of both processes; and beside them the plain copy: the same bytes read from a file with a cold
page cache and copied into place. The last line is one JSON object of medians over the rounds.

    python -m bench.tiers [--json] [--rounds 3]

ssd_speedup_2k, ssd_speedup_6k, restart_speedup_6k: computing from nothing over the tier's, both with 64 new tokens.
restore_over_plain_copy: what disk adds to a resident prefix, over the plain copy (6k; 1.67 is 0.6 of its bandwidth).
token_gap_p99_ratio: 99th percentile of the time between tokens of a stream beside restores and writes, over it alone.
always_over_cost_on_a_slow_store: four conversations come back at once over a link of 5 MB/s; restored whatever it
costs, over restored by cost.
written_over_final_kv: bytes stored for a session of 30 turns over the state of its final context (a tiny model).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from fencepost.engine.v1 import engine_pb2 as pb

from bench.stack import Stack, serving_stack
from services.models.store import resolve
from tests.contract.engine_client import write_tiny_engine_model

_MODEL = "smollm2-135m-instruct"
_CONTEXTS = {"512": 512, "2k": 2_048, "6k": 6_144}
_NEW_TOKENS = 64
_NUM_TURNS = 30
_STATIC_TOKENS = 11_500
_TURN_TOKENS = 2_200
_ANSWER_TOKENS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description="What each tier costs.")
    parser.add_argument("--json", action="store_true", help="print only the last line")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    result = asyncio.run(_measure(options.rounds, verbose=not options.json))
    print(json.dumps(result))


async def _measure(rounds: int, *, verbose: bool) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder), resolve(_MODEL))
        for seed in range(rounds):
            for name, context in _CONTEXTS.items():
                for key, value in (await _round(stack, seed, context)).items():
                    found.setdefault(f"{key}_{name}", []).append(value)
                    if verbose:
                        print(f"{key}_{name} {value:.4f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        gaps = await _gaps(Stack(Path(folder), resolve(_MODEL)))
    with tempfile.TemporaryDirectory() as folder:
        slow = await _slow(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        written = await _session(Path(folder))
    median = {key: statistics.median(values) for key, values in found.items()}
    speedups = {
        "ssd_speedup_2k": median["cold_s_2k"] / median["ssd_s_2k"],
        "ssd_speedup_6k": median["cold_s_6k"] / median["ssd_s_6k"],
        "restart_speedup_6k": median["cold_s_6k"] / median["restart_s_6k"],
        "restore_over_plain_copy": (median["ssd_s_6k"] - median["vram_s_6k"]) / median["plain_copy_s_6k"],
        "warm_restore_over_plain_copy": (median["ssd_warm_s_6k"] - median["vram_s_6k"]) / median["plain_copy_s_6k"],
        "written_over_final_kv": written,
    }
    return {key: round(value, 4) for key, value in (speedups | gaps | slow | median).items()}


async def _round(stack: Stack, seed: int, context: int) -> dict[str, float]:
    rng = random.Random(f"{seed} {context}")
    prefix = _ids(rng, context)
    scope = f"{seed}-{context}"
    found: dict[str, float] = {}

    async def first_token(key: str, ids: list[int], tier: int | None, *, persist: bool = False) -> None:
        started_s = time.perf_counter()
        call = stack.engine.start(ids, 1, scope, persist=persist)
        async for message in call:
            if message.WhichOneof("event") == "tokens":
                found.setdefault(key, time.perf_counter() - started_s)
            if message.WhichOneof("event") == "finished":
                by_tier = {entry.tier: entry.tokens for entry in message.finished.usage.cached.by_tier}
                if tier is not None and by_tier.get(tier, 0) < context - 1:
                    raise RuntimeError(f"{key}: {context} tokens were to come from tier {tier}: {by_tier}")

    async with serving_stack(stack):
        await first_token("warm_up", _ids(rng, 64), None)
        await first_token("cold_s", prefix + _ids(rng, _NEW_TOKENS), None)
        await stack.flush(scope, pb.TIER_VRAM)
        await first_token("stored", prefix, None, persist=True)
        await stack.settled()
        await first_token("vram_s", prefix + _ids(rng, _NEW_TOKENS), pb.TIER_VRAM)
        await stack.flush(scope, pb.TIER_VRAM)
        # The first reads teach the engine what reading costs.
        await first_token("learn", prefix + _ids(rng, _NEW_TOKENS), pb.TIER_SSD)
        await stack.flush(scope, pb.TIER_VRAM)
        stack.drop_page_cache()
        await first_token("ssd_s", prefix + _ids(rng, _NEW_TOKENS), pb.TIER_SSD)
        await stack.flush(scope, pb.TIER_VRAM)
        await first_token("ssd_warm_s", prefix + _ids(rng, _NEW_TOKENS), pb.TIER_SSD)
        found["plain_copy_s"] = _plain_copy_s(stack.folder / "plain", context * stack.bytes_per_token)
    async with serving_stack(stack):
        await first_token("warm_up", _ids(rng, 64), None)
        stack.drop_page_cache()
        await first_token("restart_s", prefix + _ids(rng, _NEW_TOKENS), pb.TIER_SSD)
    return {key: value for key, value in found.items() if key.endswith("_s")}


def _plain_copy_s(path: Path, num_bytes: int) -> float:
    """Read a file whose pages are on disk alone, 4 MiB at a time, into memory that is there already."""
    target = np.ones(num_bytes, dtype=np.uint8)
    path.write_bytes(np.random.default_rng(1).bytes(num_bytes))
    buffer = bytearray(4 * 2**20)
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    started_s = time.perf_counter()
    offset = 0
    while size := os.readv(file, [buffer]):
        target[offset : offset + size] = np.frombuffer(buffer, dtype=np.uint8)[:size]
        offset += size
    elapsed_s = time.perf_counter() - started_s
    os.close(file)
    return elapsed_s


async def _gaps(stack: Stack) -> dict[str, float]:
    """Gaps between the tokens of one stream: alone, beside restores, beside writes; in turns, in one run.

    "hits" are the same requests as those that restore, served from memory: what they cost by themselves.
    """
    rng = random.Random(7)
    gaps: dict[str, list[float]] = {"alone": [], "hits": [], "restores": [], "writes": []}
    async with serving_stack(stack):
        stored = [_ids(rng, 2_048) for _ in range(3)]
        for ids in stored:
            await stack.engine.generate(ids, 1, "stored")
        await stack.settled()

        async def restores(stop: asyncio.Event) -> None:
            while not stop.is_set():
                await stack.flush("stored", pb.TIER_VRAM)
                await stack.engine.generate(rng.choice(stored), 1, "stored", persist=False)

        async def hits(stop: asyncio.Event) -> None:
            while not stop.is_set():
                await stack.engine.generate(rng.choice(stored), 1, "stored", persist=False)
                # As often as restores come to their end.
                await asyncio.sleep(0.5)

        async def writes(stop: asyncio.Event) -> None:
            # Resident state under new names: written without anything to compute first.
            number = 0
            while not stop.is_set():
                number += 1
                await stack.engine.generate([*stored[0], *_ids(rng, 2)], 1, "stored", conversation_key=str(number))
                await stack.settled_writes()

        async def alone(stop: asyncio.Event) -> None:
            await stop.wait()

        for _ in range(3):
            for name, beside in (("alone", alone), ("hits", hits), ("restores", restores), ("writes", writes)):
                stop = asyncio.Event()
                task = asyncio.create_task(beside(stop))
                gaps[name] += await _stream_gaps(stack, _ids(rng, 200))
                stop.set()
                await task
    p99 = {name: float(np.percentile(values, 99)) for name, values in gaps.items()}
    median = {name: statistics.median(values) for name, values in gaps.items()}
    return {
        "token_gap_p99_ratio_restores": p99["restores"] / p99["alone"],
        "token_gap_p99_ratio_writes": p99["writes"] / p99["alone"],
        "token_gap_p99_ratio_hits": p99["hits"] / p99["alone"],
        "token_gap_median_ratio_restores": median["restores"] / median["alone"],
        "token_gap_median_ratio_writes": median["writes"] / median["alone"],
        "token_gap_p99_ms_alone": 1e3 * p99["alone"],
    }


async def _stream_gaps(stack: Stack, ids: list[int]) -> list[float]:
    times: list[float] = []
    async for message in stack.engine.start(ids, 100, "stream", persist=False):
        if message.WhichOneof("event") == "tokens":
            times.append(time.perf_counter())
    # The first gap is the end of the prefill.
    return [after - before for before, after in itertools.pairwise(times[1:])]


async def _slow(folder: Path) -> dict[str, float]:
    """Four conversations come back at once, and the link to the store is slow: seconds until all have begun."""
    rng = random.Random(11)
    *prompts, taught = (_ids(rng, 1_024) for _ in range(5))
    seconds: dict[str, float] = {}
    for restore in ("always", "cost"):
        stack = Stack(folder, resolve(_MODEL), engine_flags=("--restore", restore, "--restore-timeout-s", "600"))
        if restore == "always":
            async with serving_stack(stack):
                for ids in [*prompts, taught]:
                    await stack.engine.generate(ids, 1)
                await stack.settled()
        stack.bytes_per_s = 5e6
        async with serving_stack(stack):
            # What computing costs is learned from any prompt, what the link carries from the first restore.
            await stack.engine.generate(_ids(rng, 1_024), 1, persist=False)
            await stack.engine.generate([*taught, *_ids(rng, 8)], 1, persist=False)
            started_s = time.perf_counter()
            await asyncio.gather(*(stack.engine.generate([*ids, *_ids(rng, 8)], 1, persist=False) for ids in prompts))
            seconds[restore] = time.perf_counter() - started_s
    return {
        "always_over_cost_on_a_slow_store": seconds["always"] / seconds["cost"],
        "slow_store_always_s": seconds["always"],
        "slow_store_cost_s": seconds["cost"],
    }


async def _session(folder: Path) -> float:
    """Bytes in the store after a session in which every turn is stored, over the state of its last turn."""
    model = write_tiny_engine_model(folder / "model", max_position_embeddings=131_072)
    rng = random.Random(3)
    stack = Stack(folder, model, vram_bytes=2**27)
    async with serving_stack(stack):
        ids = [rng.randrange(3, 500) for _ in range(_STATIC_TOKENS)]
        for _ in range(_NUM_TURNS):
            ids += [rng.randrange(3, 500) for _ in range(_TURN_TOKENS)]
            ids += (await stack.engine.generate(ids, _ANSWER_TOKENS, "session")).ids
            await stack.settled()
        stored = await stack.stored_bytes()
    return stored / (len(ids) * stack.bytes_per_token)


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(100, 48_000) for _ in range(count)]


if __name__ == "__main__":
    main()
