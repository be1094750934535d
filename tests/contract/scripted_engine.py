"""An engine that plays a script: a real gRPC server without a model."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fencepost.engine.v1 import engine_pb2 as pb
from fencepost.engine.v1 import engine_pb2_grpc

from services import rpc
from services.errors import ServiceError


class RefusalError(ServiceError):
    """What an engine says to a request that it refuses."""

    status = "UNIMPLEMENTED"
    reason = "UNSUPPORTED"


class DrainingError(ServiceError):
    """What an engine says while it shuts down."""

    status = "UNAVAILABLE"
    reason = "DRAINING"


# Typed stubs make every method abstract; those that no test needs stay the generated ones.
_Servicer: Any = engine_pb2_grpc.EngineServiceServicer


@dataclass
class ScriptedEngine(_Servicer):
    """Answers every request with ``script``: messages, exceptions to raise, numbers of seconds to wait."""

    fingerprint: str
    script: Sequence[pb.GenerateResponse | Exception | float] = ()
    context_tokens: int = 400
    end_token_ids: Sequence[int] = (2,)
    requests: list[Any] = field(default_factory=list[Any])
    num_described: int = 0
    deadline_s: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    began: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    address: str = ""

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:
        self.num_described += 1
        return pb.GetModelResponse(
            tokenizer_fingerprint=self.fingerprint,
            context_tokens=self.context_tokens,
            end_token_ids=self.end_token_ids,
            model="tiny",
            engine_id=f"engine at {self.address}",
        )

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        self.requests.append(request)
        self.deadline_s = context.time_remaining()
        self.metadata = dict(context.invocation_metadata())
        self.began.set()
        try:
            for step in self.script:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, pb.GenerateResponse):
                    yield step
                else:
                    await asyncio.sleep(step)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def Prefill(self, request: pb.PrefillRequest, context: Any) -> AsyncIterator[pb.PrefillResponse]:
        self.requests.append(request)
        cached = pb.Cached(recomputed_tokens=3)
        yield pb.PrefillResponse(admitted=pb.Admitted(prompt_tokens=3, cached=cached))
        yield pb.PrefillResponse(progress=pb.Progress(prefilled_tokens=2, prompt_tokens=3))
        usage = pb.Usage(prompt_tokens=3, cached=cached)
        yield pb.PrefillResponse(finished=pb.Finished(reason=pb.FINISH_REASON_PREFILLED, usage=usage))

    @asynccontextmanager
    async def serving(self, address: str = "127.0.0.1:0") -> AsyncGenerator["ScriptedEngine"]:
        server = rpc.new_server()
        engine_pb2_grpc.add_EngineServiceServicer_to_server(self, server)
        self.address = f"{address.rpartition(':')[0]}:{rpc.bind(server, address)}"
        await server.start()
        try:
            yield self
        finally:
            await server.stop(None)


def admitted(prompt_tokens: int = 3) -> pb.GenerateResponse:
    cached = pb.Cached(
        by_tier=[pb.TierTokens(tier=pb.TIER_VRAM, tokens=2)],
        recomputed_tokens=1,
        miss=pb.Miss(reason=pb.MISS_REASON_FORKED, at_token=2),
    )
    return pb.GenerateResponse(admitted=pb.Admitted(prompt_tokens=prompt_tokens, cached=cached))


def sampled(*ids: int, choice: int = 0, logprobs: Sequence[pb.TokenLogprobs] = ()) -> pb.GenerateResponse:
    return pb.GenerateResponse(tokens=pb.Tokens(ids=ids, choice=choice, logprobs=logprobs))


def finished(
    reason: pb.FinishReason.ValueType = pb.FINISH_REASON_STOP,
    stop_text: int | None = None,
    prompt_tokens: int = 3,
    choice: int = 0,
) -> pb.GenerateResponse:
    usage = pb.Usage(
        prompt_tokens=prompt_tokens,
        cached=pb.Cached(by_tier=[pb.TierTokens(tier=pb.TIER_SSD, tokens=2)], recomputed_tokens=1),
        output_tokens=5,
        timings=pb.Timings(queued_ms=1, restored_ms=2, prefilled_ms=3, decoded_ms=4),
    )
    return pb.GenerateResponse(finished=pb.Finished(choice=choice, reason=reason, usage=usage, stop_text=stop_text))
