"""Engine events → the answer's events: the tokenizer's half of a generation."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from services.tokenizer import metrics
from services.tokenizer.checks.values import WrittenValue, values_to_check
from services.tokenizer.choice import Choice, Seal
from services.tokenizer.conversation import Conversation
from services.tokenizer.dialects.dialect import StreamParser
from services.tokenizer.errors import EngineLostError
from services.tokenizer.events import (
    Admitted,
    AnswerEvent,
    Ended,
    EngineEvent,
    Finished,
    FinishReason,
    Progress,
    Sampled,
)
from services.tokenizer.fence.fence import Fence
from services.tokenizer.fence.flat import describe, place_named
from services.tokenizer.fence.program import Relaxed
from services.tokenizer.history.record import Record
from services.tokenizer.routing import Routing
from services.tokenizer.sampling import Sampling
from services.vocabulary import Vocabulary

NewParser = Callable[[], StreamParser | None]
Remember = Callable[[Record], Awaitable[None]]
"""Keeps an answer's record for the next prompt."""
Check = Callable[[Sequence[WrittenValue]], Awaitable[Sequence[str]]]
"""Holds values against their schemas: warnings of those that break them."""
_LOOP = "the output went round in circles and was ended; loop_guard turns this off"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a caller wants answered; plain text stands for itself, special tokens included."""

    source: Conversation | str
    sampling: Sampling
    routing: Routing
    loop_guard: bool | None
    """None leaves it to the engine's setting."""
    warm_up_only: bool
    fence: Fence | None = None
    """What the answer must be like, once the prompt is known."""


async def answer(
    request: GenerationRequest,
    events: AsyncIterator[EngineEvent],
    vocabulary: Vocabulary,
    encoded_ms: float,
    new_parser: NewParser,
    remember: Remember,
    seal: Seal,
    check: Check,
    warnings: Sequence[str] = (),
) -> AsyncGenerator[AnswerEvent]:
    """The answer's events, as few as possible for each message of the engine.

    ``encoded_ms`` is what the prompt cost, ``warnings`` what is to be said of it. ``remember`` is awaited with what the
    next prompt needs before the first choice's Finished, so that a client's next turn finds it. ``check`` gets what the
    fence could not fully enforce, if there is any. Raises EngineLostError when ``events`` end before every choice has.
    """
    hidden_ids = vocabulary.special_ids | frozenset(request.sampling.stop_token_ids)
    source = request.source
    tool_by_name = {} if isinstance(source, str) else {tool.name: tool for tool in source.tools}
    choices: dict[int, Choice] = {}
    num_ended = 0

    def choice_of(index: int) -> Choice:
        if index not in choices:
            stop_texts = request.sampling.stop_texts
            choices[index] = Choice(index, vocabulary, hidden_ids, stop_texts, new_parser(), seal, tool_by_name)
        return choices[index]

    async for event in events:
        match event:
            case Admitted():
                hidden_ids |= event.end_token_ids
                yield event
            case Progress():
                yield event
            case Sampled():
                for found in choice_of(event.choice).push(event.ids, event.logprobs):
                    yield found
            case Ended():
                num_ended += 1
                choice = choice_of(event.choice)
                for found in choice.finish():
                    yield found
                record = choice.record()
                if record is not None and event.choice == 0:
                    await remember(record)
                relaxed = _relaxed(request, event)
                written = _written(request, event, choice, relaxed)
                if written:
                    choice.warnings += await check(written)
                yield _finished(request, event, choice, encoded_ms, (*warnings, *map(describe, relaxed)))
    if num_ended < (request.sampling.choices or 1):
        raise EngineLostError("the engine ended its answer early; what has arrived is incomplete")


def _relaxed(request: GenerationRequest, event: Ended) -> tuple[Relaxed, ...]:
    """What the program leaves out and what the engine found, each once; counted."""
    if request.fence is None:
        return ()
    places = request.fence.program.places
    found = (place_named(one, places) for one in event.relaxed)
    relaxed = tuple(dict.fromkeys((*request.fence.relaxed, *found)))
    for one in relaxed:
        metrics.count_relaxed(one.keyword)
    return relaxed


def _written(
    request: GenerationRequest, event: Ended, choice: Choice, relaxed: Sequence[Relaxed]
) -> list[WrittenValue]:
    """The values that a fence has not seen to; mostly none."""
    source, fence = request.source, request.fence
    if isinstance(source, str) or fence is None:
        return []
    is_fenced = choice.keeps(fence)
    if not relaxed and is_fenced:
        return []
    is_whole = event.reason is FinishReason.STOP and choice.stop_text is None and not choice.calls
    return values_to_check(source, relaxed, choice.calls, choice.text if is_whole else None, is_fenced=is_fenced)


def _finished(
    request: GenerationRequest, event: Ended, choice: Choice, encoded_ms: float, warnings: Sequence[str]
) -> Finished:
    reason, stop_text = event.reason, choice.stop_text
    if stop_text is not None:
        # The text was cut, even where the token that completed the stop was also the last one allowed.
        reason = FinishReason.STOP_TEXT
    elif event.stop_index is not None and event.stop_index < len(request.sampling.stop_texts):
        stop_text = request.sampling.stop_texts[event.stop_index]
    if reason is FinishReason.STOP and choice.calls:
        reason = FinishReason.CALLS
    loop = (_LOOP,) if reason is FinishReason.LOOP else ()
    all_warnings = dict.fromkeys((*warnings, *choice.warnings, *loop))
    # The engine does not know which of its tokens are thinking.
    usage = replace(event.usage, reasoning_tokens=choice.num_reasoning_tokens)
    return Finished(event.choice, reason, stop_text, usage, encoded_ms, tuple(all_warnings))
