"""What a caller asks for, and the events it gets back. Values only; the servicer translates them to the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from services.engine.fence.compiled import CompiledFence
from services.engine.fence.program import Relaxed
from services.engine.thinking import ThinkingMarks


class Tier(Enum):
    """Where a reused token's state lay."""

    VRAM = "vram"
    SSD = "ssd"


class MissReason(Enum):
    """Why a prompt's tokens were computed again."""

    COLD = "cold"
    EVICTED = "evicted"
    FORKED = "forked"
    TOO_SHORT = "too_short"
    RESTORE_SKIPPED = "restore_skipped"
    RESTORE_FAILED = "restore_failed"


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"
    STOP_TEXT = "stop_text"
    LENGTH = "length"
    LOOP = "loop"
    CANCELLED = "cancelled"
    PREFILLED = "prefilled"


class Priority(Enum):
    """Who waits for an answer: a person or an agent, or nobody in particular."""

    INTERACTIVE = "interactive"
    BACKGROUND = "background"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen. ``temperature`` 0 is greedy; ``seed`` None draws one.

    ``logprobs`` None asks for no log-probabilities, a number for that many alternatives beside each sampled token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    logprobs: int | None = None
    choices: int = 1
    seed: int | None = None
    stop_texts: tuple[bytes, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    max_tokens: int | None = None  # None: what the context leaves; 0: prefill only
    ignore_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt. ``token_ids`` are int32 little-endian."""

    cache_scope: str
    token_ids: bytes
    sampling: SamplingParams = field(default_factory=SamplingParams)
    conversation_key: str = ""
    tenant: str = ""
    persist: bool = True
    loop_guard: bool = True  # end the output when it goes round in circles
    thinking: ThinkingMarks | None = None
    fence: CompiledFence | None = None
    drafts: bool = True  # whether tokens may be guessed ahead; the output is the same
    request_id: str = ""
    priority: Priority = Priority.INTERACTIVE

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.token_ids) // 4

    @property
    def is_background(self) -> bool:
        """Whether it may neither delay an interactive request nor take a block from one."""
        return self.priority is Priority.BACKGROUND


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How a prompt's tokens were come by. Sums to the prompt."""

    tokens_by_tier: dict[Tier, int]
    recomputed_tokens: int
    miss: MissReason | None = None
    miss_at_token: int | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds of wall time."""

    queued_ms: float
    restored_ms: float
    prefilled_ms: float
    decoded_ms: float


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request has its blocks; ``cache`` is provisional while a restore runs."""

    prompt_tokens: int
    cache: CacheUse


@dataclass(frozen=True, slots=True)
class Progress:
    """A long prompt is being computed; ``queue_position`` is None once admitted."""

    prefilled_tokens: int
    prompt_tokens: int
    queue_position: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of the model's own probabilities: before bias, penalties, temperature and truncation."""

    sampled: float
    top: tuple[tuple[int, float], ...]
    """Ids with theirs, likeliest first."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A chosen token; ``logprobs`` where the request asks for them; ``is_loop``: the output ends here, as a loop."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    is_loop: bool = False
    is_inside: bool = False  # structure that a fence demands: nothing that it spells ends the output
    is_broken: bool = False  # what its fence did not take: the output fails


@dataclass(frozen=True, slots=True)
class Tokens:
    """Sampled ids of one choice, in order; ``logprobs`` has as many entries, or none."""

    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of one choice. ``stop_text`` indexes the request's stop texts."""

    reason: FinishReason
    prompt_tokens: int
    output_tokens: int
    cache: CacheUse
    timings: Timings
    stop_text: int | None = None
    choice: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    relaxed: tuple[Relaxed, ...] = ()
    """What of a fence was not enforced."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of all choices, by the engine's own fault."""

    message: str


Event = Admitted | Progress | Tokens | Finished | Failed
