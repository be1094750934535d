"""Raw text, up to its terminator."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.fence.errors import FenceError
from services.engine.fence.machine import Fence, Region
from services.engine.fence.program import Literal, Raw, Sequence
from services.engine.fence.text_automaton import BEGINNING, Place, TextAutomaton
from services.engine.fence.utf8 import NUM_STATES
from tests.unit.engine.fence.small_fences import (
    eos,
    fence,
    is_over,
    legal,
    marker,
    program,
    small_compiler,
    small_tokens,
    takes,
    write,
)

HOSTILE = ["<", "</", "</x>", "\x00\x1b\r\n\t", "<think>", "<|im_end|>", "é字😀", '"}', "</en", "e</e</end"]


def closed(**more: object) -> Fence:
    """Ends at ``</`` and a marker."""
    return fence(Raw("</<tool_call>", **more), markers=["<tool_call>"])  # type: ignore[arg-type]


def open_ended(**more: object) -> Fence:
    """Ends at the text ``</end>``, and ``!`` follows."""
    return fence(Sequence((1, 2)), Raw("</end>", **more), Literal("!"))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [*HOSTILE, "</end>", "</end>!</", ""])
def test_any_text_may_stand_before_a_terminator_with_a_marker(text: str) -> None:
    assert is_over(closed(), text, "</", marker("<tool_call>"))


@pytest.mark.parametrize("text", [*HOSTILE, ""])
def test_any_text_may_stand_before_a_terminator_of_text(text: str) -> None:
    assert is_over(open_ended(), text, "</end>", "!")


def test_only_the_whole_terminator_ends_the_text() -> None:
    one = closed()
    write(one, "a<")
    assert marker("<tool_call>") not in legal(one)
    write(one, "/")
    assert marker("<tool_call>") in legal(one)
    write(one, " ")
    assert marker("<tool_call>") not in legal(one)


def test_the_first_terminator_of_text_ends_it() -> None:
    assert not takes(open_ended(), "a</end>b")
    assert not takes(open_ended(), "a</end></end>")


def test_a_terminator_spelt_out_without_its_marker_is_illegal() -> None:
    assert not takes(closed(), "a</<tool_call>")
    assert takes(closed(), "a</<tool_call")


def test_control_tokens_and_the_end_are_illegal_inside() -> None:
    for one in (closed(), open_ended()):
        write(one, "a")
        assert legal(one).isdisjoint({eos(), marker("<think>"), marker("</tool_call>"), marker("｜DSML｜")})
        assert one.region is Region.VALUE


def test_text_is_whole_characters() -> None:
    one = closed()
    euro = [small_tokens().texts.index(bytes([byte])) for byte in "€".encode()]
    assert one.push(euro[0])
    assert all(small_tokens().texts[token_id][0] & 0xC0 == 0x80 for token_id in legal(one))
    assert not takes(one, "</", marker("<tool_call>"))
    assert takes(one, *euro[1:], "</", marker("<tool_call>"))


@pytest.mark.parametrize("make", [closed, open_ended])
def test_lengths_count_characters_without_the_terminator(make: Callable[..., Fence]) -> None:
    ending = ["</", marker("<tool_call>")] if make is closed else ["</end>"]
    limited = make(min_chars=2, max_chars=3)
    assert takes(limited, "é字", *ending)
    assert takes(limited, "é字😀", *ending)
    assert takes(limited, "</e", *ending)
    assert not takes(limited, "é", *ending)
    assert not takes(limited, "</e<", *ending)
    assert not takes(limited, "abcd")


def test_forbidden_texts_do_not_appear() -> None:
    one = open_ended(forbidden=("bad", "worse"))
    assert takes(one, "ba worse"[:7], "</end>")
    assert not takes(one, "xbad")
    assert not takes(one, "worse")


def test_a_text_whose_terminator_is_forbidden_could_never_end() -> None:
    with pytest.raises(FenceError, match=r"nodes\[0\]\.raw\.forbidden"):
        small_compiler().compile(program(Raw("</end>", forbidden=("</",))))


def test_a_pattern_is_for_the_whole_text() -> None:
    one = open_ended(pattern="[0-9]+(-[0-9]+)?")
    assert takes(one, "12-7</end>!")
    assert not takes(one, "12-</end>")
    assert not takes(one, "a")
    assert takes(closed(pattern="^a{2,3}$"), "aaa</", marker("<tool_call>"))
    assert not takes(closed(pattern="^a{2,3}$"), "a</", marker("<tool_call>"))


def test_a_pattern_that_needs_backtracking_is_relaxed() -> None:
    compiled = small_compiler().compile(program(Raw("|", pattern="(?=a)b")))
    assert [(relaxed.path, relaxed.keyword) for relaxed in compiled.relaxed] == [("nodes[0]", "pattern")]
    assert is_over(Fence(compiled), "whatever|")


def test_a_token_may_reach_from_the_text_into_what_follows() -> None:
    tokens = small_tokens()
    crossing = next(
        (token_id, text)
        for token_id, text in enumerate(tokens.texts)
        if len(text) == 2 and text.isascii() and text.isalpha()
    )
    token_id, text = crossing
    one = fence(Sequence((1, 2)), Raw(text[:1].decode()), Literal(text[1:].decode() + "!"))
    assert token_id in legal(one)
    assert one.push(token_id)
    assert legal(one) == {tokens.encode("!")[0]}
    other = fence(Sequence((1, 2)), Raw(text[:1].decode()), Literal("!"))
    assert token_id not in legal(other)


@given(
    end=st.sampled_from(["</", "</end>", "\n</p>\n", "aa", "｜D"]),
    stops=st.booleans(),
    others=st.lists(st.sampled_from(["<a", "ap", "\n>", "x</", "ea"]), max_size=2),
    forbidden=st.lists(st.sampled_from(["ab", "</x", "a<", "字", "\n\n"]), max_size=2),
    written=st.text(st.sampled_from("<a/b\n>endp｜字x"), max_size=8),
)
def test_rows_are_what_walking_every_token_gives(
    end: str, stops: bool, others: list[str], forbidden: list[str], written: str
) -> None:
    tokens, rows = small_tokens(), small_compiler().rows
    automaton = TextAutomaton(
        tokens,
        rows.utf8,
        end=end.encode(),
        stops_at_end=stops,
        stops=[text.encode() for text in others],
        forbidden=[text.encode() for text in forbidden],
        counts_chars=True,
    )
    step = automaton.walk(BEGINNING, written.encode()[: random.Random(written).randint(0, 20)])
    if step is None or step.surplus is not None:
        return
    row = automaton.at(step.place)
    steps = {token_id: automaton.walk(step.place, text) for token_id, text in enumerate(tokens.texts) if text}
    inside = {token_id for token_id, found in steps.items() if found is not None and not found.surplus}
    crossing = {token_id for token_id, found in steps.items() if found is not None and found.surplus}
    assert set(tokens.ids(row.row)) == inside
    assert {token_id for token_id, _ in row.crossing} == crossing
    for most in (-1, 0, 1, 3):
        within = {token_id for token_id in inside if (found := steps[token_id]) and found.num_chars <= most}
        assert set(tokens.ids(automaton.row_within(step.place, most))) == within


def test_characters_begun_know_how_they_go_on() -> None:
    rows = small_compiler().rows.utf8
    assert len(rows) == NUM_STATES
    automaton = TextAutomaton(small_tokens(), rows, end=b"", stops_at_end=False)
    assert automaton.walk(BEGINNING, b"\xf0\x9f") is not None
    assert automaton.walk(BEGINNING, b"\xc0") is None
    assert automaton.walk(BEGINNING, b"\xed\xa0") is None
    step = automaton.walk(BEGINNING, b"\xf0\x9f\x98")
    assert step is not None
    assert step.place != Place()
