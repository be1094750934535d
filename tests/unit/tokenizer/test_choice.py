"""One choice of an answer: its events, and the record of it for the next prompt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tokenizer.choice import Choice
from services.tokenizer.conversation import Conversation, Message, Role
from services.tokenizer.detokenize import decode
from services.tokenizer.dialects.call_free import CallFreeParser
from services.tokenizer.dialects.dialect import StreamParser
from services.tokenizer.dialects.events import ToolSpec
from services.tokenizer.dialects.plain import PlainParser
from services.tokenizer.dialects.registry import CHATML_JSON, QWEN_XML
from services.tokenizer.events import (
    AnswerEvent,
    CallDelta,
    CallFinished,
    CallStarted,
    ReasoningDelta,
    ReasoningFinished,
    TextDelta,
    TokenLogprob,
    TokenLogprobs,
)
from services.tokenizer.fence.fence import Fences, PromptEnd
from services.tokenizer.history.record_format import decode_record, encode_record
from services.vocabulary import Vocabulary

SPECIAL, END, PADDED = 256, 257, 258
PIECES = [b"lo\n\nwor", b"ab", b"\n\n", b"END", "é".encode(), b"<tool_call>", b"", b">\n"]
VOCABULARY = Vocabulary([*(bytes([i]) for i in range(256)), b"<s>", b"</s>", b"", *PIECES], frozenset({SPECIAL}))
HIDDEN = frozenset({SPECIAL, END})
READ = ToolSpec("read", None, '{"type": "object"}')
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "é\\n", "n": 1e5}}\n</tool_call>'
ARGUMENTS = '{"path": "é\\n", "n": 1e5}'


def ids_of(*parts: str | int | bytes) -> list[int]:
    """A string byte by byte, bytes as the one piece that they are, ids as they are."""
    ids: list[int] = []
    for part in parts:
        match part:
            case int():
                ids.append(part)
            case bytes():
                ids.append(259 + PIECES.index(part))
            case str():
                ids += part.encode()
    return ids


def new_choice(parser: StreamParser | None = None, *stop_texts: str) -> Choice:
    return Choice(0, VOCABULARY, HIDDEN, stop_texts, parser, encode_record, {})


def calling() -> StreamParser:
    return CHATML_JSON.parser([READ], starts_in_reasoning=False)


def run(choice: Choice, ids: list[int], step: int = 1000) -> list[AnswerEvent]:
    events: list[AnswerEvent] = []
    for start in range(0, len(ids), step):
        events += choice.push(ids[start : start + step], ())
    return events + choice.finish()


def said(events: list[AnswerEvent]) -> tuple[str, str]:
    """Thinking and text."""
    thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    return thought, "".join(event.text for event in events if isinstance(event, TextDelta))


def test_the_record_has_the_sampled_ids_without_the_end_token() -> None:
    # Not how the text would be encoded.
    ids = ids_of("a", b"ab", "b", "é")
    choice = new_choice()
    assert said(run(choice, [*ids, END, SPECIAL])) == ("", "aabbé")
    record = choice.record()
    assert record is not None
    assert record.ids.tolist() == ids
    assert record.ids.dtype == "<i4"
    assert (record.text, record.content, record.reasoning, record.calls) == ("aabbé", "aabbé", "", ())


def test_hidden_tokens_inside_stay_in_the_record() -> None:
    ids = ids_of("a", SPECIAL, "b")
    choice = new_choice()
    assert said(run(choice, [*ids, END])) == ("", "ab")
    record = choice.record()
    assert record is not None
    assert (record.ids.tolist(), record.text, record.content) == (ids, "a<s>b", "ab")


def test_nothing_sampled_is_no_record() -> None:
    for ids in ([], [END], [SPECIAL, END]):
        choice = new_choice()
        assert run(choice, ids) == []
        assert choice.record() is None


@pytest.mark.parametrize(
    ("ids", "kept"),
    [
        (ids_of("ab\n\n", END), "ab"),
        (ids_of("ab\n\ncd"), "ab"),
        (ids_of(b"ab", b"\n\n", "c"), "ab"),
        (ids_of("a", SPECIAL, "b\n", SPECIAL, "\n"), "a<s>b"),
        (ids_of("é\n\n"), "é"),
    ],
)
def test_a_stop_text_between_tokens_is_cut_off(ids: list[int], kept: str) -> None:
    choice = new_choice(None, "\n\n")
    _, text = said(run(choice, ids, 2))
    assert choice.stop_text == "\n\n"
    record = choice.record()
    assert record is not None
    assert (record.text, record.content) == (kept, text)
    assert record.ids.tolist() == ids[: len(record.ids)]


@pytest.mark.parametrize(
    "ids",
    [
        ids_of("hel", b"lo\n\nwor", "ld"),
        ids_of(b"\n\n", "a"),
        # What is no UTF-8 becomes three bytes of text: as many as it has with the stop text behind it.
        ids_of(0xFF, "\n\n", "a"),
        ids_of("a", 0xE2, 0x82, "\n\n"),
    ],
)
def test_a_stop_text_that_is_not_between_tokens_is_no_record(ids: list[int]) -> None:
    choice = new_choice(None, "\n\n")
    run(choice, ids)
    assert choice.stop_text == "\n\n"
    assert choice.record() is None


@given(st.lists(st.sampled_from([*b"ab\nEND\xc3\xa9\xff", *range(256, 266)]), max_size=20), st.integers(1, 5))
def test_a_record_spells_what_the_client_got(ids: list[int], step: int) -> None:
    choice = new_choice(None, "\n\n", "END")
    _, text = said(run(choice, ids, step))
    record = choice.record()
    if record is not None:
        assert record.content == text
        assert record.ids.tolist() == ids[: len(record.ids)]
        assert decode(VOCABULARY, (i for i in record.ids.tolist() if i not in HIDDEN)) == text
        assert record.text == decode(VOCABULARY, record.ids.tolist())
    elif choice.stop_text is None:
        assert all(i in HIDDEN for i in ids)


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_reasoning_text_and_calls(step: int) -> None:
    written = f"<think>\nhm <s>\n</think>\n\nLet me look.\n{CALL}\n{CALL}"
    choice = new_choice(calling())
    events = run(choice, ids_of(written, END), step)
    assert said(events) == ("hm <s>", "Let me look.")
    started = [event for event in events if isinstance(event, CallStarted)]
    assert [(event.index, event.name, event.is_custom) for event in started] == [(0, "read", False), (1, "read", False)]
    assert len({event.call_id for event in started}) == 2
    for index in (0, 1):
        deltas = [event.fragment for event in events if isinstance(event, CallDelta) and event.index == index]
        assert "".join(deltas) == ARGUMENTS
        assert CallFinished(0, index, ARGUMENTS) in events
    record = choice.record()
    assert record is not None
    assert choice.calls
    assert (record.text, record.reasoning, record.content) == (written, "hm <s>", "Let me look.")
    assert [(call.call_id, call.name, call.arguments) for call in record.calls] == [
        (event.call_id, "read", ARGUMENTS) for event in started
    ]


def test_custom_calls_are_free_text() -> None:
    choice = new_choice(CHATML_JSON.parser([ToolSpec("sh", None, "{}", is_custom=True)], starts_in_reasoning=False))
    run(choice, ids_of('<tool_call>\n{"name": "sh", "arguments": {"input": "ls\\n\\"x\\""}}\n</tool_call>'))
    record = choice.record()
    assert record is not None
    assert [(call.arguments, call.is_custom) for call in record.calls] == [('ls\n"x"', True)]


@pytest.mark.parametrize(
    "written",
    [
        '<tool_call>\n{"name": "read", "arguments": {"path": ',
        '<tool_call>\n{"name": "read", "arguments": {"path": ]}}\n</tool_call>',
        "<tool_call>\nno JSON at all\n</tool_call>",
        f'{CALL}\n<tool_call>\n{{"name": "read", "argum',
    ],
)
def test_a_malformed_call_is_a_warning_and_no_record(written: str) -> None:
    choice = new_choice(calling())
    run(choice, ids_of("Well.", written, END))
    assert len(choice.warnings) == 1
    assert choice.warnings[0].startswith("a tool call could not be read: ")
    assert choice.record() is None
    assert bool(choice.calls) == written.startswith(CALL)


def test_neighbouring_deltas_are_one() -> None:
    choice = new_choice(calling())
    events = choice.push(ids_of(f"Let me\n look.\n{CALL}\n{CALL}"), ())
    kinds = [CallStarted, CallDelta, CallFinished]
    assert [type(event) for event in events] == [TextDelta, *kinds, *kinds]
    thinking = new_choice(PlainParser(starts_in_reasoning=True))
    events = thinking.push(ids_of("one <b> two\n</think>\n\nthree"), ())
    assert [type(event) for event in events] == [ReasoningDelta, ReasoningFinished, TextDelta]
    assert said(events) == ("one <b> two", "three")


@pytest.mark.parametrize("step", [1, 2, 1000])
@pytest.mark.parametrize(
    ("ids", "sealed"),
    [
        (ids_of("<think>\nhm é\n</think>\n\nYes.", END), "<think>\nhm é\n</think>"),
        (ids_of("<think>\nhm é\n</think>", b"\n\n", CALL, END), "<think>\nhm é\n</think>"),
        # Cut off by the limit, by a stop text, and by a call.
        (ids_of("<think>\nhm é"), "<think>\nhm é"),
        (ids_of("<think>\nhm éEND\n</think>Yes."), "<think>\nhm é"),
        (ids_of("<think>\nhm é", CALL, END), "<think>\nhm é"),
        # A token that reaches beyond the thinking is not of it; one that spells what the client did not get neither.
        (ids_of("<think>\nhm é</think", b">\n", "Yes."), "<think>\nhm é</think"),
        (ids_of("<think>\nhm", SPECIAL, " é\n</think>\n\nYes."), ""),
    ],
)
def test_the_end_of_thinking_is_told_once_with_its_ids(ids: list[int], sealed: str, step: int) -> None:
    choice = new_choice(calling(), "END")
    events = run(choice, ids, step)
    kinds = [type(event) for event in events]
    assert kinds.count(ReasoningFinished) == 1
    end = kinds.index(ReasoningFinished)
    assert ReasoningDelta not in kinds[end:]
    assert set(kinds[:end]) == {ReasoningDelta}
    told = events[end]
    assert isinstance(told, ReasoningFinished)
    record = decode_record(told.capsule)
    assert (record.text, record.reasoning, record.content, record.calls) == (sealed, "hm é", "", ())
    assert record.ids.tolist() == ids[: len(record.ids)]
    assert decode(VOCABULARY, record.ids.tolist()) == sealed


@pytest.mark.parametrize("written", ["Yes.", "<think>\n\n</think>\n\nYes.", CALL, ""])
def test_without_thinking_there_is_no_end_of_it(written: str) -> None:
    assert not any(isinstance(event, ReasoningFinished) for event in run(new_choice(calling()), ids_of(written, END)))


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_calls_that_are_forbidden_reach_nobody(step: int) -> None:
    ids = ids_of(f"<think>\nhm\n</think>\n\nLet me look.\n{CALL}\n{CALL}\nDone.", END)
    choice = new_choice(CallFreeParser(calling()))
    events = run(choice, ids, step)
    assert {type(event) for event in events} == {ReasoningDelta, ReasoningFinished, TextDelta}
    assert said(events) == ("hm", "Let me look.\nDone.")
    assert not choice.calls
    assert choice.warnings == ["a call of read was left out: the request allows no calls"] * 2
    record = choice.record()
    assert record is not None
    assert (record.ids.tolist(), record.content, record.calls) == (ids[:-1], "Let me look.\nDone.", ())


def test_a_forbidden_call_that_breaks_off_reaches_nobody_either() -> None:
    choice = new_choice(CallFreeParser(calling()))
    assert said(run(choice, ids_of('Well.\n<tool_call>\n{"name": "read", "arguments": {"pa'))) == ("", "Well.")
    choice = new_choice(CallFreeParser(calling()))
    prose = "Write <tool_call>\nno JSON at all\n</tool_call>"
    assert said(run(choice, ids_of(prose))) == ("", prose)


def test_a_call_is_announced_as_the_client_named_its_tool() -> None:
    tools = (ToolSpec("files__read", None, "{}", namespace="files"), ToolSpec("a__b", None, "{}"))
    parser = CHATML_JSON.parser(tools, starts_in_reasoning=False)
    choice = Choice(0, VOCABULARY, HIDDEN, (), parser, encode_record, {tool.name: tool for tool in tools})
    written = "".join(CALL.replace("read", name) for name in ("files__read", "a__b", "files__other"))
    started = [event for event in run(choice, ids_of(written)) if isinstance(event, CallStarted)]
    assert [(event.namespace, event.name) for event in started] == [
        ("files", "read"),
        (None, "a__b"),
        (None, "files__other"),
    ]
    record = choice.record()
    assert record is not None
    assert [call.name for call in record.calls] == ["files__read", "a__b", "files__other"]


def with_logprobs(parser: StreamParser | None, ids: list[int], step: int, *stop_texts: str) -> list[AnswerEvent]:
    """The answer's events, where every token's log-probability is minus its place among all tokens."""
    choice, events = new_choice(parser, *stop_texts), list[AnswerEvent]()
    for start in range(0, len(ids), step):
        part = ids[start : start + step]
        events += choice.push(
            part, [TokenLogprobs(TokenLogprob(one, -float(at)), ()) for at, one in enumerate(part, start)]
        )
    return events + choice.finish()


def reported(events: list[AnswerEvent]) -> list[TokenLogprob]:
    return [one.sampled for event in events if isinstance(event, TextDelta) for one in event.logprobs]


ANSWERS = [
    ("", "Hello, é<b>\n\n"),
    ("<think>\nhm <a\n</think>\n\n", "<b>hi</b>"),
    ("<think>\n\n</think>\n\n", "a\n\n\nb"),
    ("<think>a</think>", "aaa"),
]


@pytest.mark.parametrize(("before", "text"), ANSWERS)
@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("has_tools", [False, True])
def test_text_has_the_log_probabilities_of_its_own_tokens(before: str, text: str, step: int, has_tools: bool) -> None:
    parser = calling() if has_tools else PlainParser(starts_in_reasoning=False)
    events = with_logprobs(parser, [*ids_of(before, text), END], step)
    assert said(events)[1] == text
    first = len(before.encode())
    assert reported(events) == [TokenLogprob(one, -float(at)) for at, one in enumerate(ids_of(text), first)]


@pytest.mark.parametrize("step", [1, 4, 1000])
def test_calls_and_thinking_have_no_log_probabilities(step: int) -> None:
    before, between, after = "<think>\nLook.\n</think>\n\n", "Look.", "\n\nLook. path"
    events = with_logprobs(calling(), ids_of(before, between, "\n", CALL, after), step)
    assert said(events) == ("Look.", between + after)
    places = [-one.logprob for one in reported(events)]
    first, second = len(before), len(ids_of(before, between, "\n", CALL))
    assert places == [*range(first, first + len(between)), *range(second, second + len(after))]


@given(st.text("<>/thinkol_ca\n{}é", max_size=24), st.sampled_from(["", "<think>\n", "<think>"]), st.booleans())
def test_all_of_any_text_is_accounted_for(answer: str, before: str, has_tools: bool) -> None:
    parser = calling() if has_tools else PlainParser(starts_in_reasoning=False)
    ids = ids_of(before, answer)
    events = with_logprobs(parser, ids, 5)
    found = reported(events)
    assert bytes(one.token_id for one in found).decode() == said(events)[1]
    assert sorted(-one.logprob for one in found) == [-one.logprob for one in found]


def test_log_probabilities_are_held_with_their_text() -> None:
    choice = new_choice(None, "END")
    entries = [TokenLogprobs(TokenLogprob(one, -1.0), ()) for one in b"aENxEND"]
    assert choice.push(list(b"aEN"), entries[:3]) == [TextDelta(0, "a", (entries[0],))]
    assert choice.push(list(b"xEND"), entries[3:]) == [TextDelta(0, "ENx", tuple(entries[1:4]))]
    assert choice.finish() == []


def test_markup_is_text_where_there_is_no_parser() -> None:
    choice = new_choice()
    assert said(run(choice, ids_of(CALL))) == ("", CALL)
    assert not choice.calls


def test_a_call_that_free_text_had_before_the_program_began_is_not_the_fences() -> None:
    asked = Conversation((Message(Role.USER, "x"),), {}, tools=(READ,))
    fence = Fences(QWEN_XML, {"<think>": 1, "</think>": 2}).derive(asked, PromptEnd(False, False, False))
    assert fence is not None
    read, other = "<function=read>\n</function>", "<function=other>\n</function>"
    for answer, is_kept in ((read, True), (f"{other}\n{read}", False), (other, False), ("a <function= b", True)):
        choice = new_choice(QWEN_XML.parser([READ], starts_in_reasoning=False))
        run(choice, ids_of(answer))
        assert choice.keeps(fence) is is_kept
    assert choice.text == "a <function= b"
