"""Runs a request from conversation to answer: prompt, engine, events, and what is remembered for the next turn."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

import numpy as np

from services.tokenizer import metrics
from services.tokenizer.checks.schema_checker import SchemaChecker
from services.tokenizer.checks.values import WrittenValue, describe_verdict
from services.tokenizer.conversation import Conversation
from services.tokenizer.engines import Engines, Metadata
from services.tokenizer.errors import UnknownResponseError
from services.tokenizer.events import Admitted, AnswerEvent, Cached, CallStarted, Finished, FinishReason
from services.tokenizer.generate import GenerationRequest, answer
from services.tokenizer.history.history import History
from services.tokenizer.history.record import Record
from services.tokenizer.models import ServedModel
from services.tokenizer.pool import EncodePool
from services.tokenizer.prompt.builder import Prompt, PromptBuilder
from services.tokenizer.prompt.explain import Explanation, blame, explain, name_of
from services.tokenizer.prompt.footprints import Footprint, Footprints, common_prefix
from services.tokenizer.prompt.segments import Segment, find_segments
from services.tokenizer.rope.prompt_text import TokenIds
from services.tokenizer.routing import Routing
from services.tokenizer.wait_classes import wait_class

_log = logging.getLogger(__name__)


class Answering:
    """One model's. Belongs to one event loop; what blocks runs in the pool."""

    def __init__(
        self,
        model: ServedModel,
        builder: PromptBuilder,
        history: History | None,
        footprints: Footprints,
        pool: EncodePool,
        engines: Engines,
        checker: SchemaChecker,
    ) -> None:
        """``history`` None: nothing is remembered of answers."""
        self._model = model
        self._builder = builder
        self._history = history
        self._footprints = footprints
        self._pool = pool
        self._engines = engines
        self._checker = checker

    async def prompt(self, source: Conversation | str, routing: Routing, timeout_s: float) -> Prompt:
        """Render and encode. Raises InvalidRequestError and its kin, OverloadedError, EncodeTimeoutError."""
        prompt = await self._pool.run(lambda: self._builder.build(source, routing), timeout_s)
        metrics.ENCODE_SECONDS.observe(prompt.encoded_ms / 1e3)
        return prompt

    async def segments(self, source: Conversation | str, prompt: Prompt, timeout_s: float) -> tuple[Segment, ...]:
        """Which tokens come from which part; empty where that cannot be told."""
        if isinstance(source, str):
            return ()
        return await self._pool.run(lambda: find_segments(source, prompt, self._model.end_text), timeout_s)

    async def run(
        self, request: GenerationRequest, timeout_s: float, metadata: Metadata
    ) -> AsyncGenerator[AnswerEvent]:
        """The answer's events. Closing the generator cancels the engine's call.

        Raises what ``prompt`` raises, ContextLengthError, NoEngineError, EngineLostError and an engine's own refusal.
        """
        prompt = await self.prompt(request.source, request.routing, timeout_s)
        request = replace(request, fence=prompt.fence)
        records: list[Record] = []
        engine_id, wait_classes = "", set[str]()

        async def remember(record: Record) -> None:
            records.append(record)
            if self._history is not None:
                key = self._builder.key_of(prompt, request.routing, record)
                await self._history.remember(request.routing, key, record)

        def seal(record: Record) -> bytes:
            return b"" if self._history is None else self._history.seal(request.routing.tenant, record) or b""

        async with (
            aclosing(self._engines.run(request, prompt.ids, timeout_s, metadata)) as sampled,
            aclosing(
                answer(
                    request,
                    sampled,
                    self._model.vocabulary,
                    prompt.encoded_ms,
                    lambda: self._builder.new_parser(request.source, prompt),
                    remember,
                    seal,
                    self._check,
                    prompt.warnings,
                )
            ) as events,
        ):
            async for event in events:
                match event:
                    case Admitted():
                        engine_id = event.engine_id
                        yield replace(event, cached=await self._blamed(request, prompt, event.cached, timeout_s))
                    case CallStarted(choice=0):
                        wait_classes.add(wait_class(event.namespace, event.name))
                        yield event
                    case Finished():
                        if event.choice == 0 and event.reason is FinishReason.CALLS:
                            self._engines.annotate(request.routing, engine_id, wait_classes)
                        cached = await self._blamed(request, prompt, event.usage.cached, timeout_s)
                        if event.choice == 0:
                            _count(cached, event.usage.prompt_tokens)
                            await self._note(request, prompt, cached, records, timeout_s)
                        yield replace(event, usage=replace(event.usage, cached=cached))
                    case _:
                        yield event

    async def context_tokens(self) -> int | None:
        """Longest prompt and output together, as an engine has it; None when none answers."""
        return await self._engines.context_tokens()

    async def explain_response(self, tenant: str, response_id: str, timeout_s: float) -> tuple[Explanation, Cached]:
        """An answer's prompt against the nearest one before it. Raises UnknownResponseError."""
        footprint = self._footprints.get(tenant, response_id)
        if footprint is None:
            raise UnknownResponseError(f"no response {response_id!r} is remembered here")

        def compare() -> Explanation:
            ids = footprint.prompt.ids
            nearest = self._footprints.nearest(tenant, footprint.cache_scope, ids, before=response_id)
            other, num_common = (ids[:0], 0) if nearest is None else (nearest.footprint.ids, nearest.num_common)
            return self._explain(footprint.source, footprint.prompt, other, num_common)

        return await self._pool.run(compare, timeout_s), footprint.cached

    async def explain_pair(
        self, left: Conversation, right: Conversation, routing: Routing, timeout_s: float
    ) -> Explanation:
        """Two conversations' prompts against each other; the segment is the left one's."""
        first, second = await self.prompt(left, routing, timeout_s), await self.prompt(right, routing, timeout_s)
        num_common = common_prefix(first.ids, second.ids)
        return await self._pool.run(lambda: self._explain(left, first, second.ids, num_common), timeout_s)

    def _explain(self, source: Conversation | str, prompt: Prompt, other: TokenIds, num_common: int) -> Explanation:
        return explain(source, prompt, other, num_common, self._model.vocabulary, self._model.end_text)

    async def _check(self, values: Sequence[WrittenValue]) -> list[str]:
        """Warnings of the values that break their schemas."""
        warnings: list[str] = []
        for value in values:
            verdict = await self._checker.check(value.schema, value.text)
            outcome = "unchecked" if verdict.fault is not None else "invalid" if verdict.violations else "valid"
            metrics.CHECKED_VALUES.labels(outcome).inc()
            for violation in verdict.violations:
                metrics.count_broken(violation.keyword)
            warnings += describe_verdict(value, verdict)
        return warnings

    async def _blamed(self, request: GenerationRequest, prompt: Prompt, cached: Cached, timeout_s: float) -> Cached:
        """With the segment at which the prompt left what was cached."""
        miss = cached.miss
        if miss is None or not miss.at_token:
            return cached
        at = miss.at_token
        segment = await self._pool.run(lambda: blame(request.source, prompt, at, self._model.end_text), timeout_s)
        return cached if segment is None else replace(cached, miss=replace(miss, segment=name_of(segment)))

    async def _note(
        self, request: GenerationRequest, prompt: Prompt, cached: Cached, records: list[Record], timeout_s: float
    ) -> None:
        """Remember the request for explanations, and log it where it nearly was a continuation."""
        routing = request.routing
        written = records[0].ids[:-1] if records else prompt.ids[:0]
        footprint = Footprint(
            routing.tenant,
            routing.cache_scope,
            routing.response_id or routing.request_id,
            request.source,
            prompt,
            np.concatenate((prompt.ids, written)),
            cached,
        )
        if cached.recomputed_tokens > 1 and cached.miss is not None:
            nearest = await self._pool.run(
                lambda: self._footprints.nearest(routing.tenant, routing.cache_scope, prompt.ids), timeout_s
            )
            if nearest is not None and nearest.is_near_miss:
                metrics.NEAR_MISSES.inc()
                _log.info(
                    "near miss: request %s shares %d of the %d tokens of %s; they part in %s",
                    routing.request_id,
                    nearest.num_common,
                    len(nearest.footprint.ids),
                    nearest.footprint.response_id,
                    cached.miss.segment or "an unknown segment",
                )
        self._footprints.put(footprint)


def _count(cached: Cached, prompt_tokens: int) -> None:
    metrics.PROMPT_TOKENS.inc(prompt_tokens)
    for tier, num_tokens in cached.tokens_by_tier:
        metrics.CACHED_TOKENS.labels(tier.name.lower()).inc(num_tokens)
