"""What bench/engine.py and bench/interleaved.py ask: our engine, another server, or transformers. All take ids.

A peer is any server with OpenAI's streaming /v1/completions that takes ids as a prompt. Of two that were compared:

vLLM on CPU: ``vllm serve MODEL --dtype float32 --enable-prefix-caching``, OMP_NUM_THREADS for its threads,
VLLM_CPU_OMP_THREADS_BIND=nobind, VLLM_CPU_KVCACHE_SPACE=4 (GiB), or ``--num-gpu-blocks-override N`` for a small pool.

llama.cpp: ``llama-server -m GGUF --threads N --parallel 8 --ctx-size 54272``, for each of 8 slots 6,784 tokens; with
``--cache-ram MIB`` it keeps prompts of other sessions in the host's memory.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, cast

import httpx
import torch
import transformers
from transformers.utils import logging as transformers_logging

from bench.stack import Stack

_TIMEOUT_S = 900.0
_PEER_REST_S = 1.5

Prompt = list[int]
NewIds = Callable[[int], Prompt]
"""So many random ids."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One request: when it was sent, and when how many tokens came."""

    sent_s: float
    arrivals: tuple[tuple[float, float], ...]

    @property
    def first_s(self) -> float:
        """Seconds to the first token."""
        return self.arrivals[0][0] - self.sent_s

    @property
    def all_s(self) -> float:
        """Seconds to the last one."""
        return self.arrivals[-1][0] - self.sent_s


class Server(Protocol):
    async def run(self, prompts: list[Prompt], max_tokens: int) -> list[Timed]:
        """Answer all at once, greedily, with exactly ``max_tokens`` each."""
        ...

    async def settled(self) -> None:
        """Wait until nothing is left to do of what was asked."""
        ...


@dataclass(frozen=True, slots=True)
class Ours:
    """The engine; without its store unless states are kept."""

    stack: Stack
    keeps: bool = False

    async def run(self, prompts: list[Prompt], max_tokens: int) -> list[Timed]:
        return await asyncio.gather(*(self._run(prompt, max_tokens) for prompt in prompts))

    async def _run(self, prompt: Prompt, max_tokens: int) -> Timed:
        sent_s, arrivals = time.perf_counter(), list[tuple[float, float]]()
        # Prompts that begin alike are one conversation.
        key = str(prompt[:8])
        async for message in self.stack.engine.start(prompt, max_tokens, conversation_key=key, persist=self.keeps):
            if message.WhichOneof("event") == "tokens":
                arrivals.append((time.perf_counter(), len(message.tokens.ids)))
        if sum(count for _, count in arrivals) != max_tokens:
            raise RuntimeError(f"the engine ended an answer before its {max_tokens} tokens")
        return Timed(sent_s, tuple(arrivals))

    async def settled(self) -> None:
        await self.stack.settled()


@dataclass(frozen=True, slots=True)
class Peer:
    """A server with OpenAI's completions.

    Servers merge tokens into one event, and hold back half a character: an answer's tokens count evenly for its events.
    """

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
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
        sent_s, times, only_ends, num_tokens = time.perf_counter(), list[float](), False, 0
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
                event = json.loads(line.removeprefix("data: "))
                if usage := event.get("usage"):
                    num_tokens = usage["completion_tokens"]
                choices = event.get("choices")
                if choices:
                    times.append(time.perf_counter())
                    only_ends = not choices[0].get("text") and choices[0].get("finish_reason") is not None
        # The text of a token may be empty: an event that only ends is a token if it is the only one.
        if only_ends and len(times) > 1:
            times.pop()
        if num_tokens != max_tokens:
            raise RuntimeError(f"{self.url} ended an answer after {num_tokens} of {max_tokens} tokens")
        return Timed(sent_s, tuple((at, num_tokens / len(times)) for at in times))

    async def settled(self) -> None:
        """Nothing tells. vLLM's worker keeps a core busy for a second after its last request, waiting for the next."""
        await asyncio.sleep(_PEER_REST_S)


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
        sent_s, arrivals = time.perf_counter(), list[tuple[float, float]]()
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

    async def settled(self) -> None:
        """It is, once it has answered."""


class TransformersBatch:
    """Continuous batching of transformers in fp32 (``generate_batch``), which does not say when which token came.

    Sizes are given, since it finds its memory only on accelerators or with psutil. Without flash attention a step's
    mask is over all its tokens and all that is cached, so steps are smaller than its 8,192 tokens.
    """

    STEP_TOKENS: Final = 512
    PAGE_TOKENS: Final = 256

    def __init__(self, model_dir: Path) -> None:
        transformers_logging.disable_progress_bar()
        factory = cast(Any, transformers.AutoModelForCausalLM)
        self._model = factory.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="sdpa").eval()

    async def run(self, prompts: list[Prompt], max_tokens: int) -> list[Timed]:
        return await asyncio.to_thread(self._run, prompts, max_tokens)

    def _run(self, prompts: list[Prompt], max_tokens: int) -> list[Timed]:
        # -1: no token ends an answer.
        greedy = transformers.GenerationConfig(
            max_new_tokens=max_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        sizes = transformers.ContinuousBatchingConfig(
            page_size=self.PAGE_TOKENS,
            num_blocks=sum((len(prompt) + max_tokens) // self.PAGE_TOKENS + 2 for prompt in prompts),
            max_batch_tokens=self.STEP_TOKENS,
        )
        sent_s = time.perf_counter()
        answers: dict[str, Any] = self._model.generate_batch(
            inputs=prompts, generation_config=greedy, continuous_batching_config=sizes
        )
        timed = Timed(sent_s, ((time.perf_counter(), max_tokens),))
        # It logs what fails, and returns the rest.
        if [len(answer.generated_tokens) for answer in answers.values()] != [max_tokens] * len(prompts):
            raise RuntimeError(f"transformers ended an answer before its {max_tokens} tokens")
        return [timed for _ in prompts]

    async def settled(self) -> None:
        """It is, once it has answered."""


async def connect(url: str) -> Peer:
    """The first model of the server there. Raises httpx.HTTPError."""
    async with httpx.AsyncClient(timeout=_TIMEOUT_S) as client:
        models = (await client.get(f"{url}/v1/models")).raise_for_status().json()
    return Peer(url.rstrip("/"), models["data"][0]["id"])


def random_ids(rng: random.Random, count: int) -> Prompt:
    """Ordinary tokens of SmolLM2's vocabulary."""
    return [rng.randrange(1_000, 48_000) for _ in range(count)]


def compared(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Of what was measured of ours and of the peer in the same rounds: medians, and the median of the ratios."""
    return {
        "ours": round(statistics.median(ours for ours, _ in pairs), 4),
        "peer": round(statistics.median(peer for _, peer in pairs), 4),
        "ratio": round(statistics.median(ours / peer for ours, peer in pairs), 3),
    }
