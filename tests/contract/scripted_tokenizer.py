"""A TokenizerService that says what a test tells it to, on real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2_grpc
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from services import rpc
from services.errors import ServiceError
from services.gateway.upstream import TOKENIZER_SERVICE

MODEL = "tiny-chat"


def refusal(status: str, reason: str, message: str, **details: Any) -> ServiceError:
    """An error as the tokenizer raises it."""
    kind = type("ScriptedError", (ServiceError,), {"status": status, "reason": reason})
    return kind(message, **details)


def admitted(
    prompt_tokens: int = 135, *, vram: int = 120, ssd: int = 0, miss: str | None = "cold"
) -> pb.GenerateResponse:
    tiers = [(pb.TIER_VRAM, vram), (pb.TIER_SSD, ssd)]
    cached = pb.Cached(
        by_tier=[pb.TierTokens(tier=tier, tokens=tokens) for tier, tokens in tiers if tokens],
        recomputed_tokens=prompt_tokens - vram - ssd,
        miss=None if miss is None else pb.Miss(reason=miss),
    )
    return pb.GenerateResponse(admitted=pb.Admitted(prompt_tokens=prompt_tokens, cached=cached, engine_id="engine-0"))


def text(value: str, *, choice: int = 0, logprobs: Iterable[pb.TokenLogprobs] = ()) -> pb.GenerateResponse:
    return pb.GenerateResponse(text_delta=pb.TextDelta(text=value, choice=choice, logprobs=logprobs))


def logprobs(token: bytes, logprob: float, *top: tuple[bytes, float]) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(
        sampled=pb.TokenLogprob(token=token, logprob=logprob),
        top=[pb.TokenLogprob(token=other, logprob=value) for other, value in top],
    )


def reasoning(value: str, *, choice: int = 0) -> pb.GenerateResponse:
    return pb.GenerateResponse(reasoning_delta=pb.ReasoningDelta(text=value, choice=choice))


def reasoning_finished(capsule: bytes) -> pb.GenerateResponse:
    return pb.GenerateResponse(reasoning_finished=pb.ReasoningFinished(capsule=capsule))


def call(
    index: int,
    call_id: str,
    name: str,
    *fragments: str,
    kind: conversation_pb2.CallKind.ValueType = conversation_pb2.CALL_KIND_FUNCTION,
    choice: int = 0,
) -> list[pb.GenerateResponse]:
    started = pb.CallStarted(index=index, call_id=call_id, name=name, kind=kind, choice=choice)
    deltas = [pb.CallDelta(index=index, fragment=fragment, choice=choice) for fragment in fragments]
    ended = pb.CallFinished(index=index, arguments="".join(fragments), choice=choice)
    return [
        pb.GenerateResponse(call_started=started),
        *(pb.GenerateResponse(call_delta=delta) for delta in deltas),
        pb.GenerateResponse(call_finished=ended),
    ]


def progress(prefilled_tokens: int) -> pb.GenerateResponse:
    return pb.GenerateResponse(progress=pb.Progress(prefilled_tokens=prefilled_tokens, prompt_tokens=135))


def finished(
    reason: pb.FinishReason.ValueType = pb.FINISH_REASON_STOP,
    *,
    vram: int = 120,
    ssd: int = 8,
    stop_text: str | None = None,
    choice: int = 0,
) -> pb.GenerateResponse:
    cached = pb.Cached(
        by_tier=[pb.TierTokens(tier=pb.TIER_VRAM, tokens=vram), pb.TierTokens(tier=pb.TIER_SSD, tokens=ssd)],
        recomputed_tokens=135 - vram - ssd,
    )
    usage = pb.Usage(prompt_tokens=135, cached=cached, output_tokens=7, reasoning_tokens=2)
    return pb.GenerateResponse(finished=pb.Finished(choice=choice, reason=reason, usage=usage, stop_text=stop_text))


HELLO = [admitted(), text("Hello"), text(", world"), finished()]

Step = pb.GenerateResponse | ServiceError | asyncio.Event | float


# Abstract to the type checker only: the RPCs that are not overridden answer UNIMPLEMENTED.
_Servicer: Any = tokenizer_pb2_grpc.TokenizerServiceServicer


@dataclass
class ScriptedTokenizer(_Servicer):
    """``script`` is played for every Generate: send an event, raise an error, wait for an Event, sleep seconds."""

    script: Iterable[Step] = field(default_factory=lambda: list(HELLO))
    models: list[pb.Model] = field(
        default_factory=lambda: [
            pb.Model(id=MODEL, aliases=["default"], context_tokens=8192, created_s=1_700_000_000),
            pb.Model(id="org/other", context_tokens=4096, created_s=1_700_000_001),
        ]
    )
    error: ServiceError | None = None
    """Of Generate and CountTokens."""
    models_error: ServiceError | None = None
    explanation: pb.ExplainPrefixResponse | ServiceError = field(default_factory=pb.ExplainPrefixResponse)
    explained: pb.ExplainPrefixRequest | None = None
    requests: list[pb.GenerateRequest] = field(default_factory=list[pb.GenerateRequest])
    counted: list[pb.CountTokensRequest] = field(default_factory=list[pb.CountTokensRequest])
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    deadline_s: float | None = None
    num_sent: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    completed: asyncio.Event = field(default_factory=asyncio.Event)
    address: str = ""

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        self.requests.append(request)
        self.metadata = dict(context.invocation_metadata())
        self.deadline_s = context.time_remaining()
        self.started.set()
        is_complete = False
        try:
            if self.error is not None:
                raise self.error
            for step in self.script:
                match step:
                    case ServiceError():
                        raise step
                    case asyncio.Event():
                        await step.wait()
                    case float() | int():
                        await asyncio.sleep(step)
                    case pb.GenerateResponse():
                        yield step
                        self.num_sent += 1
            is_complete = True
        finally:
            (self.completed if is_complete else self.cancelled).set()

    async def CountTokens(self, request: pb.CountTokensRequest, context: Any) -> pb.CountTokensResponse:
        self.counted.append(request)
        if self.error is not None:
            raise self.error
        return pb.CountTokensResponse(tokens=135)

    async def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:
        if self.models_error is not None:
            raise self.models_error
        return pb.ListModelsResponse(models=self.models)

    async def ExplainPrefix(self, request: pb.ExplainPrefixRequest, context: Any) -> pb.ExplainPrefixResponse:
        self.explained = request
        if isinstance(self.explanation, ServiceError):
            raise self.explanation
        return self.explanation

    @asynccontextmanager
    async def serving(
        self,
        status: health_pb2.HealthCheckResponse.ServingStatus.ValueType = health_pb2.HealthCheckResponse.SERVING,
        port: int = 0,
        host: str = "127.0.0.1",
    ) -> AsyncGenerator[ScriptedTokenizer]:
        """Serve at ``address``; port 0 is any free one."""
        server = rpc.new_server()
        tokenizer_pb2_grpc.add_TokenizerServiceServicer_to_server(self, server)
        checks = cast(Any, health).aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        for name in ("", TOKENIZER_SERVICE):
            await checks.set(name, status)
        self.address = f"{host}:{rpc.bind(server, f'{host}:{port}')}"
        await server.start()
        try:
            yield self
        finally:
            await server.stop(None)
