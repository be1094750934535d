"""What weights in fp16 change of the default model's answers: next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from services.engine.runtime import Batch, PagedRuntime, Row, load_model
from services.engine.runtime.fused import FusedDecoder
from services.engine.runtime.plan import plan_step

_PROMPTS = (
    "What is the capital of France?",
    "Name the largest planet.",
    "Write a haiku about rain.",
    "How do I reverse a list in Python?",
    "Who wrote Hamlet?",
    "Translate 'good morning' into Spanish.",
)
_BLOCK_TOKENS = 16
_BLOCKS_PER_ROW = 8


@pytest.fixture(scope="module")
def runtimes(smollm2_dir: Path) -> Iterator[dict[str, PagedRuntime]]:
    before = torch.get_num_threads()
    yield {
        weights: PagedRuntime(load_model(smollm2_dir, "cpu", 1, weights), num_blocks=64, block_tokens=_BLOCK_TOKENS)
        for weights in ("fp32", "fp16")
    }
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def encode(smollm2_dir: Path) -> Callable[[str], np.ndarray]:
    tokenizer = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    return lambda text: np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)


def _greedy(runtime: PagedRuntime, prompts: list[np.ndarray], num_tokens: int) -> list[list[int]]:
    blocks = [range(i * _BLOCKS_PER_ROW, (i + 1) * _BLOCKS_PER_ROW) for i in range(len(prompts))]
    answers: list[list[int]] = [[] for _ in prompts]
    chunks, starts = prompts, [0] * len(prompts)
    for _ in range(num_tokens):
        rows = (Row(chunk, start, table, True) for chunk, start, table in zip(chunks, starts, blocks, strict=True))
        chosen = runtime.forward(Batch(tuple(rows))).argmax(-1).tolist()
        for answer, token_id in zip(answers, chosen, strict=True):
            answer.append(token_id)
        starts = [start + len(chunk) for start, chunk in zip(starts, chunks, strict=True)]
        chunks = [np.array([token_id], dtype=np.int32) for token_id in chosen]
    return answers


def test_greedy_answers_are_the_same(
    runtimes: dict[str, PagedRuntime], encode: Callable[[str], np.ndarray], smollm2_dir: Path
) -> None:
    prompts = [encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n") for text in _PROMPTS]
    answers = {weights: _greedy(runtime, prompts, 16) for weights, runtime in runtimes.items()}
    assert answers["fp16"] == answers["fp32"]
    tokenizer = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    assert "Paris" in tokenizer.decode(answers["fp16"][0])


def test_a_text_is_as_likely(runtimes: dict[str, PagedRuntime], encode: Callable[[str], np.ndarray]) -> None:
    ids = encode(topics["assert"] + topics["with"])[:500]
    row = Row(ids[:-1], 0, range(64), True)
    log_likelihood: dict[str, float] = {}
    likeliest: dict[str, torch.Tensor] = {}
    for weights, runtime in runtimes.items():
        plan = plan_step(Batch((row,)), _BLOCK_TOKENS, torch.device("cpu"))
        network = runtime._model.network
        assert isinstance(network, FusedDecoder)
        logits = network.logits(replace(plan, logits_at=torch.arange(len(ids) - 1)), runtime._pools, None)
        targets = torch.as_tensor(ids[1:].astype(np.int64)).unsqueeze(1)
        log_likelihood[weights] = logits.log_softmax(-1).gather(1, targets).mean().item()
        likeliest[weights] = logits.argmax(-1)
    assert log_likelihood["fp32"] == pytest.approx(-2.7947, abs=1e-3)
    assert log_likelihood["fp16"] == pytest.approx(log_likelihood["fp32"], abs=1e-4)
    assert (likeliest["fp16"] == likeliest["fp32"]).float().mean() > 0.99
