"""The tokenizer's replicas, as the gateway calls them.

A conversation goes to the replica that rendezvous hashing gives it; when that one is down, to the next, as long as
nothing has been received.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
from fencepost.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services import rpc
from services.gateway.errors import (
    AnswerCancelledError,
    GatewayError,
    InternalError,
    UnavailableError,
    from_failure,
)
from services.receiving import answer_of, message_of
from services.replicas import Replicas

UNARY_TIMEOUT_S = 30.0
HEALTH_TIMEOUT_S = 2.0
TOKENIZER_SERVICE = "fencepost.tokenizer.v1.TokenizerService"

Trace = Sequence[tuple[str, str]]
"""The W3C trace context that travels with a call."""

_Event = tokenizer_pb2.GenerateResponse
_Call = grpc.aio.UnaryStreamCall[tokenizer_pb2.GenerateRequest, _Event]
_Answer = TypeVar("_Answer")
_log = logging.getLogger(__name__)


class Tokenizer:
    """One replica."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self.stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        self._health = cast(Any, health_pb2_grpc).HealthStub(channel)

    async def health(self, service: str = "") -> str:
        """Its word on itself, or on whether its service can answer: SERVING, NOT_SERVING, or a status code's name."""
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            answer = await self._health.Check(request, timeout=HEALTH_TIMEOUT_S)
        except grpc.aio.AioRpcError as failed:
            return failed.code().name
        return cast(str, health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


class Generation:
    """One answer in the making; its holder calls ``cancel`` when it is done with it, finished or not."""

    def __init__(
        self,
        replicas: Replicas[Tokenizer],
        request: tokenizer_pb2.GenerateRequest,
        key: str,
        deadline_s: float,
        trace: Trace,
    ) -> None:
        self._replicas = replicas
        self._request = request
        self._deadline_s = deadline_s
        self._trace = tuple(trace)
        self._call: _Call | None = None
        self._is_abandoned = False
        self._admission = asyncio.create_task(self._start(key))

    async def admitted(self, within_s: float) -> tokenizer_pb2.Admitted | None:
        """How an engine admitted the request; None when it still waits after that time. Raises GatewayError."""
        done, _ = await asyncio.wait((self._admission,), timeout=within_s)
        if self._is_abandoned and self._admission.cancelled():
            raise AnswerCancelledError
        return self._admission.result().admitted if done else None

    async def events(self) -> AsyncGenerator[_Event, None]:
        """Everything, from Admitted to the end. Raises GatewayError when the answer does not end as it should."""
        yield await self._unless_abandoned(asyncio.shield(self._admission))
        assert self._call is not None
        is_finished = False
        while (event := await self._unless_abandoned(_read(self._call))) is not None:
            is_finished = is_finished or event.HasField("finished")
            yield event
        if not is_finished:
            _log.error("an answer ended without Finished")
            raise InternalError

    def abandon(self) -> None:
        """Cancel on the client's word: whoever reads the events gets AnswerCancelledError."""
        self._is_abandoned = True
        self.cancel()

    async def _unless_abandoned(self, reading: Awaitable[_Answer]) -> _Answer:
        try:
            return await reading
        except asyncio.CancelledError:
            if self._is_abandoned:
                raise AnswerCancelledError from None
            raise

    def cancel(self) -> None:
        """End the call at once; nothing happens when it has ended."""
        self._admission.cancel()
        # Nobody may be left to hear how it failed.
        self._admission.add_done_callback(lambda task: task.cancelled() or task.exception())
        if self._call is not None:
            self._call.cancel()

    async def _start(self, key: str) -> _Event:
        """The first event, of the first replica that gives one. Raises GatewayError."""
        error: GatewayError = UnavailableError("No tokenizer service is configured.")
        for tokenizer in self._replicas.in_order(key):
            timeout_s = max(0.0, self._deadline_s - time.monotonic())
            self._call = tokenizer.stub.Generate(self._request, timeout=timeout_s, metadata=self._trace)
            try:
                first = await _read(self._call)
            except UnavailableError as unavailable:
                _log.warning("tokenizer %s is unavailable: %s", tokenizer.address, unavailable)
                error = unavailable
                self._replicas.look_again()
                continue
            if first is None or not first.HasField("admitted"):
                _log.error("tokenizer %s began an answer without Admitted", tokenizer.address)
                raise InternalError
            return first
        raise error


class Tokenizers:
    """All replicas; an answer may take ``timeout_s``."""

    def __init__(self, replicas: Replicas[Tokenizer], *, timeout_s: float) -> None:
        self._replicas = replicas
        self._timeout_s = timeout_s

    def generate(self, request: tokenizer_pb2.GenerateRequest, replica_key: str, trace: Trace) -> Generation:
        """Start an answer."""
        return Generation(self._replicas, request, replica_key, time.monotonic() + self._timeout_s, trace)

    async def count_tokens(
        self, request: tokenizer_pb2.CountTokensRequest, replica_key: str
    ) -> tokenizer_pb2.CountTokensResponse:
        """Exactly what ``generate`` would send to an engine. Raises GatewayError."""
        return await self._ask(
            self._replicas.in_order(replica_key),
            lambda tokenizer: tokenizer.stub.CountTokens(request, timeout=UNARY_TIMEOUT_S),
        )

    async def explain(self, request: tokenizer_pb2.ExplainPrefixRequest) -> tokenizer_pb2.ExplainPrefixResponse:
        """Where a prompt left the nearest cached one. Raises GatewayError."""
        return await self._ask(
            self._replicas.all(), lambda tokenizer: tokenizer.stub.ExplainPrefix(request, timeout=UNARY_TIMEOUT_S)
        )

    async def list_models(self) -> Sequence[tokenizer_pb2.Model]:
        """What the first replica that answers serves. Raises GatewayError."""
        request = tokenizer_pb2.ListModelsRequest()
        answer = await self._ask(
            self._replicas.all(), lambda tokenizer: tokenizer.stub.ListModels(request, timeout=UNARY_TIMEOUT_S)
        )
        return answer.models

    async def health(self) -> dict[str, str]:
        """Each replica's word on itself, by address. One whose engines are all away serves."""
        tokenizers = self._replicas.all()
        words = await asyncio.gather(*(tokenizer.health() for tokenizer in tokenizers))
        return {tokenizer.address: word for tokenizer, word in zip(tokenizers, words, strict=True)}

    async def can_answer(self) -> bool:
        """Whether a replica serves that has an engine which serves."""
        words = await asyncio.gather(*(tokenizer.health(TOKENIZER_SERVICE) for tokenizer in self._replicas.all()))
        return "SERVING" in words

    async def _ask(
        self, tokenizers: Iterable[Tokenizer], call: Callable[[Tokenizer], grpc.aio.UnaryUnaryCall[Any, _Answer]]
    ) -> _Answer:
        """The answer of the first replica that is there."""
        error: GatewayError = UnavailableError("No tokenizer service is configured.")
        for tokenizer in tokenizers:
            try:
                return await answer_of(call(tokenizer))
            except grpc.aio.AioRpcError as failed:
                error = _translated(failed)
                if not isinstance(error, UnavailableError):
                    raise error from None
                self._replicas.look_again()
        raise error


async def _read(call: _Call) -> _Event | None:
    """The next event, None at the end. Raises GatewayError."""
    try:
        return await message_of(call)
    except grpc.aio.AioRpcError as failed:
        raise _translated(failed) from None


def _translated(failed: grpc.aio.AioRpcError) -> GatewayError:
    failure = rpc.failure_of(failed)
    error = from_failure(failure)
    if isinstance(error, InternalError | UnavailableError):
        _log.warning("the tokenizer failed: %s %s", failure.code.name, failure.message)
    return error
