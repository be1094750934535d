"""Free text, triggers, and the reasoning before them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.fence.allowed import Free
from services.engine.fence.errors import FenceError
from services.engine.fence.machine import Fence, Region
from services.engine.fence.program import Literal, Program, ProgramEnd, Raw, Repeat, Sequence, TextTrigger, Trigger
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


def two_ways(trigger: Trigger, *, end: ProgramEnd = ProgramEnd.EOS_ONLY) -> Fence:
    texts = (TextTrigger("<f=", 1), TextTrigger("f=g", 2))
    nodes = (Literal("{x}"), Literal("y"), Literal("z"))
    markers = (marker(CALL), marker(END_CALL))
    one = Program(nodes, trigger=trigger, marker_ids=markers, end=end, text_triggers=texts)
    return Fence(small_compiler().compile(one, marker("｜DSML｜"), marker(THINK)))


@pytest.mark.parametrize("trigger", [Trigger("\n\n", marker(CALL), True), Trigger("\n[call]", None, True)])
def test_each_trigger_leads_into_its_own_entry(trigger: Trigger) -> None:
    for before in ("", "a", "a\n\n", "<", "<f", "<f<", "é"):
        one = two_ways(trigger)
        write(one, before + "<f")
        assert not one.is_inside
        assert one.is_finishable
        write(one, "=")
        assert one.region is Region.STRUCTURE
        assert list(one.forced()) == [*small_tokens().encode("y"), eos()]
    one = two_ways(trigger)
    write(one, "if=g")
    assert list(one.forced()) == [*small_tokens().encode("z"), eos()]
    one = two_ways(trigger)
    write(one, *("\n\n", marker(CALL)) if trigger.marker_id is not None else ("[call]",))
    assert list(one.forced()) == [*small_tokens().encode("{x}"), eos()]


@given(text=st.text(st.sampled_from("<f=g\n[cal]é"), max_size=12), is_marked=st.booleans())
@settings(max_examples=50)
def test_free_text_goes_on_exactly_up_to_the_first_text_trigger(text: str, is_marked: bool) -> None:
    one = two_ways(Trigger("\n\n", marker(CALL), True) if is_marked else Trigger("\n[call]", None))
    triggers = ["<f=", "f=g", *([] if is_marked else ["\n[call]"])]
    written = ""
    for character in text:
        accepted = {token_id for token_id in range(small_tokens().num_ids) if one.clone().push(token_id)}
        assert accepted == legal(one)
        written += character
        if "[call]" in written and "\n[call]" not in written and not is_marked:
            assert not takes(one, character)
            return
        write(one, character)
        is_started = any(trigger in written for trigger in triggers)
        assert one.is_inside is is_started
        if is_started:
            return


NAMES = ["read", "read_file", "read_file_2", *(f"read_{number}" for number in range(97))]


def of_names() -> Fence:
    texts = tuple(TextTrigger(f"<f={name}>", entry) for entry, name in enumerate(NAMES))
    nodes = tuple(Literal(f"{{{entry}}}") for entry in range(len(NAMES)))
    one = Program(nodes, trigger=Trigger("\n\n", marker(CALL), True), text_triggers=texts)
    return Fence(small_compiler().compile(one))


def test_of_a_hundred_names_the_one_that_is_closed_counts() -> None:
    for entry, name in enumerate(NAMES):
        one = of_names()
        write(one, f"a<f={name}")
        assert not one.is_inside
        write(one, ">")
        assert list(one.forced()) == [*small_tokens().encode(f"{{{entry}}}"), eos()]


@given(st.lists(st.sampled_from(["<f=", "read", "_file", "_2", "_9", ">", " ", "é"]), max_size=8))
@settings(max_examples=50)
def test_names_that_no_trigger_has_are_text(pieces: list[str]) -> None:
    one, written = of_names(), ""
    for character in "".join(pieces):
        written += character
        write(one, character)
        begun = [entry for entry, name in enumerate(NAMES) if written.endswith(f"<f={name}>")]
        assert one.is_inside is bool(begun)
        if begun:
            assert list(one.forced()) == [*small_tokens().encode(f"{{{begun[0]}}}"), eos()]
            return


def test_a_text_trigger_may_end_inside_a_token() -> None:
    tokens = small_tokens()
    token_id, text = next((one, text) for one, text in enumerate(tokens.texts) if len(text) == 3 and text.isalpha())
    marked, trigger = Trigger("\n", marker(CALL)), "!" + text[:1].decode()

    def behind(*nodes: Literal) -> Fence:
        one = small_compiler().compile(Program(nodes, trigger=marked, text_triggers=(TextTrigger(trigger, 1),)))
        fence = Fence(one)
        write(fence, "!")
        return fence

    fits, other = Literal(text[1:].decode() + "+"), Literal("+")
    one = behind(other, fits)
    assert token_id in legal(one)
    assert one.push(token_id)
    assert legal(one) == {tokens.encode("+")[0]}
    assert token_id not in legal(behind(fits, other))
    assert not behind(fits, other).push(token_id)


def test_a_text_trigger_counts_even_where_the_lead_in_ends_with_it() -> None:
    texts = (TextTrigger("a\n", 1),)
    nodes = (Literal("x"), Literal("y"))
    one = Fence(small_compiler().compile(Program(nodes, trigger=Trigger("\n", marker(CALL)), text_triggers=texts)))
    assert takes(one, "b\n", marker(CALL))
    write(one, "a\n")
    assert list(one.forced()) == [*small_tokens().encode("y"), eos()]


def test_a_text_trigger_in_thinking_is_a_thought() -> None:
    one = two_ways(Trigger("\n\n", marker(CALL)))
    write(one, marker(THINK), "a <f=", "f=g", marker("｜DSML｜"), "b")
    assert one.region is Region.PROSE
    write(one, "<f=")
    assert one.region is Region.STRUCTURE


def test_text_triggers_fire_again_behind_a_program() -> None:
    one = two_ways(Trigger("\n\n", marker(CALL)), end=ProgramEnd.FREE)
    for _ in range(2):
        write(one, "a<f=")
        write_canonically(one, "y")
        write(one, "\n\n", marker(CALL))
        write_canonically(one, "{x}")
    assert one.is_finishable


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


OPENED = "｜DSML｜"
"""Stands for the token that opens thinking; ``THINK`` closes it."""


def thinking(trigger: Trigger, *, end: ProgramEnd = ProgramEnd.EOS_ONLY) -> Fence:
    call = program(Literal("{x}</tool_call>"), trigger=trigger, markers=[CALL, END_CALL], end=end)
    return Fence(small_compiler().compile(call, marker(THINK), marker(OPENED)))


MARKED, SPELT = Trigger("\n", marker(CALL), True), Trigger("\n[call]", None, True)


@pytest.mark.parametrize(("trigger", "call"), [(MARKED, ("\n", marker(CALL))), (SPELT, ("\n[call]",))])
def test_thinking_that_the_model_opens_starts_no_call(trigger: Trigger, call: tuple[str | int, ...]) -> None:
    one = thinking(trigger)
    assert one.region is Region.PROSE
    write(one, " \n", marker(OPENED))
    assert one.region is Region.REASONING
    # As text, the markup is a thought; as a token it is none.
    write(one, 'I call\n<tool_call>{"x"} and \n[call]{x}</tool_call>\n[call]')
    assert one.region is Region.REASONING
    assert not legal(one) & {marker(CALL), marker(END_CALL)}
    assert one.is_finishable
    write(one, marker(THINK))
    assert one.region is Region.PROSE
    write(one, "So:", *call)
    assert one.is_inside
    assert list(one.forced()) == [*small_tokens().encode("{x}"), marker(END_CALL), eos()]


def test_behind_thinking_the_answer_begins() -> None:
    for trigger, call in ((MARKED, marker(CALL)), (SPELT, "[call]")):
        one = thinking(trigger)
        write(one, marker(OPENED), "hm", marker(THINK), call)
        assert one.is_inside


def test_a_tag_behind_the_answers_beginning_opens_nothing() -> None:
    one = thinking(MARKED)
    write(one, "a", marker(OPENED), "b\n", marker(CALL))
    assert one.is_inside
    again = thinking(MARKED)
    write(again, marker(OPENED), marker(THINK), marker(OPENED), "\n", marker(CALL))
    assert again.is_inside
    later = thinking(MARKED, end=ProgramEnd.FREE)
    write(later, marker(CALL))
    write_canonically(later, "{x}", marker(END_CALL), marker(OPENED), "\n", marker(CALL))
    assert later.is_inside


def test_the_tags_of_thinking_cannot_be_spelt_with_other_tokens() -> None:
    assert not takes(thinking(MARKED), OPENED)
    assert takes(thinking(MARKED), OPENED[:-1], marker(OPENED))
    assert takes(thinking(MARKED), marker(OPENED), "a <thin", "k <think")
    assert not takes(thinking(MARKED), marker(OPENED), "a <think>")
    assert not takes(gated(), "<think>")


def test_thinking_that_opens_inside_a_draft_holds_the_clone_only() -> None:
    one = thinking(MARKED)
    draft = one.clone()
    write(draft, marker(OPENED), "\n")
    assert marker(CALL) not in legal(draft)
    assert takes(one, "\n", marker(CALL))


def test_without_the_token_that_opens_it_there_is_no_thinking() -> None:
    call = program(Literal("{x}"), trigger=MARKED, markers=[CALL])
    one = Fence(small_compiler().compile(call, marker(THINK)))
    write(one, marker(OPENED), "\n", marker(CALL))
    assert one.is_inside
