"""What a fence adds to a decode step of the default model, 8 rows at once.

One runtime under two schedulers that have half of its blocks each: one plays eight prompts with a fence, the other the
same prompts without, a step of each in turn. Without drafts, so both compute the same rows and as many logits. Only
steps count in which every fence was where the kind of work says. The loop guard watches both, as it does by default.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal as Choice

import numpy as np
from tokenizers import Tokenizer

from bench.fences.agent_tools import TOOLS
from bench.fences.driving import CASES
from bench.fences.programs import Mode
from bench.fences.vocabularies import compiler
from services.engine.blocks import BlockPool
from services.engine.cache_manager import CacheManager
from services.engine.choosing import TokenChooser
from services.engine.end_rules import EndRules
from services.engine.fence.compiled import CompiledFence
from services.engine.fence.machine import Fence, Region
from services.engine.fence.program import Literal, Program, Raw, Sequence, Value
from services.engine.guard.lexicon import Lexicon
from services.engine.guard.loop_guard import LoopGuard
from services.engine.prefix_tree import PrefixTree
from services.engine.request import Request, SamplingParams
from services.engine.runner import run, work_of
from services.engine.runtime import PagedRuntime, load_model
from services.engine.sampling import Sampler
from services.engine.scheduler import Scheduler
from services.engine.sequence import Sequence as EngineSequence
from services.vocabulary import load_vocabulary

NUM_ROWS = 8
_NUM_WARM = 4
_BLOCKS = 320
_QUESTIONS = (
    "Write a long story about the sea and an old fisherman.",
    "Explain in detail how a compiler turns source text into machine code.",
    "Describe the history of the printing press, century by century.",
    "Write down everything that you know about the Alps.",
    "Tell me at length how bread is made.",
    "Describe a long journey by train through a country that you like.",
    "Explain how a bicycle works, part by part.",
    "Write a long letter to a friend about the winter.",
)

Kind = Choice["auto", "raw", "json"]
KINDS: dict[Kind, Region] = {"auto": Region.PROSE, "raw": Region.VALUE, "json": Region.VALUE}
"""Free text that a trigger may end; a raw string; strings in a JSON value."""


@dataclass
class _Side:
    """Eight rows under a scheduler of their own."""

    scheduler: Scheduler
    runtime: PagedRuntime
    sequences: list[EngineSequence]
    fences: list[Fence]

    def step(self) -> tuple[float, float]:
        """Seconds of wall and of processor time."""
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        plan = self.scheduler.schedule()
        self.scheduler.commit(plan, run(self.runtime, work_of(plan)))
        return time.perf_counter() - wall_s, time.process_time() - cpu_s

    @property
    def is_decoding(self) -> bool:
        return all(sequence.num_output for sequence in self.sequences)

    def is_in(self, region: Region) -> bool:
        return all(fence.region is region for fence in self.fences)


class StepCost:
    """One model, loaded once."""

    def __init__(self, model_dir: Path, threads: int = 1) -> None:
        """``threads``: of the forward; those that wait spin, which a busy machine shows as cost."""
        self._runtime = PagedRuntime(load_model(model_dir, num_threads=threads), num_blocks=_BLOCKS, block_tokens=16)
        self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self._lexicon = Lexicon(load_vocabulary(model_dir).token_bytes)
        self._fences = compiler("smollm2", model_dir)
        assert self._fences.tokens.num_ids == self._runtime.vocab_size

    def measure_all(self, num_steps: int) -> dict[str, float]:
        """Medians by kind and way of sampling, and ``step_over_free_8_rows``: the most of them by processor time."""
        found = {
            f"{kind}_{way}": self.measure(kind, temperature, num_steps)
            for kind in KINDS
            for way, temperature in (("greedy", 0.0), ("sampled", 1.0))
        }
        result = {"step_over_free_8_rows": max(one["cpu"] for one in found.values())}
        result |= {f"step_over_free_{name}": one["cpu"] for name, one in found.items()}
        result |= {f"step_over_free_wall_{name}": one["wall"] for name, one in found.items()}
        result["free_step_8_rows_ms"] = min(one["free_ms"] for one in found.values())
        return result

    def measure(self, kind: Kind, temperature: float, num_steps: int) -> dict[str, float]:
        """Medians: a fenced step over the free one beside it, by wall and processor time, and milliseconds of each."""
        compiled = self._compiled(kind)
        free, fenced = self._side(None, temperature, 0), self._side(compiled, temperature, _BLOCKS // 2)
        pairs: list[tuple[tuple[float, float], tuple[float, float]]] = []
        for number in self._until(lambda: len(pairs) >= num_steps + _NUM_WARM):
            counts = free.is_decoding and fenced.is_decoding and fenced.is_in(KINDS[kind])
            first, second = (free, fenced) if number % 2 else (fenced, free)
            took = {id(side): side.step() for side in (first, second)}
            if counts and fenced.is_in(KINDS[kind]):
                pairs.append((took[id(free)], took[id(fenced)]))
        pairs = pairs[_NUM_WARM:]
        free_ms, fenced_ms = (statistics.median(pair[side][0] for pair in pairs) * 1e3 for side in (0, 1))
        wall, cpu = (statistics.median(two[clock] / one[clock] for one, two in pairs) for clock in (0, 1))
        return {"wall": wall, "cpu": cpu, "free_ms": free_ms, "fenced_ms": fenced_ms, "steps": len(pairs)}

    def _until(self, is_done: Callable[[], bool]) -> Iterator[int]:
        room = _BLOCKS // 2 // NUM_ROWS * self._runtime.block_tokens
        for number in range(room - 64):
            if is_done():
                return
            yield number

    def _compiled(self, kind: Kind) -> CompiledFence:
        if kind == "auto":
            case = next(case for case in CASES if case.id == "qwen_xml-text")
            return case.compile(self._fences, TOOLS, Mode.AUTO)
        if kind == "raw":
            raw = Raw("\n</parameter>\n", forbidden=("</parameter><parameter=", "</parameter></function>"))
            return self._fences.compile(
                Program((Sequence((1, 2, 3)), Literal("<parameter=content>\n"), raw, Literal("</function>")))
            )
        strings = {"type": "array", "items": {"type": "string"}, "minItems": 200}
        return self._fences.compile(Program((Value(json.dumps(strings)),)))

    def _side(self, compiled: CompiledFence | None, temperature: float, first_block: int) -> _Side:
        runtime = self._runtime
        pool = BlockPool(first_block + _BLOCKS // 2)
        pool.take(first_block)
        tree = PrefixTree(runtime.block_tokens, clock=time.monotonic, free_block=lambda block: pool.put((block,)))
        rules = EndRules(runtime.eos_token_ids, runtime.context_tokens, lambda token_id: b"")
        scheduler = Scheduler(CacheManager(pool, tree), rules, step_tokens=512, max_running=NUM_ROWS, drafts=False)
        fences: list[Fence] = []

        def new_chooser(request: Request, choice: int) -> TokenChooser:
            fence = None if request.fence is None else Fence(request.fence)
            fences.extend([] if fence is None else [fence])
            sampler = Sampler(request.sampling, request.token_ids, choice)
            return TokenChooser(sampler, LoopGuard(self._lexicon), None, fence)

        sequences: list[EngineSequence] = []
        for number, question in enumerate(_QUESTIONS):
            sampling = SamplingParams(temperature=temperature, seed=number, max_tokens=10_000, ignore_end=True)
            text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            ids = np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype="<i4").tobytes()
            request = Request(cache_scope="a", token_ids=ids, sampling=sampling, fence=compiled)
            sequences.append(EngineSequence.of(request, tree.root("a"), 10_000, new_chooser=new_chooser))
            scheduler.add(sequences[-1])
        return _Side(scheduler, runtime, sequences, fences)
