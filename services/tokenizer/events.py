"""What an engine tells the tokenizer, and what the tokenizer tells its caller.

engine:  Admitted, Progress*, Sampled*, Ended per choice
caller:  Admitted, Progress*, then per choice ReasoningDelta*, TextDelta*, calls, Finished
"""

from dataclasses import dataclass
from enum import Enum, auto

from services.tokenizer.fence.program import Relaxed


class Tier(Enum):
    """Where cached state lay."""

    UNSPECIFIED = auto()
    VRAM = auto()
    HOST = auto()
    SSD = auto()
    REMOTE = auto()


class FinishReason(Enum):
    """Why an answer ended."""

    STOP = auto()
    STOP_TEXT = auto()
    LENGTH = auto()
    CALLS = auto()
    LOOP = auto()
    CANCELLED = auto()


@dataclass(frozen=True, slots=True)
class Miss:
    """Why prompt tokens were computed again."""

    reason: str
    at_token: int | None
    segment: str | None = None
    """The part of the conversation that ``at_token`` lies in."""


@dataclass(frozen=True, slots=True)
class Cached:
    """The part of the prompt that was not computed again."""

    tokens_by_tier: tuple[tuple[Tier, int], ...]
    recomputed_tokens: int
    miss: Miss | None


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds of wall time in the engine."""

    queued_ms: float
    restored_ms: float
    prefilled_ms: float
    decoded_ms: float


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one choice."""

    prompt_tokens: int
    cached: Cached
    output_tokens: int
    reasoning_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    timings: Timings


@dataclass(frozen=True, slots=True)
class Admitted:
    """An engine has taken the request; ``cached`` is provisional."""

    prompt_tokens: int
    cached: Cached
    engine_id: str
    end_token_ids: frozenset[int]
    """The model's end tokens: control, not text."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Of a long or waiting prompt."""

    prefilled_tokens: int
    prompt_tokens: int
    queue_position: int | None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One alternative; ``logprob`` is a natural logarithm."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A sampled token and the likeliest ones."""

    sampled: TokenLogprob
    top: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """Sampled ids in order; ``logprobs`` has as many entries, or none."""

    choice: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The engine has finished a choice; ``stop_index`` points into the request's stop texts."""

    choice: int
    reason: FinishReason
    usage: Usage
    stop_index: int | None
    relaxed: tuple[Relaxed, ...]
    """Places are nodes of the program that was sent, or what the engine calls them."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Whole characters, no part of a stop text."""

    choice: int
    text: str
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Whole characters of thinking."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningFinished:
    """The thinking has ended; ``capsule`` carries it, empty where there is none."""

    choice: int
    capsule: bytes


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call with the id that was minted for it."""

    choice: int
    index: int
    call_id: str
    namespace: str | None
    name: str
    """In its namespace."""
    is_custom: bool


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of a call's arguments."""

    choice: int
    index: int
    fragment: str


@dataclass(frozen=True, slots=True)
class CallFinished:
    """A call with its whole arguments."""

    choice: int
    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Last of its choice."""

    choice: int
    reason: FinishReason
    stop_text: str | None
    usage: Usage
    encoded_ms: float
    """Wall time of rendering and encoding the prompt."""
    warnings: tuple[str, ...]


EngineEvent = Admitted | Progress | Sampled | Ended
AnswerEvent = (
    Admitted
    | Progress
    | ReasoningDelta
    | ReasoningFinished
    | TextDelta
    | CallStarted
    | CallDelta
    | CallFinished
    | Finished
)
