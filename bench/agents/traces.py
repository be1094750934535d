"""Sessions of public traces, scaled. Pure but for reading the files.

TraceLab's two sessions have token counts, tools and times of events. Every copy of one has content of its own but for
what its agent puts first: of the prefix that the first request found cached, as much as agents' own prompts have. Of
Mooncake's conversations, whose prompts are hashes of 512 tokens each, those with four requests or more are taken that
do not grow far beyond the others. What two prompts share is what they share in the trace. What they waited for is not
known: most often for a person, so their waits are scaled to the median of tools' waits.

Both are scaled to prompts of ``mean_prompt_tokens``, so that the same pool holds as many of them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from bench.agents.session import Piece, Session, Turn
from bench.agents.synthetic import Scale

_TRACELAB, _MOONCAKE = "tracelab_rounds.jsonl", "mooncake_conversation.jsonl"
_WAIT_S = 5.2
_HASH_TOKENS = 512
_MIN_TURNS = 4
_STATIC_TOKENS = 11_500
_MOST_TOKENS = 30_000
_Lines = list[dict[str, Any]]


def trace_names(folder: Path) -> list[str]:
    """Which of the traces the folder has."""
    return [name for name, file in (("tracelab", _TRACELAB), ("mooncake", _MOONCAKE)) if (folder / file).is_file()]


def read_trace(folder: Path, name: str, *, mean_prompt_tokens: float, scale: Scale) -> Iterator[Session]:
    """Sessions without end: once all are told, again under other names. Raises OSError, and ValueError for what is no
    such trace."""
    file = folder / (_TRACELAB if name == "tracelab" else _MOONCAKE)
    try:
        lines: _Lines = [json.loads(line) for line in file.read_text().splitlines()]
        found = tracelab(lines) if name == "tracelab" else mooncake(lines)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file}: {error!r}") from None
    if not found:
        raise ValueError(f"{file}: no sessions")
    time = scale.time
    if name == "mooncake":
        time *= _WAIT_S / statistics.median(turn.wait_s for session in found for turn in session.turns[:-1])
    return _scaled(found, mean_prompt_tokens, replace(scale, time=time))


def tracelab(lines: _Lines) -> list[Session]:
    """Sessions in real tokens and seconds."""
    by_id: dict[str, _Lines] = {}
    for line in lines:
        by_id.setdefault(line["session_id"], []).append(line)
    return [_rounds(rounds) for rounds in by_id.values()]


def _rounds(rounds: _Lines) -> Session:
    name, provider = rounds[0]["session_id"], rounds[0]["provider"]
    turns: list[Turn] = []
    before, before_answer = 0, 0
    for at, (one, behind) in enumerate(zip(rounds, [*rounds[1:], None], strict=True)):
        total, cached = one["input_tokens_total"], one["prefix_tokens"]
        if not at:
            static = min(cached, _STATIC_TOKENS)
            keeps, pieces = 0, [Piece(f"{provider} agent", static), Piece(f"{name} turn 0", total - static)]
        else:
            # An answer's thinking may not come back; where less comes back than that, only what was cached is known.
            keeps = next(n for n in (before, before_answer, min(cached, total - 1)) if n < total)
            pieces = [Piece(f"{name} turn {at}", total - keeps)]
        tools: tuple[str, ...] = tuple(dict.fromkeys(tool["tool_name"] for tool in one["tools"]))
        wait_s = 0.0 if behind is None else max(0.0, _asked_s(behind) - _time_s(one["timing_events"][-1]))
        turns.append(Turn(tuple(pieces), max(1, one["output_tokens"]), wait_s, tools, keeps))
        before, before_answer = total + one["output_tokens"], total
    return Session(name, tuple(turns))


def _asked_s(line: dict[str, Any]) -> float:
    """When all that a request sends was there."""
    events = line["timing_events"]
    return max(_time_s(event) for event in events if event["event_type"] in ("user_message", "tool_result"))


def _time_s(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["timestamp"]).timestamp()


def mooncake(lines: _Lines) -> list[Session]:
    """Sessions in real tokens and seconds. A request goes on with the last one that has its longest prefix."""
    chains: list[_Lines] = []
    chain_by_hash: dict[int, _Lines] = {}
    for line in lines:
        # The first hash is the service's own beginning, which nearly all share.
        own = line["hash_ids"][1:]
        chain = next((chain_by_hash[h] for h in reversed(own) if h in chain_by_hash), None)
        if chain is None:
            chain = _Lines()
            chains.append(chain)
        chain.append(line)
        chain_by_hash.update(dict.fromkeys(own, chain))
    usable = (c for c in chains if len(c) >= _MIN_TURNS and max(line["input_length"] for line in c) <= _MOST_TOKENS)
    return [_chain(f"chain {n}", chain) for n, chain in enumerate(usable)]


def _chain(name: str, chain: _Lines) -> Session:
    turns: list[Turn] = []
    before: list[int] = []
    last_tokens = 0
    for line, behind in [*pairwise(chain), (chain[-1], chain[-1])]:
        hashes, total = line["hash_ids"], line["input_length"]
        shared = next((i for i, (a, b) in enumerate(zip(before, hashes, strict=False)) if a != b), None)
        shared = min(len(before), len(hashes)) if shared is None else shared
        # Of a hash that ended the last prompt, not all was there.
        keeps = min(shared * _HASH_TOKENS, last_tokens, total - 1)
        ends = [keeps, *(min((i + 1) * _HASH_TOKENS, total) for i in range(keeps // _HASH_TOKENS, len(hashes)))]
        behind_keeps = hashes[keeps // _HASH_TOKENS :]
        pieces = [
            Piece(f"hash {h}{'' if first % _HASH_TOKENS == 0 else f' from {first}'}", last - first)
            for h, first, last in zip(behind_keeps, ends, ends[1:], strict=False)
        ]
        wait_s = (behind["timestamp"] - line["timestamp"]) / 1e3
        turns.append(Turn(tuple(pieces), max(1, line["output_length"]), wait_s, (), keeps))
        before, last_tokens = hashes, total
    return Session(name, tuple(turns))


def _scaled(found: list[Session], mean_prompt_tokens: float, scale: Scale) -> Iterator[Session]:
    tokens = statistics.mean(length for session in found for length in session.prompt_tokens()) / mean_prompt_tokens
    for copy in count():
        for session in found:
            turns = tuple(_scaled_turn(turn, copy, tokens, scale) for turn in session.turns)
            yield Session(f"{session.name} copy {copy}", turns)


def _scaled_turn(turn: Turn, copy: int, tokens: float, scale: Scale) -> Turn:
    return replace(
        turn,
        pieces=tuple(
            Piece(
                piece.name if piece.name.endswith(" agent") else f"{piece.name} copy {copy}",
                max(1, round(piece.num_tokens / tokens)),
            )
            for piece in turn.pieces
        ),
        output_tokens=max(1, round(turn.output_tokens / scale.tokens)),
        wait_s=turn.wait_s * scale.time,
        keeps=None if turn.keeps is None else round(turn.keeps / tokens),
    )
