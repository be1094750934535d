from __future__ import annotations

import json
import statistics
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from bench.agents.served import Served, starved
from bench.agents.session import Piece, Session, Turn
from bench.agents.synthetic import NUM_TURNS, Scale, sessions
from bench.agents.traces import mooncake, read_trace, trace_names, tracelab

REAL = Scale(tokens=1, time=1)


def test_a_shorter_piece_is_the_beginning_of_a_longer_one() -> None:
    assert Piece("a", 5).ids() == Piece("a", 50).ids()[:5]
    assert Piece("a", 5).ids() != Piece("b", 5).ids()


def test_a_turn_goes_on_from_what_it_keeps() -> None:
    before = [1, 2, 3]
    assert Turn((Piece("a", 2),), 1, 0.0).prompt(before) == [1, 2, 3, *Piece("a", 2).ids()]
    assert Turn((Piece("a", 2),), 1, 0.0, keeps=2).prompt(before) == [1, 2, *Piece("a", 2).ids()]


def test_made_up_sessions_have_the_measured_shape() -> None:
    found = list(islice(sessions(1, REAL), 200))
    turns = [turn for session in found for turn in session.turns]
    new = [turn.pieces[-1].num_tokens for session in found for turn in session.turns[1:]]
    waits_s = sorted(turn.wait_s for turn in turns)
    lasts = [session.prompt_tokens()[-1] for session in found]
    assert all(len(session.turns) == NUM_TURNS for session in found)
    assert statistics.median(new) == pytest.approx(1_600, rel=0.05)
    assert statistics.median(turn.output_tokens for turn in turns) == pytest.approx(200, rel=0.05)
    assert statistics.median(waits_s) == pytest.approx(5.2, rel=0.05)
    assert waits_s[int(0.99 * len(waits_s))] == pytest.approx(81, rel=0.15)
    assert 70_000 < statistics.mean(lasts) < 95_000


def test_a_tool_says_how_long_it_takes() -> None:
    waits_s: dict[str, list[float]] = {}
    for session in islice(sessions(1, REAL), 50):
        for turn in session.turns:
            (tool,) = turn.wait_classes
            waits_s.setdefault(tool, []).append(turn.wait_s)
    medians = {tool: statistics.median(found) for tool, found in waits_s.items()}
    assert sorted(medians, key=medians.__getitem__) == ["read", "search", "list", "edit", "test", "build"]
    assert medians["build"] > 10 * medians["read"]


def test_a_session_is_the_same_each_time_and_shares_only_what_its_agent_puts_first() -> None:
    first, _, third = islice(sessions(1, Scale()), 3)
    again = next(sessions(1, Scale()))
    prompts = [session.turns[0].prompt([]) for session in (first, third)]
    static = first.turns[0].pieces[0].num_tokens
    assert first == again
    assert prompts[0][:static] == prompts[1][:static]
    assert prompts[0][static] != prompts[1][static]


def test_a_session_joined_late_has_the_length_that_it_had_by_then() -> None:
    session = next(sessions(1, Scale()))
    late = session.from_turn(7)
    assert late.prompt_tokens() == session.prompt_tokens()[7:]
    assert late.turns[1:] == session.turns[8:]


def test_a_session_that_drops_tokens_is_not_joined_late() -> None:
    session = Session("s", (Turn((Piece("a", 9),), 1, 0.0), Turn((Piece("b", 9),), 1, 0.0, keeps=4)))
    with pytest.raises(ValueError, match="joined late"):
        session.from_turn(1)


def _round(total: int, cached: int, output: int, at: str, tools: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "session_id": "s",
        "provider": "codex",
        "input_tokens_total": total,
        "prefix_tokens": cached,
        "output_tokens": output,
        "tools": [{"tool_name": tool} for tool in tools],
        "timing_events": [
            {"event_type": "tool_result", "timestamp": f"2026-06-01T05:00:{at}Z"},
            {"event_type": "text", "timestamp": f"2026-06-01T05:00:{at[:2]}.900Z"},
        ],
    }


def test_rounds_become_turns_that_keep_what_came_before() -> None:
    rounds = [
        _round(20_000, 15_000, 100, "01.000", ("Bash", "Bash")),
        _round(20_500, 20_000, 50, "05.000"),
        _round(20_520, 100, 10, "06.000"),
        _round(20_400, 300, 10, "08.000"),
    ]
    (session,) = tracelab(rounds)
    assert [turn.keeps for turn in session.turns] == [0, 20_100, 20_500, 300]
    assert session.prompt_tokens() == [20_000, 20_500, 20_520, 20_400]
    assert session.turns[0].pieces[0] == Piece("codex agent", 11_500)
    assert session.turns[0].wait_classes == ("Bash",)
    assert session.turns[0].wait_s == pytest.approx(3.1)


def _request(at_s: int, length: int, hashes: list[int]) -> dict[str, Any]:
    return {"timestamp": 1_000 * at_s, "input_length": length, "output_length": 20, "hash_ids": hashes}


def test_requests_with_a_common_beginning_become_a_session() -> None:
    lines = [
        _request(0, 1_000, [0, 1]),
        _request(1, 900, [0, 7]),
        _request(5, 1_500, [0, 1, 2]),
        _request(9, 1_600, [0, 1, 2, 3]),
        _request(11, 1_700, [0, 1, 4, 5]),
    ]
    (session,) = mooncake(lines)
    assert session.prompt_tokens() == [1_000, 1_500, 1_600, 1_700]
    assert [turn.keeps for turn in session.turns] == [0, 1_000, 1_500, 1_024]
    assert [turn.wait_s for turn in session.turns] == [5, 4, 2, 0]


def test_a_trace_is_scaled_and_told_again_under_other_names(tmp_path: Path) -> None:
    lines = [_request(9 * n, 1_000 + 300 * n, list(range(2 + n))) for n in range(4)]
    (tmp_path / "mooncake_conversation.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert trace_names(tmp_path) == ["mooncake"]
    first, second = islice(read_trace(tmp_path, "mooncake", mean_prompt_tokens=145, scale=Scale(10, 0.5)), 2)
    assert statistics.mean(first.prompt_tokens()) == pytest.approx(145, rel=0.05)
    assert first.turns[0].wait_s == pytest.approx(2.6)
    assert first.name != second.name
    assert first.turns[0].prompt([])[:20] != second.turns[0].prompt([])[:20]


def test_a_file_that_is_no_trace_is_told(tmp_path: Path) -> None:
    (tmp_path / "tracelab_rounds.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match=r"tracelab_rounds\.jsonl"):
        read_trace(tmp_path, "tracelab", mean_prompt_tokens=100, scale=REAL)


def _served(arrived_s: float, admitted_s: float | None) -> Served:
    return Served(arrived_s, 1, admitted_s)


def test_a_request_starves_that_was_passed_more_often_than_the_bound_allows() -> None:
    patience_s = 10.0
    old = _served(0.0, 30.0)
    passing = [_served(12.0, 13.0 + n) for n in range(4)]
    assert not starved([old, *passing], until_s=40, patience_s=patience_s, max_passes=4)
    passing.append(_served(12.0, 20.0))
    assert starved([old, *passing], until_s=40, patience_s=patience_s, max_passes=4) == [old]
    older = _served(-1.0, 30.5)
    assert old not in starved([older, old, *passing], until_s=40, patience_s=patience_s, max_passes=4)


def test_a_request_that_still_waits_starves_by_the_same_bound() -> None:
    waiting = _served(0.0, None)
    passing = [_served(12.0, 13.0 + n) for n in range(5)]
    assert starved([waiting, *passing], until_s=40, patience_s=10, max_passes=4) == [waiting]
    assert not starved([waiting, *passing[:4]], until_s=40, patience_s=10, max_passes=4)
