"""The default model under a scheduler, without services: prompts in, sequences out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from services.engine.blocks import BlockPool
from services.engine.cache_manager import CacheManager
from services.engine.end_rules import EndRules
from services.engine.prefix_tree import PrefixTree
from services.engine.request import Request, SamplingParams
from services.engine.runner import run, work_of
from services.engine.runtime import PagedRuntime, load_model
from services.engine.scheduler import Scheduler
from services.engine.sequence import Sequence

_CODE = """def parse_config(path: str) -> dict:
    with open(path) as f:
        data = json.load(f)
    data.setdefault("timeout", 30)
    return data
"""
_JSON = '{"tool": "read_file", "arguments": {"path": "services/engine.py", "start_line": 10, "end_line": 42}}'
QUESTIONS = {
    "echo": (f"Repeat the following file exactly, with no changes:\n```python\n{_CODE}```", "```python\n"),
    "edit": (f"Change the default timeout to 60 and print the whole file again:\n```python\n{_CODE}```", "```python\n"),
    "json": (f"Return the same JSON again: {_JSON}", "{"),
    "prose": ("Write a long story about the sea and an old fisherman.", ""),
}
"""And how their answers begin. The first repeat much of the question, the last nothing."""
MAX_PROMPTS = 8


@dataclass(frozen=True)
class Played:
    """``seconds`` of the processor went into the steps behind the one that gave the last prompt its first token."""

    sequences: list[Sequence]
    num_steps: int
    seconds: float
    num_decoded: int


class StepLoop:
    """One model."""

    def __init__(self, model_dir: Path, threads: int | None = None) -> None:
        self._runtime = PagedRuntime(load_model(model_dir, num_threads=threads), num_blocks=320, block_tokens=16)
        self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))

    def prompt(self, question: str, answer: str) -> bytes:
        """Of a question, and of how the answer begins."""
        text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}"
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype="<i4").tobytes()

    def play(self, prompts: list[bytes], sampling: SamplingParams, *, drafts: bool) -> Played:
        """Up to MAX_PROMPTS at once, to their ends, which ``sampling.max_tokens`` bounds."""
        runtime = self._runtime
        pool = BlockPool(runtime.num_blocks)
        tree = PrefixTree(runtime.block_tokens, clock=time.monotonic, free_block=lambda block: pool.put((block,)))
        rules = EndRules(runtime.eos_token_ids, runtime.context_tokens, lambda token_id: b"")
        scheduler = Scheduler(CacheManager(pool, tree), rules, step_tokens=512, max_running=MAX_PROMPTS, drafts=drafts)
        assert sampling.max_tokens is not None
        sequences = [
            Sequence.of(Request(cache_scope="a", token_ids=ids, sampling=sampling), tree.root("a"), sampling.max_tokens)
            for ids in prompts
        ]
        for sequence in sequences:
            scheduler.add(sequence)
        num_steps, seconds, first = 0, 0.0, 0
        while scheduler.waiting or scheduler.running:
            is_decoding = all(sequence.num_output for sequence in sequences)
            started_s = time.process_time()
            plan = scheduler.schedule()
            scheduler.commit(plan, run(runtime, work_of(plan)))
            num_steps += 1
            if is_decoding:
                seconds += time.process_time() - started_s
            else:
                first = sum(sequence.num_output for sequence in sequences)
        assert pool.num_free + tree.num_blocks == pool.num_blocks
        tree.check_integrity()
        return Played(sequences, num_steps, seconds, sum(sequence.num_output for sequence in sequences) - first)
