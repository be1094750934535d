"""The engines behind this service, chosen by conversation."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
from fencepost.engine.v1 import engine_pb2, engine_pb2_grpc

from services.receiving import answer_of, messages_of
from services.replicas import Replicas
from services.tokenizer.engine_messages import read_event, write_generate, write_prefill
from services.tokenizer.errors import ContextLengthError, EngineLostError, NoEngineError
from services.tokenizer.events import EngineEvent
from services.tokenizer.generate import GenerationRequest
from services.tokenizer.rope.prompt_text import TokenIds
from services.tokenizer.routing import Routing

GET_MODEL_TIMEOUT_S = 5.0
_ANNOTATE_TIMEOUT_S = 2.0
# Less than those who ask for this service's health wait.
_HEALTH_TIMEOUT_S = 1.0
_RETRY_AFTER_S = 1.0
# An engine that is absent, drains or hangs is passed over; anything else it says is meant for the caller.
_PASSED_OVER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_log = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str], ...]


class _UnusableError(Exception):
    """Why an engine is passed over, as the end of a sentence."""


class Engine:
    """One engine, and its description as long as the connection to it lasts."""

    def __init__(self, address: str, channel: grpc.aio.Channel, fingerprint: str) -> None:
        self.address = address
        self._channel = channel
        self._fingerprint = fingerprint
        self._stub = engine_pb2_grpc.EngineServiceStub(channel)
        self._model: engine_pb2.GetModelResponse | None = None

    async def model(self, timeout_s: float) -> engine_pb2.GetModelResponse:
        """What it serves. Raises _UnusableError when it does not answer or has another tokenizer."""
        # Another engine may be at the address next, so a description lasts no longer than its connection.
        if self._model is None or self._channel.get_state() is not grpc.ChannelConnectivity.READY:
            try:
                request = engine_pb2.GetModelRequest()
                model = await answer_of(self._stub.GetModel(request, timeout=min(timeout_s, GET_MODEL_TIMEOUT_S)))
            except grpc.aio.AioRpcError as error:
                if error.code() not in _PASSED_OVER:
                    raise
                raise _UnusableError("does not answer") from error
            if model.tokenizer_fingerprint != self._fingerprint:
                _log.error(
                    "engine %s is not used: its tokenizer is %s, ours is %s",
                    self.address,
                    model.tokenizer_fingerprint,
                    self._fingerprint,
                )
            self._model = model
        if self._model.tokenizer_fingerprint != self._fingerprint:
            raise _UnusableError("has another tokenizer")
        return self._model

    def start(self, request: GenerationRequest, ids: TokenIds, timeout_s: float, metadata: Metadata) -> Any:
        """The running call; the caller cancels it."""
        if request.warm_up_only:
            return self._stub.Prefill(write_prefill(request, ids), timeout=timeout_s, metadata=metadata)
        return self._stub.Generate(write_generate(request, ids), timeout=timeout_s, metadata=metadata)

    async def answers(self) -> bool:
        """Whether it would be used for a request now, found out within a second."""
        try:
            await self.model(_HEALTH_TIMEOUT_S)
        except (_UnusableError, grpc.aio.AioRpcError):
            return False
        return True

    @property
    def engine_id(self) -> str:
        """Of the one last described; empty before that."""
        return "" if self._model is None else self._model.engine_id

    async def annotate(self, routing: Routing, wait_classes: Collection[str]) -> None:
        """Say what a conversation waits for. A hint: nothing is raised where it does not arrive."""
        request = engine_pb2.AnnotateRequest(
            cache_scope=routing.cache_scope, conversation_key=routing.conversation_key, wait_classes=wait_classes
        )
        try:
            await self._stub.Annotate(request, timeout=_ANNOTATE_TIMEOUT_S)
        except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
            _log.debug("engine %s did not take a hint: %s", self.address, error)

    def forget(self) -> None:
        """Ask for the description again before the next use."""
        self._model = None


class Engines:
    """All engines; only those with the tokenizer of this service are used."""

    def __init__(self, replicas: Replicas[Engine]) -> None:
        self._replicas = replicas
        self._hints: set[asyncio.Task[None]] = set()

    def annotate(self, routing: Routing, engine_id: str, wait_classes: Collection[str]) -> None:
        """Tell the engine that served a turn what its client now waits for. Returns at once, whatever comes of it."""
        for engine in self._replicas.all():
            if engine.engine_id == engine_id:
                hint = asyncio.create_task(engine.annotate(routing, wait_classes))
                self._hints.add(hint)
                hint.add_done_callback(self._hints.discard)

    async def run(
        self, request: GenerationRequest, ids: TokenIds, timeout_s: float, metadata: Metadata
    ) -> AsyncGenerator[EngineEvent]:
        """Events of the first engine, in the conversation's order of preference, that takes the request.

        Closing the generator cancels the call. Raises ContextLengthError; NoEngineError when none takes it;
        EngineLostError when it broke off after the first event; and grpc.aio.AioRpcError, an engine's own refusal.
        """
        passed_over: dict[str, str] = {}
        for engine in self._replicas.in_order(request.routing.conversation_key):
            try:
                model = await engine.model(timeout_s)
                if len(ids) >= model.context_tokens:
                    raise ContextLengthError(len(ids), model.context_tokens)
                async with aclosing(_events(engine, model, request, ids, timeout_s, metadata)) as events:
                    async for event in events:
                        yield event
                return
            except _UnusableError as error:
                passed_over[engine.address] = str(error)
                self._replicas.look_again()
        engines = "; ".join(f"{address} {why}" for address, why in passed_over.items())
        _log.warning("no engine takes a request: %s", engines)
        raise NoEngineError(
            f"no engine takes the request: {'; '.join(f'one {why}' for why in passed_over.values())}",
            metadata={"engines": engines},
            retry_after_s=_RETRY_AFTER_S,
        )

    async def any_answers(self) -> bool:
        """Whether an engine would take a request now, found out within a second."""
        if any(await asyncio.gather(*(engine.answers() for engine in self._replicas.all()))):
            return True
        self._replicas.look_again()
        return False

    async def context_tokens(self) -> int | None:
        """Longest prompt and output together, as the first engine that answers has it; None when none does."""
        for engine in self._replicas.all():
            try:
                return (await engine.model(GET_MODEL_TIMEOUT_S)).context_tokens
            except _UnusableError:
                self._replicas.look_again()
        return None


async def _events(
    engine: Engine,
    model: engine_pb2.GetModelResponse,
    request: GenerationRequest,
    ids: TokenIds,
    timeout_s: float,
    metadata: Metadata,
) -> AsyncGenerator[EngineEvent]:
    call = engine.start(request, ids, timeout_s, metadata)
    has_begun = False
    try:
        async for message in messages_of(call):
            has_begun = True
            event = read_event(message, model)
            if event is not None:
                yield event
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        engine.forget()
        if not has_begun:
            raise _UnusableError("does not answer") from error
        _log.warning("engine %s was lost while it answered: %s", engine.address, error.details())
        raise EngineLostError(
            "the engine was lost while it answered; what has arrived is incomplete",
            metadata={"engine": engine.address},
        ) from error
    finally:
        call.cancel()
