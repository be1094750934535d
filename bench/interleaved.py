"""Four sessions that take turns where there is room for two: engine, memory and disk together, beside another server.

Each turn sends its session's whole conversation, 500 tokens longer than the last one and its answer, and gets 32
tokens; then it is the next session's turn. Ours has its disk tier and memory for 9,216 tokens; the peer is to be
started with room for as many (bench/servers.py; vLLM: 72 blocks of 128 tokens, llama.cpp: two slots of 4,608). In a
second run of the same, ours is stopped and started again after the fourth of seven turns, and the peer is not, which
favours it; starting does not count. Answers in prompts are made up, the same ones for both: not every server tells
their ids.

    python -m bench.interleaved [--json] [--peer URL] [--rounds 1] [--turns 7] [--threads N]

The last line is one JSON object: by measure ours, peer and ratio. sessions_4, sessions_4_restarted: seconds for all
turns. *_last_ttft: median of the seconds to the first token in the last turns. Without a peer, ours alone. Progress
goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from bench.servers import Ours, Prompt, Server, Timed, compared, connect, random_ids
from bench.stack import Stack, serving_stack
from services.models.store import resolve

_MODEL = "smollm2-135m-instruct"
_NUM_SESSIONS = 4
_NEW_TOKENS, _ANSWER_TOKENS = 500, 32
_ROOM_TOKENS = 9_216
_BYTES_PER_TOKEN = 46_080


def main() -> None:
    parser = argparse.ArgumentParser(description="Four sessions that take turns where there is room for two.")
    parser.add_argument("--json", action="store_true", help="as without: stdout has one line")
    parser.add_argument("--peer", metavar="URL", help="a server with /v1/completions and room for 9,216 tokens")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--turns", type=int, default=7, help="of each session")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    print(json.dumps(asyncio.run(_measure(options))))


@dataclass(slots=True)
class _Sessions:
    """Their conversations so far, and what was measured of them."""

    rng: random.Random
    prompts: list[Prompt] = field(default_factory=lambda: [[] for _ in range(_NUM_SESSIONS)])
    last_turn: list[Timed] = field(default_factory=list[Timed])
    played_s: float = 0.0

    async def play(self, server: Server, num_turns: int) -> None:
        """Let each of them have so many turns."""
        began_s = time.perf_counter()
        for _ in range(num_turns):
            self.last_turn = []
            for prompt in self.prompts:
                prompt += random_ids(self.rng, _NEW_TOKENS)
                self.last_turn += await server.run([prompt], _ANSWER_TOKENS)
                prompt += random_ids(self.rng, _ANSWER_TOKENS)
        self.played_s += time.perf_counter() - began_s

    def measures(self, name: str) -> dict[str, float]:
        """By name."""
        return {name: self.played_s, f"{name}_last_ttft": statistics.median(timed.first_s for timed in self.last_turn)}


async def _measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    found: dict[str, list[tuple[float, float]]] = {}
    run_id = secrets.token_hex(8)
    for round_number in range(options.rounds):
        for name, is_restarted in (("sessions_4", False), ("sessions_4_restarted", True)):
            measures: list[dict[str, float]] = []
            for who in ("ours", "peer") if options.peer else ("ours",):
                sessions = _Sessions(random.Random(f"{run_id} {round_number} {name}"))
                if who == "peer":
                    await sessions.play(await connect(options.peer), options.turns)
                else:
                    await _play_ours(sessions, options, is_restarted=is_restarted)
                measures.append(sessions.measures(name))
                progress = f"round {round_number + 1} of {options.rounds}: {name}, {who}, {sessions.played_s:.1f} s"
                print(progress, file=sys.stderr, flush=True)
            for key, value in measures[0].items():
                found.setdefault(key, []).append((value, measures[-1][key]))
    if options.peer:
        return {key: compared(pairs) for key, pairs in found.items()}
    return {key: {"ours": round(statistics.median(ours for ours, _ in pairs), 4)} for key, pairs in found.items()}


async def _play_ours(sessions: _Sessions, options: argparse.Namespace, *, is_restarted: bool) -> None:
    flags = ("--threads", str(options.threads), "--drafts", "off", "--loop-guard", "off")
    num_before = (options.turns + 1) // 2 if is_restarted else 0
    with tempfile.TemporaryDirectory() as folder:
        stack = Stack(Path(folder), resolve(_MODEL), vram_bytes=_ROOM_TOKENS * _BYTES_PER_TOKEN, engine_flags=flags)
        for num_turns in (num_before, options.turns - num_before):
            if num_turns:
                async with serving_stack(stack):
                    await sessions.play(Ours(stack, keeps=True), num_turns)


if __name__ == "__main__":
    main()
