"""EngineService: the contract on one side, the engine's values on the other. Translation only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import grpc.aio
from fencepost.engine.v1 import engine_pb2 as pb
from fencepost.engine.v1 import engine_pb2_grpc

from services.engine.core import EngineCore
from services.engine.errors import InvalidRequest, StoreFailed, Unsupported
from services.engine.event_messages import TIERS, generate_response, merged, prefill_response
from services.engine.fence.compiled import CompiledFence
from services.engine.fence_fields import read_program
from services.engine.fencing import Fencing
from services.engine.load import Load
from services.engine.request import (
    Priority,
    Request,
    SamplingParams,
)
from services.engine.sampling_fields import read_sampling
from services.engine.store_calls import StoreUnavailable
from services.engine.thinking import ThinkingMarks

_Context = grpc.aio.ServicerContext[Any, Any]
_MAX_WAIT_CLASSES = 64
_MAX_WAIT_CLASS_CHARS = 128


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What GetModel answers."""

    name: str
    engine_id: str
    tokenizer_fingerprint: str
    weights_fingerprint: str
    vocabulary_size: int
    block_tokens: int
    page_tokens: int
    context_tokens: int
    bytes_per_token: int
    block_bytes: int
    end_token_ids: tuple[int, ...]


class EngineServicer(engine_pb2_grpc.EngineServiceServicer):
    """Serves one core. WatchCache answers UNIMPLEMENTED."""

    def __init__(self, core: EngineCore, facts: ModelFacts, fencing: Fencing, *, loop_guard: bool) -> None:
        """``loop_guard``: for requests that don't say."""
        self._core = core
        self._fencing = fencing
        self._facts = facts
        self._loop_guard = loop_guard

    async def Generate(self, request: pb.GenerateRequest, context: _Context) -> AsyncIterator[pb.GenerateResponse]:
        _refuse_unsupported(request)
        thinking = self._thinking(request)
        async with self._core.generate(
            replace(
                self._request(request, read_sampling(request.sampling, self._facts.vocabulary_size)),
                loop_guard=self._is_guarded(request),
                thinking=thinking,
                fence=await self._fence(request, thinking),
                drafts=request.draft != pb.DRAFT_OFF,
            )
        ) as batches:
            async for events in batches:
                for event in merged(events):
                    yield generate_response(event)

    async def Prefill(self, request: pb.PrefillRequest, context: _Context) -> AsyncIterator[pb.PrefillResponse]:
        if request.extras:
            raise Unsupported("extras")
        async with self._core.generate(self._request(request, SamplingParams(max_tokens=0))) as batches:
            async for events in batches:
                for event in merged(events):
                    yield prefill_response(event)

    async def GetModel(self, request: pb.GetModelRequest, context: _Context) -> pb.GetModelResponse:
        facts = self._facts
        return pb.GetModelResponse(
            tokenizer_fingerprint=facts.tokenizer_fingerprint,
            weights_fingerprint=facts.weights_fingerprint,
            vocabulary_size=facts.vocabulary_size,
            block_tokens=facts.block_tokens,
            page_tokens=facts.page_tokens,
            context_tokens=facts.context_tokens,
            runtime_class="paged",
            bytes_per_token=facts.bytes_per_token,
            boundary_bytes=0,
            end_token_ids=facts.end_token_ids,
            model=facts.name,
            engine_id=facts.engine_id,
        )

    async def WatchLoad(self, request: pb.WatchLoadRequest, context: _Context) -> AsyncIterator[pb.WatchLoadResponse]:
        interval_s = max(20, request.interval_ms if request.HasField("interval_ms") else 1000) / 1000
        last: pb.WatchLoadResponse | None = None
        while True:
            load = self._load(self._core.load())
            if load != last:
                yield load
                last = load
            await asyncio.sleep(interval_s)

    async def Annotate(self, request: pb.AnnotateRequest, context: _Context) -> pb.AnnotateResponse:
        if len(set(request.wait_classes)) > _MAX_WAIT_CLASSES:
            raise InvalidRequest("wait_classes", f"must be at most {_MAX_WAIT_CLASSES} different ones")
        if any(not 0 < len(name) <= _MAX_WAIT_CLASS_CHARS for name in request.wait_classes):
            raise InvalidRequest("wait_classes", f"must have 1 to {_MAX_WAIT_CLASS_CHARS} characters each")
        self._core.annotate(_scope(request.cache_scope), _conversation(request.conversation_key), request.wait_classes)
        return pb.AnnotateResponse()

    async def Release(self, request: pb.ReleaseRequest, context: _Context) -> pb.ReleaseResponse:
        scope, key = _scope(request.cache_scope), _conversation(request.conversation_key)
        try:
            await self._core.release(scope, key, delete=request.delete)
        except StoreUnavailable as error:
            raise StoreFailed(f"the store did not remove its part: {error}", retry_after_s=1.0) from None
        return pb.ReleaseResponse()

    async def Flush(self, request: pb.FlushRequest, context: _Context) -> pb.FlushResponse:
        wanted = set(request.tiers) or {pb.TIER_VRAM, pb.TIER_SSD}
        tiers = {tier for tier, number in TIERS.items() if number in wanted}
        if any(len(namespace) != 32 for namespace in request.namespaces):
            raise InvalidRequest("namespaces", "must have 32 bytes each")
        try:
            flushed = await self._core.flush(set(request.cache_scopes), set(request.namespaces), tiers)
        except StoreUnavailable as error:
            raise StoreFailed(f"the store did not remove its part: {error}", retry_after_s=1.0) from None
        return pb.FlushResponse(blocks=flushed.blocks, stored_bytes=flushed.stored_bytes)

    def _request(self, message: pb.GenerateRequest | pb.PrefillRequest, sampling: SamplingParams) -> Request:
        return Request(
            cache_scope=_scope(message.cache_scope),
            token_ids=self._ids(message.token_ids),
            sampling=sampling,
            conversation_key=message.conversation_key,
            tenant=message.tenant,
            persist=not message.HasField("persist") or message.persist,
            request_id=message.request_id,
            priority=_priority(message.priority),
        )

    async def _fence(self, request: pb.GenerateRequest, thinking: ThinkingMarks | None) -> CompiledFence | None:
        if not request.HasField("fence"):
            return None
        return await self._fencing.compile(read_program(request.fence), thinking)

    def _is_guarded(self, request: pb.GenerateRequest) -> bool:
        if request.HasField("loop_guard"):
            return request.loop_guard
        # Who wants output at any price wants it all.
        return self._loop_guard and not request.sampling.ignore_end

    def _thinking(self, request: pb.GenerateRequest) -> ThinkingMarks | None:
        if not request.HasField("reasoning"):
            return None
        reasoning = request.reasoning
        for field, token_id in (("start_id", reasoning.start_id), ("end_id", reasoning.end_id)):
            if token_id >= self._facts.vocabulary_size:
                raise InvalidRequest(f"reasoning.{field}", f"must be at most {self._facts.vocabulary_size - 1}")
        budget = reasoning.budget_tokens if reasoning.HasField("budget_tokens") else None
        return ThinkingMarks(reasoning.start_id, reasoning.end_id, budget)

    def _load(self, load: Load) -> pb.WatchLoadResponse:
        return pb.WatchLoadResponse(
            queued=load.queued,
            running=load.running,
            free_blocks=load.blocks.free,
            held_blocks=load.blocks.held,
            cached_blocks=load.blocks.cached,
            total_blocks=load.blocks.total,
            block_bytes=self._facts.block_bytes,
            prefill_backlog_tokens=load.backlog_tokens,
            belt_age_seconds=load.belt_age_s,
            draining=load.is_draining,
            leases=load.leases,
            pending_writes=load.pending_writes,
        )

    def _ids(self, token_ids: bytes) -> bytes:
        if not token_ids or len(token_ids) % 4:
            raise InvalidRequest("token_ids", "must hold at least one int32")
        ids = memoryview(token_ids).cast("i")
        if min(ids) < 0 or max(ids) >= self._facts.vocabulary_size:
            raise InvalidRequest("token_ids", f"must be ids from 0 to {self._facts.vocabulary_size - 1}")
        return token_ids


def _priority(number: int) -> Priority:
    # Of what later versions may add, nothing is known that would justify to wait longer.
    return Priority.BACKGROUND if number == pb.PRIORITY_BACKGROUND else Priority.INTERACTIVE


def _scope(cache_scope: str) -> str:
    if not cache_scope:
        raise InvalidRequest("cache_scope", "must not be empty")
    return cache_scope


def _conversation(conversation_key: str) -> str:
    if not conversation_key:
        raise InvalidRequest("conversation_key", "must not be empty")
    return conversation_key


def _refuse_unsupported(request: pb.GenerateRequest) -> None:
    """Raise Unsupported for what would change the output if it were ignored."""
    asked = {
        "extras": bool(request.extras),
    }
    for field, is_asked in asked.items():
        if is_asked:
            raise Unsupported(field)
