"""gRPC as all services use it: options, errors, deadlines, tracing, and the choice of a replica.

Errors travel as a status code, a message for people, and ``google.rpc`` details (``ErrorInfo``, ``RetryInfo``) in the
status trailer. ``ErrorInterceptor`` writes them, ``failure_of`` reads them.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import grpc.aio
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from prometheus_client import Histogram

from services.errors import ServiceError

MAX_MESSAGE_BYTES = 64 * 2**20
ERROR_DOMAIN = "fencepost"

_SIZES = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]
SERVER_OPTIONS: list[tuple[str, int]] = [
    *_SIZES,
    # Two servers on one port would silently share its connections.
    ("grpc.so_reuseport", 0),
    # Clients ping through long silent decodes; without these three the server hangs up on them (ENHANCE_YOUR_CALM).
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
]
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    *_SIZES,
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A killed neighbour is back within a second; the default back-off would leave it unused for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # In spite of its name, how long an attempt may take: a busy neighbour is no absent one.
    ("grpc.min_reconnect_backoff_ms", 3_000),
]

_SECONDS = Histogram(
    "fencepost_rpc_seconds",
    "Wall time of served calls.",
    ["method", "code"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RpcFailure:
    """A failed call, as its server meant it."""

    code: grpc.StatusCode
    message: str
    reason: str = ""
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    retry_after_s: float | None = None


def new_server(interceptor: ErrorInterceptor | None = None) -> grpc.aio.Server:
    """A server with the options, errors and metrics that every service has."""
    return grpc.aio.server(interceptors=[interceptor or ErrorInterceptor()], options=SERVER_OPTIONS)


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to one replica (``host:port`` or ``unix:path``); the caller closes it."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


def bind(server: grpc.aio.Server, address: str) -> int:
    """Listen on ``address`` and return the port. Raises OSError naming the address when it is taken or malformed."""
    try:
        port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if port == 0:
        raise OSError(f"cannot listen on {address}: the address is in use or not ours")
    return port


def deadline_s(context: grpc.aio.ServicerContext[Any, Any], default: float) -> float:
    """Seconds that remain of the caller's deadline, to be passed on; ``default`` when it set none."""
    remaining = cast(float | None, context.time_remaining())
    return default if remaining is None else max(0.0, min(remaining, default))


def trace_metadata(context: grpc.aio.ServicerContext[Any, Any]) -> tuple[tuple[str, str], ...]:
    """The W3C ``traceparent`` of a call, to be passed on; empty when there is none."""
    found = dict(context.invocation_metadata() or ()).get("traceparent")
    return (("traceparent", str(found)),) if found else ()


def rendezvous(key: str, addresses: Sequence[str]) -> list[str]:
    """Addresses in order of preference for ``key``: highest random weight (Thaler and Ravishankar 1998).

    Equal keys get equal orders everywhere; adding or losing an address moves only the keys that lived there.
    """

    def weight(address: str) -> bytes:
        return hashlib.blake2b(f"{len(key)}:{key}{address}".encode(), digest_size=8).digest()

    return sorted(addresses, key=weight, reverse=True)


def failure_of(error: grpc.aio.AioRpcError) -> RpcFailure:
    """Read a failed call's details; whatever is missing or malformed stays empty."""
    reason, metadata, retry = "", dict[str, str](), None
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin" or not isinstance(value, bytes):
            continue
        status = status_pb2.Status()
        with suppress(DecodeError):
            status.ParseFromString(value)
        for detail in status.details:
            info, delay = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
            with suppress(DecodeError):
                if detail.Unpack(info):
                    reason, metadata = info.reason, dict(info.metadata)
                elif detail.Unpack(delay):
                    retry = delay.retry_delay.seconds + delay.retry_delay.nanos / 1e9
    return RpcFailure(error.code(), error.details() or error.code().name.lower(), reason, metadata, retry)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: ServiceError) -> None:
    """End the call with ``error``'s status and details; raises grpc.aio.AbortError."""
    code = grpc.StatusCode[error.status]
    details: list[any_pb2.Any] = []
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=ERROR_DOMAIN, metadata=error.metadata)
    delay = error_details_pb2.RetryInfo()
    if error.retry_after_s is not None:
        nanos = round(error.retry_after_s * 1e9)
        delay.retry_delay.CopyFrom(duration_pb2.Duration(seconds=nanos // 10**9, nanos=nanos % 10**9))
    for message in (info, delay) if error.retry_after_s is not None else (info,):
        packed = any_pb2.Any()
        packed.Pack(message)
        details.append(packed)
    status = status_pb2.Status(code=code.value[0], message=error.message, details=details)
    await context.abort(code, error.message, (("grpc-status-details-bin", status.SerializeToString()),))


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Maps every exception of a servicer to a status, once, and measures every call.

    ServiceError → its own status and details. A failed call to a neighbour → the same status and details.
    NotImplementedError → UNIMPLEMENTED. Anything else is our bug → INTERNAL, logged with its traceback.
    """

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._watches_end = asyncio.Event()

    def end_watches(self) -> None:
        """End with UNAVAILABLE the calls that would never end by themselves: our contracts name them Watch…."""
        self._watches_end.set()

    async def settle(self, timeout_s: float) -> None:
        """Wait until no handler runs: a server that stops cancels those that outlive its grace, but doesn't wait."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = cast(Any, await continuation(handler_call_details))
        if handler is None:
            return None
        method = handler_call_details.method
        name = ("stream" if handler.request_streaming else "unary") + (
            "_stream" if handler.response_streaming else "_unary"
        )
        behaviour = getattr(handler, name)

        async def one(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            self._track()
            async with _translated(method, context):
                answer = behaviour(request, context)
                return await answer if inspect.isawaitable(answer) else answer

        async def many(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
            self._track()
            is_watch = method.startswith("/fencepost.") and "/Watch" in method
            async with _translated(method, context), aclosing(behaviour(request, context)) as source:
                async for answer in _until(self._watches_end, source) if is_watch else source:
                    yield answer
                if is_watch and self._watches_end.is_set():
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "shutting down")

        make = getattr(grpc, f"{name}_rpc_method_handler")
        return make(
            many if handler.response_streaming else one,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _track(self) -> None:
        """Remember the running call."""
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._running.add(task)
        task.add_done_callback(self._running.discard)


async def _until(end: asyncio.Event, source: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
    """What ``source`` yields before ``end`` is set.

    The wait ends, not the task: gRPC leaves a call open whose task is cancelled while it writes an answer.
    """
    ended = asyncio.ensure_future(end.wait())
    following: asyncio.Future[Any] = ended
    try:
        while not ended.done():
            following = asyncio.ensure_future(anext(source))
            await asyncio.wait((following, ended), return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                yield following.result()
    except StopAsyncIteration:
        return
    finally:
        ended.cancel()
        following.cancel()
        await asyncio.gather(ended, following, return_exceptions=True)


@asynccontextmanager
async def _translated(method: str, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncGenerator[None]:
    start, code = time.perf_counter(), grpc.StatusCode.OK
    try:
        yield
    except asyncio.CancelledError:
        code = grpc.StatusCode.CANCELLED
        raise
    except GeneratorExit:
        code = grpc.StatusCode.CANCELLED
        raise
    except grpc.aio.AbortError:
        code = context.code() or grpc.StatusCode.UNKNOWN
        raise
    except ServiceError as error:
        code = grpc.StatusCode[error.status]
        await abort(context, error)
    except grpc.aio.AioRpcError as error:
        code = error.code()
        trailer = tuple((k, v) for k, v in error.trailing_metadata() or () if k == "grpc-status-details-bin")
        await context.abort(code, error.details() or "", trailer)
    except NotImplementedError:
        code = grpc.StatusCode.UNIMPLEMENTED
        await context.abort(code, f"{method} is not implemented by this server")
    except Exception:  # noqa: BLE001 - the one place where our own bugs become a status
        code = grpc.StatusCode.INTERNAL
        _log.exception("%s failed", method)
        await context.abort(code, "internal error; the server's log has the details")
    finally:
        _SECONDS.labels(method, cast(Any, code).name).observe(time.perf_counter() - start)
