"""The engine's settings."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from services.process import ServerSettings
from services.settings import byte_size, setting


def _device(text: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", text):
        raise ValueError("auto, cpu, cuda or cuda:NUMBER")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(ServerSettings):
    """Flags, with FENCEPOST_ENGINE_* behind them."""

    listen: str = setting("127.0.0.1:7402", help="address to serve on: host:port or unix:path")
    model: Path = setting(help="model directory (fencepost model pull prints it)")
    kvstore: str = setting("", help="address of the kvstore; empty: no disk tier", parse=str)
    device: str = setting(
        "auto", help="device to compute on: cpu, cuda, cuda:1, ..., or auto: cuda where there is one", parse=_device
    )
    vram_bytes: int | None = setting(
        None,
        help="memory for cached and running state, e.g. 2GiB (default: 2GiB on CPU, on CUDA what --vram-utilisation "
        "leaves)",
        parse=byte_size,
        minimum=1,
    )
    vram_utilisation: float = setting(
        0.9,
        help="on CUDA, the part of the device's memory that weights, steps and state may take, others' use included",
        minimum=0.1,
        maximum=1.0,
    )
    block_tokens: int | None = setting(
        None, help="tokens in a block; divides 256 (default: 16 on CPU, 64 on CUDA)", minimum=1, maximum=256
    )
    step_tokens: int = setting(512, help="tokens computed in one step", minimum=1)
    max_running: int = setting(16, help="requests computed at once", minimum=1)
    max_waiting: int = setting(256, help="requests that may wait; more are refused", minimum=1)
    drafts: str = setting(
        "on", help="guess tokens that repeat what came before; the output is the same", choices=("on", "off")
    )
    weights: str = setting(
        "auto",
        help="how weights are held. On CPU, fp16 is half the memory and faster, arithmetic is fp32; auto: fp16 where "
        "it fits. On CUDA, weights, arithmetic and state are of this format; auto: the model's own, such as bf16",
        choices=("auto", "fp16", "fp32"),
    )
    admission: str = setting(
        "lpm",
        help="which waiting request is next: that with the longest cached prefix, or the first come",
        choices=("lpm", "fcfs"),
    )
    eviction: str = setting(
        "belt",
        help="which cached state goes first: that of the least expected value, or the least recently used",
        choices=("belt", "lru"),
    )
    working_set_gate: bool = setting(
        True, help="hold new sessions back while those that were active lately need the memory"
    )
    patience_s: float = setting(60.0, help="seconds after which few may pass a waiting request", minimum=0)
    max_passes: int = setting(4, help="requests that may pass, one after the other, who has lost patience", minimum=0)
    threads: int = setting(os.cpu_count() or 1, help="compute threads", minimum=1)
    min_restore_tokens: int = setting(32, help="smallest gain for which stored state is read", minimum=1)
    loop_guard: str = setting(
        "on", help="end outputs that go round in circles, where a request does not say", choices=("on", "off")
    )
    restore: str = setting(
        "cost", help="read stored state when that is sooner than computing it, or always", choices=("cost", "always")
    )
    write_policy: str = setting(
        "turn", help="store a state when its turn ends, or when its blocks are evicted", choices=("turn", "evict")
    )
    shared_memory_dir: str = setting(
        "", help="folder in memory, shared with a kvstore of this host: state is read through it; empty: off", parse=str
    )
    staging_bytes: int = setting(64 * 2**20, help="memory in that folder", parse=byte_size, minimum=2**20)
    max_pending_writes: int = setting(
        16, help="terminal states that may wait to be stored; more are dropped", minimum=1
    )
    restore_timeout_s: float = setting(
        30.0, help="seconds after which a restore goes on with what has arrived", minimum=0
    )
