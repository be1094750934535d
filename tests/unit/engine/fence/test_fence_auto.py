"""Free text, triggers, and the reasoning before them."""

import pytest

from services.engine.fence.allowed import Free
from services.engine.fence.errors import FenceError
from services.engine.fence.machine import Fence, Region
from services.engine.fence.program import Literal, Program, ProgramEnd, Raw, Repeat, Sequence, Trigger
from tests.unit.engine.fence.small_fences import (
    eos,
    fence,
    legal,
    marker,
    program,
    small_compiler,
    small_tokens,
    takes,
    write,
    write_canonically,
)

CALL, END_CALL, THINK = "<tool_call>", "</tool_call>", "<think>"


def marked(lead_in: str = "\n\n<", *, bare: bool = False, end: ProgramEnd = ProgramEnd.EOS_ONLY) -> Fence:
    return fence(
        Literal("{x}</tool_call>"),
        trigger=Trigger(lead_in, marker(CALL), bare),
        markers=[CALL, END_CALL],
        end=end,
    )


def spelt(*, bare: bool = False) -> Fence:
    return fence(Literal("{x}"), trigger=Trigger("\n[call]", None, bare))


def test_the_marker_is_legal_only_behind_its_lead_in() -> None:
    one = marked()
    for text in ("", "a", "\n", "\n<", "a\n\n"):
        assert not takes(one, text, marker(CALL))
    for text in ("\n\n<", "a\n\n<", "\n\n\n\n<"):
        assert takes(one, text, marker(CALL), "{", "x")


def test_at_the_beginning_the_lead_ins_whitespace_may_be_missing() -> None:
    assert takes(marked("\n", bare=True), marker(CALL))
    assert takes(marked("\n", bare=True), "a\n", marker(CALL))
    assert not takes(marked("\n", bare=True), "a", marker(CALL))
    assert not takes(marked("\n"), marker(CALL))
    assert takes(marked("\n\n<", bare=True), "<", marker(CALL))


def test_other_markers_are_illegal_in_free_text_and_it_may_end_anywhere() -> None:
    one = marked()
    assert one.region is Region.PROSE
    assert one.is_finishable
    assert not one.is_inside
    assert marker(END_CALL) not in legal(one)
    assert marker(THINK) in legal(one)
    write(one, "hello")
    assert takes(one, eos())


def test_a_trigger_cannot_be_spelt_with_other_tokens() -> None:
    assert takes(marked("\n"), "a <tool_cal")
    assert not takes(marked("\n"), "a <tool_call>")
    assert not takes(marked("\n"), "\n<tool_call>")


def test_behind_the_trigger_everything_is_fenced() -> None:
    one = marked()
    write(one, "\n\n<", marker(CALL))
    assert one.is_inside
    expected = [*small_tokens().encode("{x}"), marker(END_CALL), eos()]
    assert list(one.forced()) == expected


def test_text_alone_may_be_a_trigger() -> None:
    one = spelt()
    assert not takes(one, "[call]")
    assert not takes(one, "a[call]")
    write(one, "a\n[call]")
    assert legal(one) == {small_tokens().encode("{x}")[0]}
    bare = spelt(bare=True)
    assert takes(bare, "[call]{x}") or takes(bare, "[call]")
    write_canonically(bare, "[call]", "{x}")
    assert bare.is_finishable


def test_a_trigger_may_end_inside_a_token() -> None:
    tokens = small_tokens()
    token_id, text = next((one, text) for one, text in enumerate(tokens.texts) if len(text) == 3 and text.isalpha())
    lead_in = "!" + text[:1].decode()
    one = fence(Literal(text[1:].decode() + "+"), trigger=Trigger(lead_in))
    write(one, "!")
    assert token_id in legal(one)
    assert one.push(token_id)
    assert legal(one) == {tokens.encode("+")[0]}
    other = fence(Literal("+"), trigger=Trigger(lead_in))
    write(other, "!")
    assert token_id not in legal(other)
    assert not other.push(token_id)


def test_free_text_without_anything_to_watch_for_is_free() -> None:
    assert isinstance(fence(Literal("x"), trigger=Trigger("", marker(CALL))).allowed(), Free)
    ended = fence(Literal("x"), end=ProgramEnd.FREE)
    write(ended, "x")
    assert isinstance(ended.allowed(), Free)


def test_behind_a_program_free_text_may_trigger_again() -> None:
    one = marked(end=ProgramEnd.FREE)
    for _ in range(3):
        write(one, "\n\n<", marker(CALL))
        write_canonically(one, "{x}", marker(END_CALL))
        assert one.region is Region.PROSE
        write(one, " more")
    assert takes(one, eos())


def test_calls_are_limited() -> None:
    one = fence(Sequence((1,)), Repeat(2, 1, 2, ","), Literal("x"), trigger=Trigger("\n", marker(CALL)), markers=[CALL])
    write(one, "\n", marker(CALL))
    write_canonically(one, "x", ",", "x")
    assert legal(one) == {eos()}


def gated(*, trigger: Trigger | None = None) -> Fence:
    compiled = small_compiler().compile(
        program(Literal("x"), trigger=trigger, markers=[CALL], gate=True), marker(THINK)
    )
    return Fence(compiled)


def test_nothing_is_fenced_before_the_reasoning_ends() -> None:
    one = gated()
    assert one.region is Region.REASONING
    write(one, "let me <tool_cal", "l> think")
    assert marker(THINK) in legal(one)
    assert not legal(one) & {marker(CALL), eos()}
    write(one, marker(THINK))
    assert legal(one) == {small_tokens().encode("x")[0]}


def test_reasoning_may_end_the_answer_only_where_no_call_is_required() -> None:
    assert not takes(gated(), eos())
    assert takes(gated(trigger=Trigger("", marker(CALL))), eos())


def test_a_trigger_inside_reasoning_does_not_count() -> None:
    one = gated(trigger=Trigger("\n[call]"))
    write(one, "\n[call]abc")
    assert one.region is Region.REASONING
    write(one, marker(THINK), "\n[call]")
    assert one.is_inside


def test_reasoning_that_ends_inside_a_draft_fences_the_clone_only() -> None:
    one = gated()
    draft = one.clone()
    write(draft, "a", marker(THINK))
    assert legal(draft) == {small_tokens().encode("x")[0]}
    assert one.region is Region.REASONING


def test_a_gate_needs_the_token_that_opens_it() -> None:
    with pytest.raises(FenceError, match="reasoning_gate"):
        small_compiler().compile(Program((Raw(),), has_reasoning_gate=True))
