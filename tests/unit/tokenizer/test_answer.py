"""Engine events → answer events, without a server."""

from collections.abc import AsyncIterator, Sequence

import pytest

from services.tokenizer.checks.values import WrittenValue
from services.tokenizer.dialects.plain import PlainParser
from services.tokenizer.errors import EngineLostError
from services.tokenizer.events import (
    Admitted,
    AnswerEvent,
    Cached,
    Ended,
    EngineEvent,
    Finished,
    FinishReason,
    Progress,
    ReasoningFinished,
    Sampled,
    TextDelta,
    Timings,
    Usage,
)
from services.tokenizer.generate import GenerationRequest, NewParser, Remember, answer
from services.tokenizer.history.record import Record
from services.tokenizer.routing import Routing
from services.tokenizer.sampling import Sampling
from services.vocabulary import Vocabulary

END_ID, SPECIAL_ID = 300, 256
VOCABULARY = Vocabulary([*(bytes([i]) for i in range(256)), b"<s>", *[b""] * 43, b"</end>"], frozenset({SPECIAL_ID}))
NOTHING = Cached((), 3, None)
USAGE = Usage(3, NOTHING, 2, 0, 0, 0, Timings(1, 2, 3, 4))
ADMITTED = Admitted(3, NOTHING, "engine", frozenset({END_ID}))


def tokens(text: str, choice: int = 0) -> Sampled:
    return Sampled(choice, tuple(text.encode()), ())


def ended(reason: FinishReason = FinishReason.STOP, choice: int = 0, stop_index: int | None = None) -> Ended:
    return Ended(choice, reason, USAGE, stop_index, ())


async def forget(record: Record) -> None:
    pass


def sealed(record: Record) -> bytes:
    return f"sealed {record.text!r} {record.reasoning!r}".encode()


async def unchecked(values: Sequence[WrittenValue]) -> list[str]:
    raise AssertionError(f"nothing was relaxed, and there is a check of {values}")


async def answered(
    *events: EngineEvent,
    stop_texts: tuple[str, ...] = (),
    choices: int | None = None,
    remember: Remember = forget,
    new_parser: NewParser = lambda: None,
    warnings: tuple[str, ...] = (),
) -> list[AnswerEvent]:
    async def stream() -> AsyncIterator[EngineEvent]:
        for event in events:
            yield event

    sampling = Sampling(stop_texts=stop_texts, choices=choices)
    request = GenerationRequest("x", sampling, Routing("t", "t", "k"), None, warm_up_only=False)
    answering = answer(request, stream(), VOCABULARY, 7.0, new_parser, remember, sealed, unchecked, warnings)
    return [event async for event in answering]


async def test_one_delta_for_each_message() -> None:
    events = await answered(ADMITTED, Progress(1, 3, None), tokens("Hel"), tokens("lo"), ended())
    assert events == [
        ADMITTED,
        Progress(1, 3, None),
        TextDelta(0, "Hel", ()),
        TextDelta(0, "lo", ()),
        Finished(0, FinishReason.STOP, None, USAGE, 7.0, ()),
    ]


async def test_control_tokens_are_no_text() -> None:
    events = await answered(ADMITTED, Sampled(0, (SPECIAL_ID, ord("a"), END_ID), ()), ended())
    assert events[1] == TextDelta(0, "a", ())


async def test_an_unfinished_character_shows_at_the_end() -> None:
    events = await answered(ADMITTED, Sampled(0, (0xC3,), ()), ended(FinishReason.LENGTH))
    assert [type(event) for event in events] == [Admitted, TextDelta, Finished]
    assert events[1] == TextDelta(0, "\ufffd", ())


async def test_a_stop_cuts_the_text_and_names_itself() -> None:
    events = await answered(
        ADMITTED, tokens("a\n"), tokens("\nb"), ended(FinishReason.STOP_TEXT, stop_index=0), stop_texts=("\n\n",)
    )
    assert events[1:] == [
        TextDelta(0, "a", ()),
        Finished(0, FinishReason.STOP_TEXT, "\n\n", USAGE, 7.0, ()),
    ]


async def test_a_stop_wins_over_a_limit_reached_by_the_same_token() -> None:
    events = await answered(ADMITTED, tokens("ab"), ended(FinishReason.LENGTH), stop_texts=("b",))
    assert isinstance(events[-1], Finished)
    assert (events[-1].reason, events[-1].stop_text) == (FinishReason.STOP_TEXT, "b")


async def test_held_text_is_flushed_before_the_end() -> None:
    events = await answered(ADMITTED, tokens("a\n"), ended(), stop_texts=("\n\n",))
    assert events[1:3] == [TextDelta(0, "a", ()), TextDelta(0, "\n", ())]


async def test_choices_do_not_mix() -> None:
    events = await answered(
        ADMITTED,
        Sampled(0, (0xC3,), ()),
        Sampled(1, tuple(b"x"), ()),
        Sampled(0, (0xA9,), ()),
        ended(choice=1),
        ended(choice=0),
        choices=2,
    )
    assert [event for event in events if isinstance(event, TextDelta)] == [TextDelta(1, "x", ()), TextDelta(0, "é", ())]


async def test_first_choice_is_remembered_before_it_ends() -> None:
    kept: list[str] = []

    async def remember(record: Record) -> None:
        kept.append(record.text)

    events = await answered(
        ADMITTED, tokens("a", 0), tokens("b", 1), ended(choice=1), ended(choice=0), choices=2, remember=remember
    )
    assert kept == ["a"]
    assert [event.choice for event in events if isinstance(event, Finished)] == [1, 0]


async def test_every_choice_seals_its_own_thinking() -> None:
    events = await answered(
        ADMITTED,
        tokens("<think>a</think>x", 0),
        tokens("y", 1),
        tokens("<think>c", 2),
        *(ended(choice=choice) for choice in range(3)),
        choices=3,
        new_parser=lambda: PlainParser(starts_in_reasoning=False),
    )
    assert [event for event in events if isinstance(event, ReasoningFinished)] == [
        ReasoningFinished(0, b"sealed '<think>a</think>' 'a'"),
        ReasoningFinished(2, b"sealed '<think>c' 'c'"),
    ]


async def test_what_is_to_be_said_of_the_prompt_is_said_at_the_end() -> None:
    events = await answered(ADMITTED, tokens("a"), ended(), warnings=("advised",))
    assert isinstance(events[-1], Finished)
    assert events[-1].warnings == ("advised",)


async def test_what_was_never_answered_is_not_remembered() -> None:
    async def remember(record: Record) -> None:
        raise AssertionError(record)

    await answered(ADMITTED, Sampled(0, (END_ID,), ()), ended(), remember=remember)


@pytest.mark.parametrize("choices", [None, 2])
async def test_an_engine_that_just_ends_is_an_error(choices: int | None) -> None:
    ends = [] if choices is None else [ended(choice=0)]
    with pytest.raises(EngineLostError):
        await answered(ADMITTED, tokens("a"), *ends, choices=choices)
