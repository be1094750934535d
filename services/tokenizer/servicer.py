"""tokenizer.v1.TokenizerService: reads requests, runs them, writes events."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc.aio
from fencepost.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc

from services import identity, rpc
from services.tokenizer.answering import Answering
from services.tokenizer.config import TokenizerSettings
from services.tokenizer.detokenize import decode
from services.tokenizer.errors import InvalidRequestError
from services.tokenizer.fence_messages import write_program
from services.tokenizer.models import ServedModel
from services.tokenizer.pool import EncodePool
from services.tokenizer.prompt.segments import count_tokens
from services.tokenizer.requests import (
    read_conversation,
    read_generation,
    read_routing,
    read_source,
    read_token_ids,
)
from services.tokenizer.responses import write_counts, write_event, write_explanation, write_model, write_segments
from services.tokenizer.rope.encoded import EncodePath
from services.tokenizer.routing import Routing

_PATHS = {
    EncodePath.FULL: tokenizer_pb2.ENCODE_PATH_FULL,
    EncodePath.DELTA: tokenizer_pb2.ENCODE_PATH_DELTA,
}
_Context = grpc.aio.ServicerContext[Any, Any]


class TokenizerServicer(tokenizer_pb2_grpc.TokenizerServiceServicer):
    """Serves one model."""

    def __init__(
        self,
        settings: TokenizerSettings,
        model: ServedModel,
        answering: Answering,
        pool: EncodePool,
        *,
        is_certified: bool,
    ) -> None:
        self._settings = settings
        self._model = model
        self._answering = answering
        self._pool = pool
        self._is_certified = is_certified

    async def Generate(
        self, request: tokenizer_pb2.GenerateRequest, context: _Context
    ) -> AsyncGenerator[tokenizer_pb2.GenerateResponse]:
        """Answers a conversation."""
        self._model.check_name(request.model)
        generation = self._model.complete(read_generation(request))
        answer = self._answering.run(generation, self._timeout_s(context), rpc.trace_metadata(context))
        async with aclosing(answer) as events:
            async for event in events:
                yield write_event(event, self._model.vocabulary)

    async def Encode(self, request: tokenizer_pb2.EncodeRequest, context: _Context) -> tokenizer_pb2.EncodeResponse:
        """Renders and encodes without generating."""
        self._model.check_name(request.model)
        source = read_source(request)
        routing = read_routing(request.routing, source)
        prompt = await self._answering.prompt(source, routing, self._timeout_s(context))
        segments = await self._answering.segments(source, prompt, self._timeout_s(context))
        token_ids = prompt.ids.tobytes()
        secret = identity.page_key_secret(routing.cache_scope, self._model.fingerprint)
        return tokenizer_pb2.EncodeResponse(
            token_ids=token_ids,
            segments=write_segments(segments),
            fence_program=None if prompt.fence is None else write_program(prompt.fence).SerializeToString(),
            page_keys=identity.page_keys(secret, token_ids),
            tokenizer_fingerprint=self._model.fingerprint,
            path=_PATHS[prompt.encoded.path],
            encoded_tokens=prompt.encoded.encoded_tokens,
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
        source = read_source(request)
        routing = read_routing(request.routing, source) if request.HasField("routing") else Routing("", "", "")
        prompt = await self._answering.prompt(source, routing, self._timeout_s(context))
        segments = await self._answering.segments(source, prompt, self._timeout_s(context))
        counts = count_tokens(segments, len(prompt.ids))
        return tokenizer_pb2.CountTokensResponse(tokens=len(prompt.ids), segments=write_counts(counts))

    async def ListModels(
        self, request: tokenizer_pb2.ListModelsRequest, context: _Context
    ) -> tokenizer_pb2.ListModelsResponse:
        """Lists the one model, whether or not an engine answers."""
        context_tokens = await self._answering.context_tokens()
        model = write_model(self._model, context_tokens, is_certified=self._is_certified)
        return tokenizer_pb2.ListModelsResponse(models=[model])

    async def ExplainPrefix(
        self, request: tokenizer_pb2.ExplainPrefixRequest, context: _Context
    ) -> tokenizer_pb2.ExplainPrefixResponse:
        """Says where a prompt left the nearest earlier one."""
        self._model.check_name(request.model)
        timeout_s = self._timeout_s(context)
        match request.WhichOneof("what"):
            case "response_id":
                if not request.routing.tenant:
                    raise InvalidRequestError("routing.tenant", "routing.tenant is empty")
                explanation, cached = await self._answering.explain_response(
                    request.routing.tenant, request.response_id, timeout_s
                )
                return write_explanation(explanation, cached)
            case "pair":
                left = read_conversation(request.pair.left)
                right = read_conversation(request.pair.right)
                routing = read_routing(request.routing, left)
                return write_explanation(await self._answering.explain_pair(left, right, routing, timeout_s), None)
            case _:
                raise InvalidRequestError("response_id", "there is neither a response_id nor a pair")

    def _timeout_s(self, context: _Context) -> float:
        return rpc.deadline_s(context, self._settings.request_timeout_s)
