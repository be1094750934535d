"""The engine beside another server: first tokens, decode, hits and a batch, on the same ids in the same minutes.

Ours is an engine process over gRPC (bench/stack.py), without drafts and loop guard, which the peers have not. The peer
is any server of bench/servers.py; without one, plain transformers in fp32 in this process. `transformers-batch` is its
continuous batching, which answers only what needs no times of single tokens: batch_8. In every round each workload
runs on both, in turns; prompts are random ids, new in each round, so that only what is meant to hit does.

    python -m bench.engine [--json] [--peer URL|transformers-batch] [--rounds 3] [--only decode_1_64 ttft_512]
        [--weights auto] [--threads N]

The last line is one JSON object: by workload the medians of ours and peer, and the median of their ratios by round.
ttft_*, hit_*: seconds to the first token of a prompt, and of it with 64 more tokens behind. decode_S_C: tokens a second
of S streams together behind contexts of C tokens, from the last stream's first token to the first one's last.
batch_8: tokens a second of 8 requests of 512 tokens that answer with 128, from the first request to the last token.
Left out unless named, as it takes minutes: decode_8_4k. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import random
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch

from bench.servers import NewIds, Ours, Server, Transformers, TransformersBatch, compared, connect, random_ids
from bench.stack import Stack, serving_stack
from services.models.store import resolve

_MODEL = "smollm2-135m-instruct"
_SIZES = {"64": 64, "512": 512, "1k": 1_024, "2k": 2_048, "4k": 4_096, "6k": 6_144}
_NEW_TOKENS = 64
_DECODED_TOKENS = 48
_STATE_BYTES = 3 * 2**30
_FLAGS = ("--drafts", "off", "--loop-guard", "off")

Workload = Callable[[Server, NewIds], Coroutine[Any, Any, dict[str, float]]]


def _first_token(size: str) -> Workload:
    async def measure(server: Server, ids: NewIds) -> dict[str, float]:
        prompt = ids(_SIZES[size])
        (cold,) = await server.run([prompt], 1)
        await server.settled()
        (hit,) = await server.run([prompt + ids(_NEW_TOKENS)], 1)
        return {f"ttft_{size}": cold.first_s, f"hit_{size}": hit.first_s}

    return measure


def _decode(num_streams: int, size: str) -> Workload:
    async def measure(server: Server, ids: NewIds) -> dict[str, float]:
        timed = await server.run([ids(_SIZES[size]) for _ in range(num_streams)], _DECODED_TOKENS)
        first = max(each.arrivals[0][0] for each in timed)
        last = min(each.arrivals[-1][0] for each in timed)
        if last <= first:
            raise RuntimeError(f"{num_streams} streams behind {size} tokens never ran together")
        num_tokens = sum(count for each in timed for at, count in each.arrivals if first < at <= last)
        return {f"decode_{num_streams}_{size}": num_tokens / (last - first)}

    return measure


async def _batch(server: Server, ids: NewIds) -> dict[str, float]:
    timed = await server.run([ids(512) for _ in range(8)], 128)
    seconds = max(each.arrivals[-1][0] for each in timed) - min(each.sent_s for each in timed)
    return {"batch_8": sum(count for each in timed for _, count in each.arrivals) / seconds}


_WORKLOADS: dict[str, Workload] = {
    **{f"ttft_{size}": _first_token(size) for size in ("512", "2k", "6k")},
    **{f"decode_{streams}_{size}": _decode(streams, size) for streams in (1, 8) for size in ("64", "1k", "4k")},
    "batch_8": _batch,
}
_ON_REQUEST = ("decode_8_4k",)
_TRANSFORMERS_BATCH = "transformers-batch"
_PEER_HELP = f"a server with /v1/completions, or {_TRANSFORMERS_BATCH}; without: plain transformers"
_UNTIMED = {"batch_8"}
"""Workloads that ask for no times but the whole's."""


def main() -> None:
    parser = argparse.ArgumentParser(description="The engine beside another server.")
    parser.add_argument("--json", action="store_true", help="print only the last line")
    parser.add_argument("--peer", metavar="URL", help=_PEER_HELP)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=sorted(_WORKLOADS), metavar="WORKLOAD")
    parser.add_argument("--weights", default="auto", help="the engine's --weights")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    options.only = options.only or [name for name in _WORKLOADS if name not in _ON_REQUEST]
    if options.peer == _TRANSFORMERS_BATCH and (timed := [name for name in options.only if name not in _UNTIMED]):
        parser.error(
            f"--peer {_TRANSFORMERS_BATCH} tells no times of single tokens, which {', '.join(timed)} need; "
            f"choose --only {' '.join(sorted(_UNTIMED))}"
        )
    print(json.dumps(asyncio.run(_measure(options))))


async def _measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    found: dict[str, list[tuple[float, float]]] = {}
    # A peer may remember the ids of an earlier run.
    run_id = secrets.token_hex(8)
    async with _servers(options) as servers:
        for server in servers.values():
            await server.run([random_ids(random.Random(run_id), 64)], 4)
        for round_number in range(options.rounds):
            for name in options.only:
                results: dict[str, dict[str, float]] = {}
                # In changing order, so that neither always has what the other left of the processor's caches.
                for who in ("ours", "peer") if round_number % 2 else ("peer", "ours"):
                    rng = random.Random(f"{run_id} {round_number} {name}")
                    began_s = time.perf_counter()
                    results[who] = await _WORKLOADS[name](servers[who], functools.partial(random_ids, rng))
                    await servers[who].settled()
                    took_s = time.perf_counter() - began_s
                    progress = f"round {round_number + 1} of {options.rounds}: {name}, {who}, {took_s:.1f} s"
                    print(progress, file=sys.stderr, flush=True)
                for key, value in results["ours"].items():
                    found.setdefault(key, []).append((value, results["peer"][key]))
                    if not options.json:
                        print(f"{key}: {value:.3f} against {results['peer'][key]:.3f}", flush=True)
    return {key: compared(pairs) for key, pairs in found.items()}


@asynccontextmanager
async def _servers(options: argparse.Namespace) -> AsyncGenerator[dict[str, Server]]:
    model_dir = resolve(_MODEL)
    torch.set_num_threads(options.threads)
    flags = (*_FLAGS, "--threads", str(options.threads), "--weights", options.weights)
    with tempfile.TemporaryDirectory() as folder:
        async with serving_stack(Stack(Path(folder), model_dir, vram_bytes=_STATE_BYTES, engine_flags=flags)) as stack:
            yield {"ours": Ours(stack), "peer": await _peer(options.peer, model_dir)}


async def _peer(named: str | None, model_dir: Path) -> Server:
    if named == _TRANSFORMERS_BATCH:
        return TransformersBatch(model_dir)
    return await connect(named) if named else Transformers(model_dir)


if __name__ == "__main__":
    main()
