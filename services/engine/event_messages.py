"""The engine's events as messages of the contract."""

from __future__ import annotations

from fencepost.engine.v1 import engine_pb2 as pb
from fencepost.engine.v1 import fence_pb2

from services.engine.errors import EngineError
from services.engine.request import (
    Admitted,
    CacheUse,
    Event,
    Failed,
    Finished,
    FinishReason,
    MissReason,
    Progress,
    Tier,
    Timings,
    Tokens,
)

TIERS = {Tier.VRAM: pb.TIER_VRAM, Tier.SSD: pb.TIER_SSD}
_MISSES = {
    MissReason.COLD: pb.MISS_REASON_COLD,
    MissReason.EVICTED: pb.MISS_REASON_EVICTED,
    MissReason.FORKED: pb.MISS_REASON_FORKED,
    MissReason.TOO_SHORT: pb.MISS_REASON_TOO_SHORT,
    MissReason.RESTORE_SKIPPED: pb.MISS_REASON_RESTORE_SKIPPED,
    MissReason.RESTORE_FAILED: pb.MISS_REASON_RESTORE_FAILED,
}
_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.STOP_TEXT: pb.FINISH_REASON_STOP_TEXT,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.LOOP: pb.FINISH_REASON_LOOP,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
    FinishReason.PREFILLED: pb.FINISH_REASON_PREFILLED,
}


def merged(events: list[Event]) -> list[Event]:
    """All pending tokens of a choice in one event, and only the newest progress."""
    merged: list[Event] = []
    place_by_choice: dict[int, int] = {}
    for event in events:
        if isinstance(event, Tokens):
            place = place_by_choice.setdefault(event.choice, len(merged))
            if place < len(merged):
                earlier = merged[place]
                assert isinstance(earlier, Tokens)
                merged[place] = Tokens(earlier.ids + event.ids, earlier.logprobs + event.logprobs, event.choice)
                continue
        elif isinstance(event, Progress) and merged and isinstance(merged[-1], Progress):
            merged.pop()
        merged.append(event)
    return merged


def generate_response(event: Event) -> pb.GenerateResponse:
    """Raises EngineError for a failure."""
    match event:
        case Admitted():
            return pb.GenerateResponse(admitted=_admitted(event))
        case Progress():
            return pb.GenerateResponse(progress=_progress(event))
        case Tokens():
            return pb.GenerateResponse(tokens=_tokens(event))
        case Finished():
            return pb.GenerateResponse(finished=_finished(event))
        case Failed():
            raise EngineError(event.message)


def prefill_response(event: Event) -> pb.PrefillResponse:
    """Of a request without sampling. Raises EngineError for a failure."""
    match event:
        case Admitted():
            return pb.PrefillResponse(admitted=_admitted(event))
        case Progress():
            return pb.PrefillResponse(progress=_progress(event))
        case Finished():
            return pb.PrefillResponse(finished=_finished(event))
        case Tokens() | Failed():
            raise EngineError(event.message if isinstance(event, Failed) else "a prefill sampled a token")


def _admitted(event: Admitted) -> pb.Admitted:
    return pb.Admitted(cached=_cached(event.cache), prompt_tokens=event.prompt_tokens)


def _progress(event: Progress) -> pb.Progress:
    return pb.Progress(
        prefilled_tokens=event.prefilled_tokens, prompt_tokens=event.prompt_tokens, queue_position=event.queue_position
    )


def _tokens(event: Tokens) -> pb.Tokens:
    logprobs = [
        pb.TokenLogprobs(
            sampled=pb.TokenLogprob(token_id=token_id, logprob=one.sampled),
            top=[pb.TokenLogprob(token_id=other_id, logprob=logprob) for other_id, logprob in one.top],
        )
        for token_id, one in zip(event.ids, event.logprobs, strict=bool(event.logprobs))
    ]
    return pb.Tokens(ids=event.ids, logprobs=logprobs, choice=event.choice)


def _finished(event: Finished) -> pb.Finished:
    usage = pb.Usage(
        prompt_tokens=event.prompt_tokens,
        cached=_cached(event.cache),
        output_tokens=event.output_tokens,
        drafted_tokens=event.drafted_tokens,
        accepted_tokens=event.accepted_tokens,
        timings=_timings(event.timings),
    )
    return pb.Finished(
        choice=event.choice,
        reason=_REASONS[event.reason],
        usage=usage,
        stop_text=event.stop_text,
        warnings=[fence_pb2.Relaxed(parameter_path=one.path, keyword=one.keyword) for one in event.relaxed],
    )


def _cached(use: CacheUse) -> pb.Cached:
    by_tier = [pb.TierTokens(tier=TIERS[tier], tokens=n) for tier, n in use.tokens_by_tier.items() if n]
    miss = None if use.miss is None else pb.Miss(reason=_MISSES[use.miss], at_token=use.miss_at_token)
    return pb.Cached(by_tier=by_tier, recomputed_tokens=use.recomputed_tokens, miss=miss)


def _timings(timings: Timings) -> pb.Timings:
    return pb.Timings(
        queued_ms=timings.queued_ms,
        restored_ms=timings.restored_ms,
        prefilled_ms=timings.prefilled_ms,
        decoded_ms=timings.decoded_ms,
    )
