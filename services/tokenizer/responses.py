"""Writes this service's values as tokenizer.v1 messages."""

from collections.abc import Iterable

from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2

from services.tokenizer.events import (
    Admitted,
    AnswerEvent,
    Cached,
    CallDelta,
    CallFinished,
    CallStarted,
    Finished,
    Progress,
    ReasoningDelta,
    ReasoningFinished,
    TextDelta,
    Tier,
    TokenLogprob,
    TokenLogprobs,
    Usage,
)
from services.tokenizer.models import ServedModel
from services.tokenizer.prompt.explain import Explanation
from services.tokenizer.prompt.segments import Segment, SegmentKind
from services.vocabulary import Vocabulary

_TIERS = {
    Tier.UNSPECIFIED: tokenizer_pb2.TIER_UNSPECIFIED,
    Tier.VRAM: tokenizer_pb2.TIER_VRAM,
    Tier.HOST: tokenizer_pb2.TIER_HOST,
    Tier.SSD: tokenizer_pb2.TIER_SSD,
    Tier.REMOTE: tokenizer_pb2.TIER_REMOTE,
}
_SEGMENT_KINDS = {
    SegmentKind.UNSPECIFIED: tokenizer_pb2.SEGMENT_KIND_UNSPECIFIED,
    SegmentKind.TOOLS: tokenizer_pb2.SEGMENT_KIND_TOOLS,
    SegmentKind.SYSTEM: tokenizer_pb2.SEGMENT_KIND_SYSTEM,
    SegmentKind.MESSAGE: tokenizer_pb2.SEGMENT_KIND_MESSAGE,
    SegmentKind.RESULT: tokenizer_pb2.SEGMENT_KIND_RESULT,
    SegmentKind.GENERATION_PROMPT: tokenizer_pb2.SEGMENT_KIND_GENERATION_PROMPT,
}


def write_event(event: AnswerEvent, vocabulary: Vocabulary) -> tokenizer_pb2.GenerateResponse:
    """One message of the answer's stream."""
    match event:
        case Admitted():
            return tokenizer_pb2.GenerateResponse(
                admitted=tokenizer_pb2.Admitted(
                    prompt_tokens=event.prompt_tokens, cached=_cached(event.cached), engine_id=event.engine_id
                )
            )
        case Progress():
            return tokenizer_pb2.GenerateResponse(
                progress=tokenizer_pb2.Progress(
                    prefilled_tokens=event.prefilled_tokens,
                    prompt_tokens=event.prompt_tokens,
                    queue_position=event.queue_position,
                )
            )
        case TextDelta():
            logprobs = [_token_logprobs(one, vocabulary) for one in event.logprobs]
            return tokenizer_pb2.GenerateResponse(
                text_delta=tokenizer_pb2.TextDelta(text=event.text, logprobs=logprobs, choice=event.choice)
            )
        case ReasoningDelta():
            return tokenizer_pb2.GenerateResponse(
                reasoning_delta=tokenizer_pb2.ReasoningDelta(text=event.text, choice=event.choice)
            )
        case ReasoningFinished():
            return tokenizer_pb2.GenerateResponse(
                reasoning_finished=tokenizer_pb2.ReasoningFinished(capsule=event.capsule, choice=event.choice)
            )
        case CallStarted():
            kind = conversation_pb2.CALL_KIND_CUSTOM if event.is_custom else conversation_pb2.CALL_KIND_FUNCTION
            return tokenizer_pb2.GenerateResponse(
                call_started=tokenizer_pb2.CallStarted(
                    index=event.index,
                    call_id=event.call_id,
                    namespace=event.namespace,
                    name=event.name,
                    kind=kind,
                    choice=event.choice,
                )
            )
        case CallDelta():
            return tokenizer_pb2.GenerateResponse(
                call_delta=tokenizer_pb2.CallDelta(index=event.index, fragment=event.fragment, choice=event.choice)
            )
        case CallFinished():
            return tokenizer_pb2.GenerateResponse(
                call_finished=tokenizer_pb2.CallFinished(
                    index=event.index, arguments=event.arguments, choice=event.choice
                )
            )
        case Finished():
            return tokenizer_pb2.GenerateResponse(
                finished=tokenizer_pb2.Finished(
                    choice=event.choice,
                    reason=tokenizer_pb2.FinishReason.Value(f"FINISH_REASON_{event.reason.name}"),
                    stop_text=event.stop_text,
                    usage=_usage(event.usage, event.encoded_ms),
                    warnings=event.warnings,
                )
            )


def write_segments(segments: Iterable[Segment]) -> list[tokenizer_pb2.Segment]:
    """In order."""
    return [
        tokenizer_pb2.Segment(kind=_SEGMENT_KINDS[one.kind], index=one.index, first_token=one.first_token)
        for one in segments
    ]


def write_counts(counts: Iterable[tuple[Segment, int]]) -> list[tokenizer_pb2.SegmentTokens]:
    """In order."""
    return [
        tokenizer_pb2.SegmentTokens(kind=_SEGMENT_KINDS[segment.kind], index=segment.index, tokens=num_tokens)
        for segment, num_tokens in counts
    ]


def write_explanation(explanation: Explanation, cached: Cached | None) -> tokenizer_pb2.ExplainPrefixResponse:
    """``cached`` is what the tiers gave; None where nothing was asked of them."""
    segment = explanation.segment
    return tokenizer_pb2.ExplainPrefixResponse(
        at_token=explanation.at_token,
        segment=None if segment is None else write_segments([segment])[0],
        left=tokenizer_pb2.PrefixSide(before=explanation.left.before, after=explanation.left.after),
        right=tokenizer_pb2.PrefixSide(before=explanation.right.before, after=explanation.right.after),
        cached=None if cached is None else _cached(cached),
    )


def write_model(model: ServedModel, context_tokens: int | None, *, is_certified: bool) -> tokenizer_pb2.Model:
    """``context_tokens`` is what an engine says; without one, the model's files say it."""
    return tokenizer_pb2.Model(
        id=model.name,
        aliases=model.aliases,
        context_tokens=context_tokens or model.context_tokens or 0,
        dialect=model.dialect.name,
        modalities=["text"],
        is_certified=is_certified,
        defaults=tokenizer_pb2.Sampling(
            temperature=model.defaults.temperature, top_p=model.defaults.top_p, top_k=model.defaults.top_k
        ),
        created_s=model.created_s,
    )


def _cached(cached: Cached) -> tokenizer_pb2.Cached:
    miss = cached.miss
    return tokenizer_pb2.Cached(
        by_tier=[tokenizer_pb2.TierTokens(tier=_TIERS[tier], tokens=tokens) for tier, tokens in cached.tokens_by_tier],
        recomputed_tokens=cached.recomputed_tokens,
        miss=None
        if miss is None
        else tokenizer_pb2.Miss(reason=miss.reason, at_token=miss.at_token, segment=miss.segment),
    )


def _usage(usage: Usage, encoded_ms: float) -> tokenizer_pb2.Usage:
    return tokenizer_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached=_cached(usage.cached),
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        drafted_tokens=usage.drafted_tokens,
        accepted_tokens=usage.accepted_tokens,
        timings=tokenizer_pb2.Timings(
            queued_ms=usage.timings.queued_ms,
            restored_ms=usage.timings.restored_ms,
            prefilled_ms=usage.timings.prefilled_ms,
            decoded_ms=usage.timings.decoded_ms,
            encoded_ms=encoded_ms,
        ),
    )


def _token_logprobs(logprobs: TokenLogprobs, vocabulary: Vocabulary) -> tokenizer_pb2.TokenLogprobs:
    def one(entry: TokenLogprob) -> tokenizer_pb2.TokenLogprob:
        return tokenizer_pb2.TokenLogprob(token=vocabulary.spell(entry.token_id), logprob=entry.logprob)

    return tokenizer_pb2.TokenLogprobs(sampled=one(logprobs.sampled), top=[one(entry) for entry in logprobs.top])
