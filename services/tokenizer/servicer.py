"""tokenizer.v1.TokenizerService: reads requests, runs them, writes events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc.aio
from fencepost.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc

from services import identity, rpc
from services.tokenizer import metrics
from services.tokenizer.config import TokenizerSettings
from services.tokenizer.conversation import Conversation
from services.tokenizer.detokenize import decode
from services.tokenizer.engines import Engines
from services.tokenizer.events import AnswerEvent, Finished
from services.tokenizer.generate import GenerationRequest, answer
from services.tokenizer.models import Prompt, ServedModel
from services.tokenizer.pool import EncodePool
from services.tokenizer.requests import read_generation, read_routing, read_source, read_token_ids
from services.tokenizer.responses import write_counts, write_event, write_model, write_segments
from services.tokenizer.segments import Segment, count_tokens

_Context = grpc.aio.ServicerContext[Any, Any]


class TokenizerServicer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Serves one model."""

    def __init__(self, settings: TokenizerSettings, model: ServedModel, pool: EncodePool, engines: Engines) -> None:
        self._settings = settings
        self._model = model
        self._pool = pool
        self._engines = engines

    async def Generate(
        self, request: tokenizer_pb2.GenerateRequest, context: _Context
    ) -> AsyncGenerator[tokenizer_pb2.GenerateResponse]:
        """Answers a conversation."""
        self._model.check_name(request.model)
        generation = self._model.complete(read_generation(request))
        prompt = await self._prompt(generation.source, context)
        async with aclosing(self._answer(generation, prompt, context)) as events:
            async for event in events:
                yield write_event(event, self._model.vocabulary)

    async def Encode(self, request: tokenizer_pb2.EncodeRequest, context: _Context) -> tokenizer_pb2.EncodeResponse:
        """Renders and encodes without generating."""
        self._model.check_name(request.model)
        source = read_source(request)
        routing = read_routing(request.routing, source)
        prompt, segments = await self._segmented(source, context)
        token_ids = prompt.ids.tobytes()
        secret = identity.page_key_secret(routing.cache_scope, self._model.fingerprint)
        return tokenizer_pb2.EncodeResponse(
            token_ids=token_ids,
            segments=write_segments(segments),
            page_keys=identity.page_keys(secret, token_ids),
            tokenizer_fingerprint=self._model.fingerprint,
            path=tokenizer_pb2.ENCODE_PATH_FULL,
            encoded_tokens=len(prompt.ids),
        )

    async def Decode(self, request: tokenizer_pb2.DecodeRequest, context: _Context) -> tokenizer_pb2.DecodeResponse:
        """Turns ids into text."""
        self._model.check_name(request.model)
        vocabulary = self._model.vocabulary
        ids = read_token_ids(request.token_ids, len(vocabulary.token_bytes), self._settings.max_prompt_bytes)
        text = await self._pool.run(lambda: decode(vocabulary, ids.tolist()), self._timeout_s(context))
        return tokenizer_pb2.DecodeResponse(text=text)

    async def CountTokens(
        self, request: tokenizer_pb2.CountTokensRequest, context: _Context
    ) -> tokenizer_pb2.CountTokensResponse:
        """Counts what Generate would send to the engine."""
        self._model.check_name(request.model)
        prompt, segments = await self._segmented(read_source(request), context)
        counts = count_tokens(segments, len(prompt.ids))
        return tokenizer_pb2.CountTokensResponse(tokens=len(prompt.ids), segments=write_counts(counts))

    async def ListModels(
        self, request: tokenizer_pb2.ListModelsRequest, context: _Context
    ) -> tokenizer_pb2.ListModelsResponse:
        """Lists the one model, whether or not an engine answers."""
        context_tokens = await self._engines.context_tokens()
        return tokenizer_pb2.ListModelsResponse(models=[write_model(self._model, context_tokens)])

    async def _answer(
        self, request: GenerationRequest, prompt: Prompt, context: _Context
    ) -> AsyncGenerator[AnswerEvent]:
        timeout_s, trace = self._timeout_s(context), rpc.trace_metadata(context)
        async with (
            aclosing(self._engines.run(request, prompt.ids, timeout_s, trace)) as sampled,
            aclosing(answer(request, sampled, self._model.vocabulary, prompt.encoded_ms)) as events,
        ):
            async for event in events:
                if isinstance(event, Finished) and event.choice == 0:
                    metrics.PROMPT_TOKENS.inc(event.usage.prompt_tokens)
                    for tier, num_tokens in event.usage.cached.tokens_by_tier:
                        metrics.CACHED_TOKENS.labels(tier.name.lower()).inc(num_tokens)
                yield event

    async def _prompt(self, source: Conversation | str, context: _Context) -> Prompt:
        prompt = await self._pool.run(lambda: self._model.prompt(source), self._timeout_s(context))
        metrics.ENCODE_SECONDS.observe(prompt.encoded_ms / 1e3)
        return prompt

    async def _segmented(self, source: Conversation | str, context: _Context) -> tuple[Prompt, tuple[Segment, ...]]:
        prompt = await self._prompt(source, context)
        segments = await self._pool.run(lambda: self._model.segments(source, prompt), self._timeout_s(context))
        return prompt, segments

    def _timeout_s(self, context: _Context) -> float:
        return rpc.deadline_s(context, self._settings.request_timeout_s)
