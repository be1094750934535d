"""Whether a device computes what it must, and how fast: `make device-check`, some minutes on one GPU.

First tiny models go through the scenarios of the runtime's unit tests on the device, against plain transformers in fp32
on the CPU: mixed batches, drafts, forks, restores (bit-equal, and while a step computes). Then one table of rates, of a
random model or that of --model. Without a CUDA device it says so, does both on the CPU, and a small model's rates mean
nothing. Ends with 1 if a check fails. Needs torch, transformers and the tests' folder; no other service, no network.

    python -m bench.device [--json] [--device auto] [--model DIR] [--kinds llama qwen2 qwen3 mistral]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers

from services.engine.runtime import Batch, LoadedModel, PagedRuntime, Row, load_model
from services.engine.runtime.device import find_device
from services.engine.runtime.runs import slot_runs
from services.engine.runtime.sizing import measured_state_bytes
from tests.unit.engine.runtime.scenarios import SCENARIOS, greedy_decode
from tests.unit.engine.runtime.subject import Subject
from tests.unit.engine.runtime.tiny_models import TINY_MODELS, save_tiny

_PAGE_TOKENS = 256
_STEP_TOKENS, _MAX_RUNNING = 512, 16
_FLOAT_TOLERANCE = 2e-3
"""Of logits near ten in fp32: sums are made in another order than on CPU."""
_HALF_TOLERANCE = {"llama": 0.4, "qwen2": 1.7, "qwen3": 0.15, "mistral": 0.4}
"""Four times what transformers' own layers are off when they compute in fp16."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one model on one device. A step's time includes its plan, and the likeliest token's way back.

    state_gib: what an engine would take for state; None on CPU, where that is not measured.
    """

    device: str
    format: str
    attention: str
    state_gib: float | None
    prefill_tokens_per_s: float
    decode_1_tokens_per_s: float
    decode_16_tokens_per_s: float
    restore_gib_per_s: float
    read_gib_per_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description="Whether a device computes what it must, and how fast.")
    parser.add_argument("--json", action="store_true", help="print only the last line")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--model", type=Path, help="model directory for the rates; without: a random model")
    parser.add_argument("--kinds", nargs="+", choices=TINY_MODELS, default=TINY_MODELS, help="tiny models to check")
    options = parser.parse_args()
    device = find_device(options.device)
    say: Callable[[str], None] = (lambda text: None) if options.json else (lambda text: print(text, flush=True))
    if device.type == "cpu":
        say(f"no CUDA device (torch {torch.__version__}): the CPU part only")
    started_s = time.monotonic()
    num_checks, failures = 0, list[str]()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # operators of tiny models lose by being split
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.kinds:
            model_dir = Path(folder) / kind
            save_tiny(kind, model_dir)
            for weights in ("fp32", "fp16"):
                for name, problem in _checks(model_dir, kind, weights, device):
                    num_checks += 1
                    say(f"{'ok  ' if problem is None else 'FAIL'} {kind} {weights} {name} {problem or ''}".rstrip())
                    failures += [] if problem is None else [f"{kind} {weights} {name}: {problem}"]
        torch.set_num_threads(num_threads)
        model_dir = options.model or Path(folder) / "random"
        if options.model is None:
            _save_random(model_dir, is_small=device.type == "cpu")
        rates = _rates(load_model(model_dir, device), num_rounds=8 if device.type == "cuda" else 1)
    for name, value in asdict(rates).items():
        say(f"{name:24} {value:,.2f}" if isinstance(value, float) else f"{name:24} {value}")
    seconds = round(time.monotonic() - started_s, 1)
    print(json.dumps({"checks": num_checks, "failures": failures, "seconds": seconds, "rates": asdict(rates)}))
    sys.exit(1 if failures else 0)


def _checks(model_dir: Path, kind: str, weights: str, device: torch.device) -> list[tuple[str, str | None]]:
    """Each check's name and what is wrong."""
    computes_half = device.type == "cuda" and weights == "fp16"
    # FlashAttention computes in half precision only; of its versions one takes no smaller blocks.
    found: list[tuple[str, str | None]] = []
    for block_tokens in (16, 256) if computes_half else (16,):
        subject = Subject.load(
            model_dir,
            num_blocks=40,
            tolerance=_HALF_TOLERANCE[kind] if computes_half else _FLOAT_TOLERANCE,
            weights=weights,
            device=device,
            block_tokens=block_tokens,
        )
        for scenario in SCENARIOS:
            if scenario is greedy_decode and computes_half:
                continue  # the likeliest two may lie closer together than the rounding
            subject.reset()
            problem = None
            try:
                scenario(subject)
            except AssertionError as error:
                problem = str(error).partition("\n")[0] or "not equal"
            except (RuntimeError, ValueError) as error:
                problem = f"{type(error).__name__}: {error}".partition("\n")[0]
            found.append((f"{subject.runtime.attention_name}/{block_tokens} {scenario.__name__}", problem))
    return found


def _save_random(model_dir: Path, *, is_small: bool) -> None:
    """A Llama of random weights in bf16: half a billion, or hardly any."""
    width, num_layers = (128, 2) if is_small else (2048, 8)
    config = transformers.LlamaConfig(
        vocab_size=32_000,
        hidden_size=width,
        intermediate_size=11 * width // 4,
        num_hidden_layers=num_layers,
        num_attention_heads=width // 64,
        num_key_value_heads=max(1, width // 256),
        max_position_embeddings=8192,
    )
    transformers.logging.disable_progress_bar()
    factory = cast(Any, transformers.AutoModelForCausalLM)
    factory.from_config(config, dtype=torch.bfloat16).save_pretrained(model_dir)


def _rates(model: LoadedModel, num_rounds: int) -> Rates:
    is_cuda = model.device.type == "cuda"
    block_tokens, prompt_tokens = (64, 4096) if is_cuda else (16, 512)
    state_gib = None
    if is_cuda:
        sizes = {"step_tokens": _STEP_TOKENS, "max_running": _MAX_RUNNING, "block_tokens": block_tokens}
        state_gib = measured_state_bytes(model, utilisation=0.9, **sizes) / 2**30
    row_blocks = -(-(prompt_tokens + num_rounds + 1) // block_tokens)
    runtime = PagedRuntime(model, num_blocks=(_MAX_RUNNING + 1) * row_blocks, block_tokens=block_tokens)
    tables = [range(i * row_blocks, (i + 1) * row_blocks) for i in range(_MAX_RUNNING + 1)]
    ids = np.random.default_rng(0).integers(3, 1000, prompt_tokens).astype(np.int32)

    def step(rows: list[Row]) -> float:
        started_s = time.perf_counter()
        runtime.forward(Batch(tuple(rows))).argmax(-1).cpu()
        return time.perf_counter() - started_s

    def prefill(table: range) -> float:
        starts = range(0, prompt_tokens, _STEP_TOKENS)
        return sum(step([Row(ids[at : at + _STEP_TOKENS], at, table, 1)]) for at in starts)

    def decode(num_rows: int) -> float:
        def rows(at: int) -> list[Row]:
            return [Row(ids[:1], prompt_tokens + at, table, 1) for table in tables[:num_rows]]

        step(rows(0))
        return num_rows / statistics.median(step(rows(1 + i)) for i in range(num_rounds))

    prefill(tables[0])
    prefilled_s = statistics.median(prefill(table) for table in tables[:3])
    read_s, restored_s = _moves(runtime, tables[0], tables[-1], prompt_tokens)
    gib = prompt_tokens * runtime.layout.bytes_per_token / 2**30
    return Rates(
        device=torch.cuda.get_device_name(model.device) if is_cuda else "cpu",
        format=model.weight_format,
        attention=runtime.attention_name,
        state_gib=state_gib,
        prefill_tokens_per_s=prompt_tokens / prefilled_s,
        decode_1_tokens_per_s=decode(1),
        decode_16_tokens_per_s=decode(_MAX_RUNNING),
        restore_gib_per_s=gib / restored_s,
        read_gib_per_s=gib / read_s,
    )


def _moves(runtime: PagedRuntime, source: range, target: range, num_tokens: int) -> tuple[float, float]:
    """Seconds to read a sequence's state page by page, and to write it elsewhere, the second time each."""
    layout, read_s, restored_s = runtime.layout, 0.0, 0.0
    for _ in range(2):
        started_s = time.perf_counter()
        spans = {
            (at, layer, channel): runtime.read_span(source, at, _PAGE_TOKENS, layer, channel)
            for layer in range(layout.num_layers)
            for at in range(0, num_tokens, _PAGE_TOKENS)
            for channel in range(len(layout.channels))
        }
        read_s = time.perf_counter() - started_s
        arrays = {place: np.frombuffer(data, dtype=np.uint8) for place, data in spans.items()}
        started_s = time.perf_counter()
        for (at, layer, channel), data in arrays.items():
            runs = slot_runs(target, at, _PAGE_TOKENS, runtime.block_tokens)
            heads = layout.channels[channel].num_heads
            runtime.write_rows(runs, layer, channel, data.reshape(heads, _PAGE_TOKENS, -1))
        # Reads stand behind writes: when this one is back, all is in place.
        runtime.read_span(target, 0, 1, 0, 0)
        restored_s = time.perf_counter() - started_s
    return read_s, restored_s


if __name__ == "__main__":
    main()
