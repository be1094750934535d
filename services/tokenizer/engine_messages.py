"""This service's values ⇄ engine.v1 messages."""

from fencepost.engine.v1 import engine_pb2

from services.tokenizer.events import (
    Admitted,
    Cached,
    Ended,
    EngineEvent,
    FinishReason,
    Miss,
    Progress,
    Sampled,
    Tier,
    Timings,
    TokenLogprob,
    TokenLogprobs,
    Usage,
)
from services.tokenizer.fence.fence import Fence
from services.tokenizer.fence.program import Relaxed
from services.tokenizer.fence_messages import write_program
from services.tokenizer.generate import GenerationRequest
from services.tokenizer.rope.prompt_text import TokenIds
from services.tokenizer.routing import Priority
from services.tokenizer.sampling import Sampling

_PRIORITIES = {
    Priority.INTERACTIVE: engine_pb2.PRIORITY_INTERACTIVE,
    Priority.BACKGROUND: engine_pb2.PRIORITY_BACKGROUND,
}
_TIERS = {
    engine_pb2.TIER_VRAM: Tier.VRAM,
    engine_pb2.TIER_HOST: Tier.HOST,
    engine_pb2.TIER_SSD: Tier.SSD,
    engine_pb2.TIER_REMOTE: Tier.REMOTE,
}
_MISSES = {
    engine_pb2.MISS_REASON_COLD: "cold",
    engine_pb2.MISS_REASON_EVICTED: "evicted",
    engine_pb2.MISS_REASON_FORKED: "forked",
    engine_pb2.MISS_REASON_NAMESPACE: "namespace",
    engine_pb2.MISS_REASON_TOO_SHORT: "too short",
    engine_pb2.MISS_REASON_RESTORE_SKIPPED: "restore skipped: cost",
    engine_pb2.MISS_REASON_RESTORE_FAILED: "restore failed",
}
_FINISHES = {
    engine_pb2.FINISH_REASON_STOP: FinishReason.STOP,
    engine_pb2.FINISH_REASON_STOP_TEXT: FinishReason.STOP_TEXT,
    engine_pb2.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    engine_pb2.FINISH_REASON_LOOP: FinishReason.LOOP,
    engine_pb2.FINISH_REASON_CANCELLED: FinishReason.CANCELLED,
    # A warm-up has no output, so it ends as an empty answer does.
    engine_pb2.FINISH_REASON_PREFILLED: FinishReason.STOP,
}


def write_generate(request: GenerationRequest, ids: TokenIds) -> engine_pb2.GenerateRequest:
    """The engine's request for a prompt of ``ids``."""
    routing = request.routing
    return engine_pb2.GenerateRequest(
        cache_scope=routing.cache_scope,
        token_ids=ids.tobytes(),
        sampling=_write_sampling(request.sampling),
        conversation_key=routing.conversation_key,
        priority=_PRIORITIES[routing.priority],
        loop_guard=request.loop_guard,
        persist=routing.persist,
        tenant=routing.tenant,
        request_id=routing.request_id,
        fence=None if request.fence is None else write_program(request.fence),
        reasoning=None if request.fence is None else _write_reasoning(request.fence),
    )


def write_prefill(request: GenerationRequest, ids: TokenIds) -> engine_pb2.PrefillRequest:
    """The same prompt, without sampling."""
    routing = request.routing
    return engine_pb2.PrefillRequest(
        cache_scope=routing.cache_scope,
        token_ids=ids.tobytes(),
        conversation_key=routing.conversation_key,
        priority=_PRIORITIES[routing.priority],
        persist=routing.persist,
        tenant=routing.tenant,
        request_id=routing.request_id,
    )


def read_event(
    message: engine_pb2.GenerateResponse | engine_pb2.PrefillResponse, model: engine_pb2.GetModelResponse
) -> EngineEvent | None:
    """One event of the engine whose ``model`` this is; None for an event of a later version."""
    match message.WhichOneof("event"):
        case "admitted":
            admitted = message.admitted
            return Admitted(
                admitted.prompt_tokens,
                _read_cached(admitted.cached),
                model.engine_id,
                frozenset(model.end_token_ids),
            )
        case "progress":
            progress = message.progress
            queue_position = progress.queue_position if progress.HasField("queue_position") else None
            return Progress(progress.prefilled_tokens, progress.prompt_tokens, queue_position)
        case "tokens" if isinstance(message, engine_pb2.GenerateResponse):
            tokens = message.tokens
            return Sampled(tokens.choice, tuple(tokens.ids), tuple(map(_read_logprobs, tokens.logprobs)))
        case "finished":
            return _read_finished(message.finished)
        case _:
            return None


def _write_reasoning(fence: Fence) -> engine_pb2.Reasoning | None:
    """Where a program waits for the end of thinking, or must not start in it, the engine must know its tokens."""
    assert fence.thinking_ids is not None or not fence.has_reasoning_gate
    if fence.thinking_ids is None or not (fence.has_reasoning_gate or fence.start is not None):
        return None
    start_id, end_id = fence.thinking_ids
    return engine_pb2.Reasoning(start_id=start_id, end_id=end_id)


def _write_sampling(sampling: Sampling) -> engine_pb2.Sampling:
    return engine_pb2.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
        logit_bias=sampling.logit_bias,
        logprobs=sampling.logprobs,
        stop_texts=[text.encode() for text in sampling.stop_texts],
        stop_token_ids=sampling.stop_token_ids,
        max_tokens=sampling.max_tokens,
        choices=sampling.choices,
    )


def _read_cached(cached: engine_pb2.Cached) -> Cached:
    miss = None
    if cached.miss.reason in _MISSES:
        at_token = cached.miss.at_token if cached.miss.HasField("at_token") else None
        miss = Miss(_MISSES[cached.miss.reason], at_token)
    by_tier = tuple((_TIERS.get(entry.tier, Tier.UNSPECIFIED), entry.tokens) for entry in cached.by_tier)
    return Cached(by_tier, cached.recomputed_tokens, miss)


def _read_logprobs(logprobs: engine_pb2.TokenLogprobs) -> TokenLogprobs:
    def one(entry: engine_pb2.TokenLogprob) -> TokenLogprob:
        return TokenLogprob(entry.token_id, entry.logprob)

    return TokenLogprobs(one(logprobs.sampled), tuple(map(one, logprobs.top)))


def _read_finished(finished: engine_pb2.Finished) -> Ended:
    usage, timings = finished.usage, finished.usage.timings
    return Ended(
        choice=finished.choice,
        # A reason of a later version: the model did end.
        reason=_FINISHES.get(finished.reason, FinishReason.STOP),
        usage=Usage(
            prompt_tokens=usage.prompt_tokens,
            cached=_read_cached(usage.cached),
            output_tokens=usage.output_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            drafted_tokens=usage.drafted_tokens,
            accepted_tokens=usage.accepted_tokens,
            timings=Timings(timings.queued_ms, timings.restored_ms, timings.prefilled_ms, timings.decoded_ms),
        ),
        stop_index=finished.stop_text if finished.HasField("stop_text") else None,
        relaxed=tuple(Relaxed(one.parameter_path, one.keyword) for one in finished.warnings),
    )
