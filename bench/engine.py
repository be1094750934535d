"""The engine beside another server: first tokens, decode, hits and a batch, on the same ids in the same minutes.

Ours is an engine process over gRPC (bench/stack.py). The peer is any server with OpenAI's streaming /v1/completions
that takes ids as a prompt (vLLM, llama.cpp); without one, plain transformers in fp32 in this process. In every round
each workload runs on both, in turns; prompts are random ids, new in each round, so that only what is meant to hit does.

    python -m bench.engine [--json] [--peer URL] [--rounds 3] [--only decode_1 ttft_512] [--weights auto] [--threads N]

The last line is one JSON object: by workload the medians of ours and peer, and the median of their ratios by round.
ttft_*, hit_*: seconds to the first token of a prompt, and of it with 64 more tokens behind. decode_S_C: tokens a second
of S streams together behind contexts of C tokens, from the last stream's first token to the first one's last.
batch_8: tokens a second of 8 requests of 512 tokens that answer with 128, from the first request to the last token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import httpx
import torch
import transformers
from transformers.utils import logging as transformers_logging

from bench.stack import Stack, serving_stack
from services.models.store import resolve

_MODEL = "smollm2-135m-instruct"
_SIZES = {"64": 64, "512": 512, "1k": 1_024, "2k": 2_048, "4k": 4_096, "6k": 6_144}
_NEW_TOKENS = 64
_DECODED_TOKENS = 48
_STATE_BYTES = 3 * 2**30
_TIMEOUT_S = 900.0

Prompt = list[int]


@dataclass(frozen=True, slots=True)
class Timed:
    """One request: when it was sent, and when how many tokens came."""

    sent_s: float
    arrivals: tuple[tuple[float, int], ...]


class Server(Protocol):
    async def run(self, prompts: list[Prompt], max_tokens: int) -> list[Timed]:
        """Answer all at once, greedily, with exactly ``max_tokens`` each."""
        ...


@dataclass(frozen=True, slots=True)
class Ours:
    """The engine, without its store."""

    stack: Stack

    async def run(self, prompts: list[Prompt], max_tokens: int) -> list[Timed]:
        timed = await asyncio.gather(*(self._run(prompt, max_tokens) for prompt in prompts))
        await self.stack.settled()
        return timed

    async def _run(self, prompt: Prompt, max_tokens: int) -> Timed:
        sent_s, arrivals = time.perf_counter(), list[tuple[float, int]]()
        async for message in self.stack.engine.start(prompt, max_tokens, persist=False):
            if message.WhichOneof("event") == "tokens":
                arrivals.append((time.perf_counter(), len(message.tokens.ids)))
        return Timed(sent_s, tuple(arrivals))


@dataclass(frozen=True, slots=True)
class Peer:
    """A server with OpenAI's completions. One event is taken for one token."""

    url: str
    model: str

    async def run(self, prompts: list[Prompt], max_tokens: int) -> list[Timed]:
        return await asyncio.gather(*(self._run(prompt, max_tokens) for prompt in prompts))

    async def _run(self, prompt: Prompt, max_tokens: int) -> Timed:
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
        }
        sent_s, arrivals = time.perf_counter(), list[tuple[float, int]]()
        # A connection each: some servers keep one busy until its stream has ended.
        async with (
            httpx.AsyncClient(timeout=_TIMEOUT_S) as client,
            client.stream("POST", f"{self.url}/v1/completions", json=body) as response,
        ):
            if response.is_error:
                raise RuntimeError(f"{self.url}: {response.status_code} {(await response.aread()).decode()[:500]}")
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                choices = json.loads(line.removeprefix("data: ")).get("choices")
                # The text of a token may be empty, as of half a character; an event that only ends is none.
                if choices and (choices[0].get("text") or choices[0].get("finish_reason") is None):
                    arrivals.append((time.perf_counter(), 1))
        return Timed(sent_s, tuple(arrivals[:max_tokens]))


class Transformers:
    """Plain modules of transformers in fp32: a yardstick where no peer is named. Prompts of a call are equally long."""

    def __init__(self, model_dir: Path) -> None:
        transformers_logging.disable_progress_bar()
        factory = cast(Any, transformers.AutoModelForCausalLM)
        self._model = factory.from_pretrained(model_dir, dtype=torch.float32).eval()
        self._state: Any = None
        self._seen: list[Prompt] = []

    async def run(self, prompts: list[Prompt], max_tokens: int) -> list[Timed]:
        return await asyncio.to_thread(self._run, prompts, max_tokens)

    def _run(self, prompts: list[Prompt], max_tokens: int) -> list[Timed]:
        sent_s, arrivals = time.perf_counter(), list[tuple[float, int]]()
        num_seen = len(self._seen[0]) if self._seen else 0
        if not self._seen or [prompt[:num_seen] for prompt in prompts] != self._seen:
            self._state, num_seen = transformers.DynamicCache(), 0
        fed = torch.tensor([prompt[num_seen:] for prompt in prompts])
        with torch.inference_mode():
            for _ in range(max_tokens):
                logits = self._model(fed, cache=self._state, use_cache=True, logits_to_keep=1).logits
                fed = logits[:, -1:].argmax(-1)
                arrivals.append((time.perf_counter(), 1))
        # The state of an answer's tokens is in the way of a prompt that does not go on from them.
        self._seen = prompts if max_tokens == 1 else []
        return [Timed(sent_s, tuple(arrivals)) for _ in prompts]


Workload = Callable[[Server, Callable[[int], Prompt]], Coroutine[Any, Any, dict[str, float]]]


def _first_token(size: str) -> Workload:
    async def measure(server: Server, ids: Callable[[int], Prompt]) -> dict[str, float]:
        prompt = ids(_SIZES[size])
        (cold,) = await server.run([prompt], 1)
        (hit,) = await server.run([prompt + ids(_NEW_TOKENS)], 1)
        return {f"ttft_{size}": cold.arrivals[0][0] - cold.sent_s, f"hit_{size}": hit.arrivals[0][0] - hit.sent_s}

    return measure


def _decode(num_streams: int, size: str) -> Workload:
    async def measure(server: Server, ids: Callable[[int], Prompt]) -> dict[str, float]:
        timed = await server.run([ids(_SIZES[size]) for _ in range(num_streams)], _DECODED_TOKENS)
        first = max(each.arrivals[0][0] for each in timed)
        last = min(each.arrivals[-1][0] for each in timed)
        if last <= first:
            raise RuntimeError(f"{num_streams} streams behind {size} tokens never ran together")
        num_tokens = sum(count for each in timed for at, count in each.arrivals if first < at <= last)
        return {f"decode_{num_streams}_{size}": num_tokens / (last - first)}

    return measure


async def _batch(server: Server, ids: Callable[[int], Prompt]) -> dict[str, float]:
    timed = await server.run([ids(512) for _ in range(8)], 128)
    seconds = max(each.arrivals[-1][0] for each in timed) - min(each.sent_s for each in timed)
    return {"batch_8": sum(count for each in timed for _, count in each.arrivals) / seconds}


_WORKLOADS: dict[str, Workload] = {
    **{f"ttft_{size}": _first_token(size) for size in ("512", "2k", "6k")},
    **{f"decode_{streams}_{size}": _decode(streams, size) for streams in (1, 8) for size in ("64", "1k", "4k")},
    "batch_8": _batch,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="The engine beside another server.")
    parser.add_argument("--json", action="store_true", help="print only the last line")
    parser.add_argument("--peer", metavar="URL", help="a server with /v1/completions; without: plain transformers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=sorted(_WORKLOADS), default=list(_WORKLOADS), metavar="WORKLOAD")
    parser.add_argument("--weights", default="auto", help="the engine's --weights")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    print(json.dumps(asyncio.run(_measure(options))))


async def _measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    found: dict[str, list[tuple[float, float]]] = {}
    async with _servers(options) as (ours, peer):
        for server in (ours, peer):
            await server.run([_ids(random.Random(0), 64)], 4)
        for seed in range(options.rounds):
            for name in options.only:
                # In changing order, so that neither always has what the other left of the processor's caches.
                results: dict[Server, dict[str, float]] = {}
                for server in (ours, peer) if seed % 2 else (peer, ours):
                    rng = random.Random(f"{seed} {name}")
                    results[server] = await _WORKLOADS[name](server, lambda count, rng=rng: _ids(rng, count))
                for key, value in results[ours].items():
                    found.setdefault(key, []).append((value, results[peer][key]))
                    if not options.json:
                        print(f"{key}: {value:.3f} against {results[peer][key]:.3f}", flush=True)
    return {
        key: {
            "ours": round(statistics.median(ours for ours, _ in pairs), 4),
            "peer": round(statistics.median(peer for _, peer in pairs), 4),
            "ratio": round(statistics.median(ours / peer for ours, peer in pairs), 3),
        }
        for key, pairs in found.items()
    }


@asynccontextmanager
async def _servers(options: argparse.Namespace) -> AsyncGenerator[tuple[Server, Server]]:
    model_dir = resolve(_MODEL)
    torch.set_num_threads(options.threads)
    flags = ("--threads", str(options.threads), "--weights", options.weights)
    with tempfile.TemporaryDirectory() as folder:
        async with serving_stack(Stack(Path(folder), model_dir, vram_bytes=_STATE_BYTES, engine_flags=flags)) as stack:
            yield Ours(stack), await _peer(options.peer) if options.peer else Transformers(model_dir)


async def _peer(url: str) -> Peer:
    async with httpx.AsyncClient(timeout=_TIMEOUT_S) as client:
        models = (await client.get(f"{url}/v1/models")).raise_for_status().json()
    return Peer(url.rstrip("/"), models["data"][0]["id"])


def _ids(rng: random.Random, count: int) -> Prompt:
    return [rng.randrange(1_000, 48_000) for _ in range(count)]


if __name__ == "__main__":
    main()
