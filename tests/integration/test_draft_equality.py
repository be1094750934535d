"""With and without drafts the default model's tokens are the same, greedy and seeded, and a copy takes few steps."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from services.engine.blocks import BlockPool
from services.engine.cache_manager import CacheManager
from services.engine.prefix_tree import PrefixTree
from services.engine.request import Request, SamplingParams
from services.engine.runner import run, work_of
from services.engine.runtime import PagedRuntime, load_model
from services.engine.scheduler import EndRules, Scheduler
from services.engine.sequence import Sequence

MAX_TOKENS = 120 if os.environ.get("FENCEPOST_SOAK") else 24
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0, max_tokens=MAX_TOKENS),
    "seeded": SamplingParams(temperature=0.7, top_p=0.95, seed=3, frequency_penalty=0.1, max_tokens=MAX_TOKENS),
}
_CODE = """def parse_config(path: str) -> dict:
    with open(path) as f:
        data = json.load(f)
    data.setdefault("timeout", 30)
    return data
"""
QUESTIONS = {
    "echo": f"Repeat the following file exactly, with no changes:\n```python\n{_CODE}```",
    "edit": f"Change the default timeout to 60 and print the whole file again:\n```python\n{_CODE}```",
    "json": 'Return the same JSON again: {"tool": "read_file", "arguments": {"path": "engine.py", "end_line": 42}}',
    "prose": "Write two sentences about the sea.",
}


@dataclass(frozen=True)
class Model:
    runtime: PagedRuntime
    tokenizer: Tokenizer

    def prompt(self, question: str, answer: str = "") -> bytes:
        text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}"
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, dtype="<i4").tobytes()

    def play(self, prompts: list[bytes], sampling: SamplingParams, *, drafts: bool) -> tuple[list[Sequence], int]:
        """All prompts at once; their sequences, and the steps that took."""
        runtime = self.runtime
        pool = BlockPool(runtime.num_blocks)
        tree = PrefixTree(runtime.block_tokens, clock=time.monotonic, free_block=lambda block: pool.put((block,)))
        rules = EndRules(runtime.eos_token_ids, runtime.context_tokens, lambda token_id: b"")
        scheduler = Scheduler(CacheManager(pool, tree), rules, step_tokens=512, max_running=8, drafts=drafts)
        sequences = [
            Sequence.of(Request(cache_scope="a", token_ids=ids, sampling=sampling), tree.root("a"), MAX_TOKENS)
            for ids in prompts
        ]
        for sequence in sequences:
            scheduler.add(sequence)
        num_steps = 0
        while scheduler.waiting or scheduler.running:
            plan = scheduler.schedule()
            scheduler.commit(plan, run(runtime, work_of(plan)))
            num_steps += 1
        assert pool.num_free + tree.num_blocks == pool.num_blocks
        tree.check_integrity()
        return sequences, num_steps


@pytest.fixture(scope="module")
def model(smollm2_dir: Path) -> Model:
    runtime = PagedRuntime(load_model(smollm2_dir), num_blocks=160, block_tokens=16)
    return Model(runtime, Tokenizer.from_file(str(smollm2_dir / "tokenizer.json")))


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_four_kinds_of_answers_at_once_are_those_without_drafts(model: Model, sampling: SamplingParams):
    prompts = [model.prompt(question) for question in QUESTIONS.values()]
    drafted, steps = model.play(prompts, sampling, drafts=True)
    plain, plain_steps = model.play(prompts, sampling, drafts=False)
    assert [s.token_ids for s in drafted] == [s.token_ids for s in plain]
    assert [s.finish_reason for s in drafted] == [s.finish_reason for s in plain]
    assert sum(s.num_accepted for s in drafted) > 0 == sum(s.num_drafted for s in plain)
    assert steps <= plain_steps


def test_a_copy_alone_takes_few_steps(model: Model):
    prompt = model.prompt(QUESTIONS["echo"], "```python\n")
    (drafted,), steps = model.play([prompt], SAMPLINGS["greedy"], drafts=True)
    (plain,), plain_steps = model.play([prompt], SAMPLINGS["greedy"], drafts=False)
    assert drafted.token_ids == plain.token_ids
    assert plain_steps == plain.num_output
    assert steps <= plain_steps // 2
    assert steps + drafted.num_accepted == drafted.num_output
