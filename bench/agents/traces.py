"""Sessions of public traces, scaled. Pure but for reading the files.

TraceLab's two sessions have token counts, tools and how long these took. Every copy of one has content of its own but
for what its agent puts first. Of Mooncake's conversations, whose prompts are hashes of 512 tokens each, those with four
requests or more are taken; what two prompts share is what they share in the trace, and which tool they waited for is
not known.

Both are scaled to prompts of ``mean_prompt_tokens`` and to waits with the median of tool waits, so that the same pool
holds as many of them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from bench.agents.session import Piece, Session, Turn
from bench.agents.synthetic import Scale

_TRACELAB, _MOONCAKE = "tracelab_rounds.jsonl", "mooncake_conversation.jsonl"
_WAIT_S = 5.2
_HASH_TOKENS = 512
_MIN_TURNS = 4
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
    return _scaled(found, mean_prompt_tokens, scale)


def tracelab(lines: _Lines) -> list[Session]:
    """Sessions in real tokens and seconds; the first prompt's cached prefix is the agent's own."""
    by_id: dict[str, _Lines] = {}
    for line in lines:
        by_id.setdefault(line["session_id"], []).append(line)
    return [_rounds(rounds) for rounds in by_id.values()]


def _rounds(rounds: _Lines) -> Session:
    name, provider = rounds[0]["session_id"], rounds[0]["provider"]
    turns: list[Turn] = []
    before, before_answer = 0, 0
    for at, one in enumerate(rounds):
        total, cached = one["input_tokens_total"], one["prefix_tokens"]
        if not at:
            keeps, pieces = 0, [Piece(f"{provider} agent", cached), Piece(f"{name} turn 0", total - cached)]
        else:
            # An answer's thinking may not come back; where less comes back than that, only what was cached is known.
            keeps = next(n for n in (before, before_answer, min(cached, total - 1)) if n < total)
            pieces = [Piece(f"{name} turn {at}", total - keeps)]
        waits_s = [tool["tool_wall_latency_ms"] / 1e3 for tool in one["tools"] if tool["tool_wall_latency_ms"]]
        tools = tuple(dict.fromkeys(tool["tool_name"] for tool in one["tools"]))
        turns.append(Turn(tuple(pieces), max(1, one["output_tokens"]), max(waits_s, default=1.0), tools, keeps))
        before, before_answer = total + one["output_tokens"], total
    return Session(name, tuple(turns))


def mooncake(lines: _Lines) -> list[Session]:
    """Sessions in real tokens and seconds. A request goes on with the last one that has its longest prefix."""
    chains: list[_Lines] = []
    chain_by_hash: dict[int, _Lines] = {}
    for line in lines:
        # The first hash is the service's own beginning, which nearly all share.
        own = line["hash_ids"][1:]
        chain = next((chain_by_hash[h] for h in reversed(own) if h in chain_by_hash), None)
        if chain is None:
            chain = []
            chains.append(chain)
        chain.append(line)
        chain_by_hash.update(dict.fromkeys(own, chain))
    return [_chain(f"chain {n}", chain) for n, chain in enumerate(chains) if len(chain) >= _MIN_TURNS]


def _chain(name: str, chain: _Lines) -> Session:
    turns: list[Turn] = []
    last: list[int] = []
    for line, behind in [*pairwise(chain), (chain[-1], chain[-1])]:
        hashes, total = line["hash_ids"], line["input_length"]
        shared = next((i for i, (a, b) in enumerate(zip(last, hashes, strict=False)) if a != b), None)
        shared = min(len(last), len(hashes)) if shared is None else shared
        keeps = min(shared * _HASH_TOKENS, total - 1)
        pieces = [Piece(f"hash {h}", _HASH_TOKENS) for h in hashes[shared:-1]]
        in_last = total - keeps - sum(piece.num_tokens for piece in pieces)
        pieces.append(Piece(f"hash {hashes[-1]}", max(1, in_last)))
        wait_s = (behind["timestamp"] - line["timestamp"]) / 1e3
        turns.append(Turn(tuple(pieces), max(1, line["output_length"]), wait_s, (), keeps))
        last = hashes
    return Session(name, tuple(turns))


def _scaled(found: list[Session], mean_prompt_tokens: float, scale: Scale) -> Iterator[Session]:
    if not found:
        raise ValueError("the trace has no sessions")
    tokens = statistics.mean(length for session in found for length in session.prompt_tokens()) / mean_prompt_tokens
    waits_s = [turn.wait_s for session in found for turn in session.turns[:-1]]
    time = scale.time * _WAIT_S / statistics.median(waits_s)
    for copy in count():
        for session in found:
            turns = tuple(_scaled_turn(turn, copy, tokens, time, scale) for turn in session.turns)
            yield Session(f"{session.name} copy {copy}", turns)


def _scaled_turn(turn: Turn, copy: int, tokens: float, time: float, scale: Scale) -> Turn:
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
        wait_s=turn.wait_s * time,
        keeps=None if turn.keeps is None else round(turn.keeps / tokens),
    )
