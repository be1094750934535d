"""Four real services whose model is scripted, and what each of its answers cost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from services.stack import capsule_keys, ensure_capsule_keys
from tests.clients.scripted_engine import LOG_VARIABLE, THINKS_VARIABLE

ROOT = Path(__file__).parents[2]
MODEL = "scripted"
CONTEXT_TOKENS = 131_072
VRAM_BYTES = "256MiB"
_START_S = 120.0
_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' and message.reasoning_content %}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
"""Keeps all thinking, so that a turn's thinking has to come back through the client."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one answer of the model cost, in tokens. ``kind``: call, final or side."""

    kind: str
    prompt: int
    output: int
    cached: Mapping[str, int]
    background: bool

    @property
    def num_cached(self) -> int:
        return sum(self.cached.values())


@dataclass(frozen=True, slots=True)
class Stack:
    """A running one."""

    port: int
    log_path: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def costs(self) -> list[Cost]:
        """Of all answers so far, in order, over restarts too."""
        lines = self.log_path.read_text().splitlines() if self.log_path.exists() else []
        return [Cost(**json.loads(line)) for line in lines]


def write_model(target: Path, source: Path) -> Path:
    """A tiny random model with the vocabulary of the one in ``source``, a long context and a template that thinks."""
    transformers.logging.disable_progress_bar()
    target.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (target / name).symlink_to(source / name)
    (target / "chat_template.jinja").write_text(_TEMPLATE)
    vocab_size = json.loads((source / "config.json").read_text())["vocab_size"]
    config = transformers.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(target)
    return target


@contextmanager
def run_stack(folder: Path, model: Path, *, thinks: bool, gateway_flags: tuple[str, ...] = ()) -> Generator[Stack]:
    """Start the services on ``folder``'s state and stop them as Ctrl-C does; the state stays."""
    folder.mkdir(parents=True, exist_ok=True)
    run_dir = folder / "run"
    run_dir.mkdir(exist_ok=True)
    ensure_capsule_keys(folder)
    kvstore, engine, tokenizer = (f"unix:{run_dir / name}" for name in ("kvstore", "engine", "tokenizer"))
    stack = Stack(_free_port(), folder / "costs.jsonl")
    scripted = {LOG_VARIABLE: str(stack.log_path), **({THINKS_VARIABLE: "1"} if thinks else {})}
    processes: list[subprocess.Popen[bytes]] = []
    with ExitStack() as running:

        def start(module: str, *flags: str, **environ: str) -> None:
            log_path = folder / f"{module}.log"
            processes.append(running.enter_context(_process(log_path, module, *flags, **environ)))

        start("services.kvstore", "--listen", kvstore, "--data-dir", str(folder / "kv"))
        start(
            *("tests.clients.scripted_engine", "--listen", engine, "--model", str(model), "--kvstore", kvstore),
            *("--vram-bytes", VRAM_BYTES, "--restore", "always"),
            **scripted,
        )
        start(
            *("services.tokenizer", "--listen", tokenizer, "--model", str(model), "--model-name", MODEL),
            *("--engines", engine, "--records", kvstore, "--capsule-keys", str(capsule_keys(folder))),
        )
        start(
            *("services.gateway", "--port", str(stack.port), "--tokenizers", tokenizer, "--records", kvstore),
            *gateway_flags,
        )
        _wait_until_serving(stack, folder, processes)
        yield stack


@contextmanager
def _process(log_path: Path, module: str, *flags: str, **environ: str) -> Generator[subprocess.Popen[bytes]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FENCEPOST_")}
    path = os.pathsep.join((str(ROOT), str(ROOT / "proto")))
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *flags],
            env={**clean, "PYTHONPATH": path, **environ},
            stdout=log,
            stderr=log,
            cwd=ROOT,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def _wait_until_serving(stack: Stack, folder: Path, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    deadline_s = time.monotonic() + _START_S
    while time.monotonic() < deadline_s and all(process.poll() is None for process in processes):
        logs = [path.read_text(errors="replace") for path in folder.glob("*.log")]
        if sum("serving on" in log for log in logs) == len(processes):
            return
        time.sleep(0.1)
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("*.log")))
    raise AssertionError(f"the stack does not start:\n{logs}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
