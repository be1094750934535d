"""The tokenizer's replicas, as the gateway calls them.

A conversation goes to the replica that rendezvous hashing gives it; when that one is down, to the next, as long as
nothing has been received.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import grpc
import grpc.aio
from fencepost.tokenizer.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services import rpc
from services.gateway.errors import GatewayError, InternalError, UnavailableError, from_failure
from services.replicas import Replicas

UNARY_TIMEOUT_S = 10.0
HEALTH_TIMEOUT_S = 2.0

_Call = grpc.aio.UnaryStreamCall[tokenizer_pb2.GenerateRequest, tokenizer_pb2.GenerateResponse]
_log = logging.getLogger(__name__)


class Generation:
    """One answer in the making; its holder calls ``cancel`` when it is done with it, finished or not."""

    def __init__(self, call: _Call, admitted: tokenizer_pb2.Admitted) -> None:
        self._call = call
        self.admitted = admitted

    async def events(self) -> AsyncGenerator[tokenizer_pb2.GenerateResponse, None]:
        """What follows Admitted, to the end. Raises GatewayError when the answer does not end as it should."""
        is_finished = False
        while (event := await _read(self._call)) is not None:
            is_finished = is_finished or event.HasField("finished")
            yield event
        if not is_finished:
            _log.error("an answer ended without Finished")
            raise InternalError

    def cancel(self) -> None:
        """End the call at once; nothing happens when it has ended."""
        self._call.cancel()


class Tokenizer:
    """One replica."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self.stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        self._health = cast(Any, health_pb2_grpc).HealthStub(channel)

    async def health(self) -> str:
        """Its word on itself: SERVING, NOT_SERVING, or a status code's name."""
        try:
            answer = await self._health.Check(health_pb2.HealthCheckRequest(), timeout=HEALTH_TIMEOUT_S)
        except grpc.aio.AioRpcError as failed:
            return failed.code().name
        return cast(str, health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


class Tokenizers:
    """All replicas; an answer may take ``timeout_s``."""

    def __init__(self, replicas: Replicas[Tokenizer], *, timeout_s: float) -> None:
        self._replicas = replicas
        self._timeout_s = timeout_s

    async def generate(
        self, request: tokenizer_pb2.GenerateRequest, replica_key: str, metadata: Sequence[tuple[str, str]]
    ) -> Generation:
        """Start an answer and wait until an engine has admitted it. Raises GatewayError."""
        deadline_s = time.monotonic() + self._timeout_s
        error: GatewayError = UnavailableError("No tokenizer service is configured.")
        for tokenizer in self._replicas.in_order(replica_key):
            call = tokenizer.stub.Generate(
                request, timeout=max(0.0, deadline_s - time.monotonic()), metadata=tuple(metadata)
            )
            try:
                first = await _read(call)
                if first is None or not first.HasField("admitted"):
                    _log.error("tokenizer %s began an answer without Admitted", tokenizer.address)
                    raise InternalError
            except UnavailableError as unavailable:
                _log.warning("tokenizer %s is unavailable: %s", tokenizer.address, unavailable)
                error = unavailable
                self._replicas.look_again()
            except BaseException:
                call.cancel()
                raise
            else:
                return Generation(call, first.admitted)
        raise error

    async def list_models(self) -> Sequence[tokenizer_pb2.Model]:
        """What the first replica that answers serves. Raises GatewayError."""
        error: GatewayError = UnavailableError("No tokenizer service is configured.")
        for tokenizer in self._replicas.all():
            try:
                answer = await tokenizer.stub.ListModels(tokenizer_pb2.ListModelsRequest(), timeout=UNARY_TIMEOUT_S)
            except grpc.aio.AioRpcError as failed:
                error = _translated(failed)
                if not isinstance(error, UnavailableError):
                    raise error from None
                self._replicas.look_again()
            else:
                return answer.models
        raise error

    async def health(self) -> dict[str, str]:
        """Each replica's word on itself, by address."""
        tokenizers = self._replicas.all()
        words = await asyncio.gather(*(tokenizer.health() for tokenizer in tokenizers))
        return {tokenizer.address: word for tokenizer, word in zip(tokenizers, words, strict=True)}


async def _read(call: _Call) -> tokenizer_pb2.GenerateResponse | None:
    """The next event, None at the end. Raises GatewayError."""
    try:
        event = await call.read()
    except grpc.aio.AioRpcError as failed:
        raise _translated(failed) from None
    return None if event is grpc.aio.EOF else cast(tokenizer_pb2.GenerateResponse, event)


def _translated(failed: grpc.aio.AioRpcError) -> GatewayError:
    failure = rpc.failure_of(failed)
    error = from_failure(failure)
    if isinstance(error, InternalError | UnavailableError):
        _log.warning("the tokenizer failed: %s %s", failure.code.name, failure.message)
    return error
