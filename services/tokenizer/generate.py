"""Engine events → the answer's events: the tokenizer's half of a generation."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from services.tokenizer.conversation import Conversation
from services.tokenizer.detokenize import TextStream
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
    TextDelta,
)
from services.tokenizer.routing import Routing
from services.tokenizer.sampling import Sampling
from services.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a caller wants answered; plain text stands for itself, special tokens included."""

    source: Conversation | str
    sampling: Sampling
    routing: Routing
    loop_guard: bool | None
    """None leaves it to the engine's setting."""
    warm_up_only: bool


async def answer(
    request: GenerationRequest, events: AsyncIterator[EngineEvent], vocabulary: Vocabulary, encoded_ms: float
) -> AsyncGenerator[AnswerEvent]:
    """The answer's events, at most one TextDelta for each message of the engine.

    ``encoded_ms`` is what the prompt cost. Raises EngineLostError when ``events`` end before every choice has ended.
    """
    hidden_ids = vocabulary.special_ids | frozenset(request.sampling.stop_token_ids)
    text_by_choice: dict[int, TextStream] = {}
    num_ended = 0

    def text_of(choice: int) -> TextStream:
        if choice not in text_by_choice:
            text_by_choice[choice] = TextStream(vocabulary, hidden_ids, request.sampling.stop_texts)
        return text_by_choice[choice]

    async for event in events:
        match event:
            case Admitted():
                hidden_ids |= event.end_token_ids
                yield event
            case Progress():
                yield event
            case Sampled():
                text, logprobs = text_of(event.choice).push(event.ids, event.logprobs)
                if text or logprobs:
                    yield TextDelta(event.choice, text, logprobs)
            case Ended():
                num_ended += 1
                stream = text_of(event.choice)
                text, logprobs = stream.finish()
                if text or logprobs:
                    yield TextDelta(event.choice, text, logprobs)
                yield _finished(request, event, stream.stop_text, encoded_ms)
    if num_ended < (request.sampling.choices or 1):
        raise EngineLostError("the engine ended its answer early; what has arrived is incomplete")


def _finished(request: GenerationRequest, event: Ended, stop_text: str | None, encoded_ms: float) -> Finished:
    reason = event.reason
    if stop_text is not None:
        # The text was cut, even where the token that completed the stop was also the last one allowed.
        reason = FinishReason.STOP_TEXT
    elif event.stop_index is not None and event.stop_index < len(request.sampling.stop_texts):
        stop_text = request.sampling.stop_texts[event.stop_index]
    return Finished(event.choice, reason, stop_text, event.usage, encoded_ms, event.warnings)
