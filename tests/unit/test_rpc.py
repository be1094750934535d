"""gRPC as all services use it, on real servers and channels."""

import asyncio
import importlib
import logging
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from fencepost.engine.v1 import engine_pb2, engine_pb2_grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from services import rpc
from services.errors import ServiceError

Context = grpc.aio.ServicerContext[bytes, bytes]


class Busy(ServiceError):
    status = "RESOURCE_EXHAUSTED"
    reason = "QUEUE_FULL"


FAILURE = rpc.RpcFailure(
    grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full: 8 of 8 ½", "QUEUE_FULL", {"queue": "writes"}, 2.25
)


def busy() -> Busy:
    return Busy(FAILURE.message, metadata={"queue": "writes"}, retry_after_s=2.25)


@asynccontextmanager
async def serving(
    one: Callable[[bytes, Context], Any] | None = None,
    many: Callable[[bytes, Context], Any] | None = None,
    both: Callable[[AsyncIterator[bytes], Context], Any] | None = None,
    collect: Callable[[AsyncIterator[bytes], Context], Any] | None = None,
) -> AsyncGenerator[grpc.aio.Channel]:
    """A server whose messages are plain bytes, and a channel to it."""
    makers = {
        "One": (one, grpc.unary_unary_rpc_method_handler),
        "Many": (many, grpc.unary_stream_rpc_method_handler),
        "Both": (both, grpc.stream_stream_rpc_method_handler),
        "Collect": (collect, grpc.stream_unary_rpc_method_handler),
    }
    handlers = {name: cast(Any, make)(behaviour) for name, (behaviour, make) in makers.items() if behaviour}
    server = rpc.new_server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))
    port = rpc.bind(server, "127.0.0.1:0")
    await server.start()
    channel = rpc.open_channel(f"127.0.0.1:{port}")
    try:
        yield channel
    finally:
        await channel.close()
        await server.stop(None)


async def ask(channel: grpc.aio.Channel, request: bytes = b"", **options: Any) -> bytes:
    return await channel.unary_unary("/test.Test/One")(request, **options)


def stream(channel: grpc.aio.Channel, request: bytes = b"", **options: Any) -> Any:
    return channel.unary_stream("/test.Test/Many")(request, **options)


async def failure(call: Any) -> rpc.RpcFailure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return rpc.failure_of(caught.value)


async def failure_of_stream(call: Any, received: list[bytes]) -> rpc.RpcFailure:
    try:
        async for message in call:
            received.append(message)
    except grpc.aio.AioRpcError as error:
        return rpc.failure_of(error)
    raise AssertionError("the call did not fail")


# --- options


@pytest.mark.parametrize("name", [name for name, _ in {*rpc.SERVER_OPTIONS, *rpc.CHANNEL_OPTIONS}])
def test_option_is_one_that_grpc_knows(name: str) -> None:
    """A misspelt option is silently ignored; those that exist are constants in the library's binary."""
    binary = Path(cast(str, importlib.import_module("grpc._cython.cygrpc").__file__)).read_bytes()
    assert name.encode() + b"\0" in binary


async def test_messages_of_40_mib_pass_both_ways() -> None:
    async def echo(request: bytes, context: Context) -> bytes:
        return request

    async def echo_twice(request: bytes, context: Context) -> AsyncGenerator[bytes]:
        yield request
        yield request

    big = bytes(40 * 2**20)
    async with serving(one=echo, many=echo_twice) as channel:
        assert await ask(channel, big) == big
        assert [message == big async for message in stream(channel, big)] == [True, True]
        failed = await failure(ask(channel, bytes(rpc.MAX_MESSAGE_BYTES + 1)))
    assert failed.code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_second_server_on_a_port_is_refused() -> None:
    first, second = rpc.new_server(), rpc.new_server()
    port = rpc.bind(first, "127.0.0.1:0")
    assert port > 0
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: the address is in use"):
        rpc.bind(second, f"127.0.0.1:{port}")
    await first.start()
    with pytest.raises(OSError, match=f":{port}"):
        rpc.bind(second, f"127.0.0.1:{port}")
    await first.stop(None)


@pytest.mark.parametrize("address", ["192.0.2.1:80", "unix:/no/such/folder/socket", "a b:1"])
async def test_address_that_cannot_be_had_is_named(address: str) -> None:
    with pytest.raises(OSError, match=f"cannot listen on {address}"):
        rpc.bind(rpc.new_server(), address)


async def test_unix_sockets_serve(tmp_path: Path) -> None:
    server = rpc.new_server()
    # The stubs call methods abstract that the generated base answers with UNIMPLEMENTED.
    servicer = engine_pb2_grpc.EngineServiceServicer()  # pyright: ignore[reportAbstractUsage]
    engine_pb2_grpc.add_EngineServiceServicer_to_server(servicer, server)
    rpc.bind(server, f"unix:{tmp_path}/s")
    await server.start()
    async with rpc.open_channel(f"unix:{tmp_path}/s") as channel:
        failed = await failure(engine_pb2_grpc.EngineServiceStub(channel).GetModel(engine_pb2.GetModelRequest()))
    assert failed.code is grpc.StatusCode.UNIMPLEMENTED
    await server.stop(None)


async def test_restarted_server_is_found_again() -> None:
    async def answer(request: bytes, context: Context) -> bytes:
        return b"answer"

    handler = grpc.method_handlers_generic_handler("test.Test", {"One": grpc.unary_unary_rpc_method_handler(answer)})
    port = 0
    channel = None
    for _ in range(2):
        server = rpc.new_server()
        server.add_generic_rpc_handlers((handler,))
        port = rpc.bind(server, f"127.0.0.1:{port}")
        await server.start()
        channel = channel or rpc.open_channel(f"127.0.0.1:{port}")
        assert await ask(channel, wait_for_ready=True, timeout=10) == b"answer"
        await server.stop(None)
        assert (await failure(ask(channel))).code is grpc.StatusCode.UNAVAILABLE
    assert channel is not None
    await channel.close()


# --- errors


async def test_service_error_travels_whole() -> None:
    async def fail(request: bytes, context: Context) -> bytes:
        raise busy()

    async def fail_at(request: bytes, context: Context) -> AsyncGenerator[bytes]:
        for _ in range(request[0]):
            yield b"message"
        raise busy()

    async def fail_requests(requests: AsyncIterator[bytes], context: Context) -> bytes:
        async for _ in requests:
            raise busy()
        return b""

    async def fail_both(requests: AsyncIterator[bytes], context: Context) -> AsyncGenerator[bytes]:
        async for request in requests:
            yield request
            raise busy()

    async with serving(one=fail, many=fail_at, collect=fail_requests, both=fail_both) as channel:
        assert await failure(ask(channel)) == FAILURE
        for count in (0, 1, 5):
            received: list[bytes] = []
            assert await failure_of_stream(stream(channel, bytes([count])), received) == FAILURE
            assert received == [b"message"] * count
        assert await failure(channel.stream_unary("/test.Test/Collect")(iter([b"a"]))) == FAILURE
        received = []
        assert await failure_of_stream(channel.stream_stream("/test.Test/Both")(iter([b"a"])), received) == FAILURE
        assert received == [b"a"]


async def test_failure_without_retry_or_metadata() -> None:
    async def fail(request: bytes, context: Context) -> bytes:
        raise ServiceError("no")

    async with serving(one=fail) as channel:
        assert await failure(ask(channel)) == rpc.RpcFailure(grpc.StatusCode.INTERNAL, "no", "INTERNAL", {}, None)


@pytest.mark.parametrize("retry_after_s", [0.0, 0.001, 1.9999999999, 86_400.0])
async def test_retry_delay_is_kept(retry_after_s: float) -> None:
    async def fail(request: bytes, context: Context) -> bytes:
        raise Busy("busy", retry_after_s=retry_after_s)

    async with serving(one=fail) as channel:
        assert (await failure(ask(channel))).retry_after_s == pytest.approx(retry_after_s, abs=1e-9)


async def test_our_own_bugs_are_logged_and_say_nothing_to_callers(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(request: bytes, context: Context) -> bytes:
        raise KeyError("secret prompt")

    async def fail_late(request: bytes, context: Context) -> AsyncGenerator[bytes]:
        yield b"message"
        raise KeyError("secret prompt")

    async with serving(one=fail, many=fail_late) as channel:
        with caplog.at_level(logging.ERROR, "services.rpc"):
            failures = [await failure(ask(channel)), await failure_of_stream(stream(channel), [])]
    for failed in failures:
        assert failed.code is grpc.StatusCode.INTERNAL
        assert "secret" not in str(failed)
    logged = [record for record in caplog.records if record.name == "services.rpc"]
    assert [record.getMessage() for record in logged] == ["/test.Test/One failed", "/test.Test/Many failed"]
    assert all(record.exc_info for record in logged)


async def test_neighbours_failure_passes_on_with_its_details() -> None:
    async def fail(request: bytes, context: Context) -> bytes:
        raise busy()

    async with serving(one=fail) as neighbour:

        async def relay(request: bytes, context: Context) -> bytes:
            return await ask(neighbour)

        async def relay_many(request: bytes, context: Context) -> AsyncGenerator[bytes]:
            yield b"message"
            yield await ask(neighbour)

        async with serving(one=relay, many=relay_many) as channel:
            assert await failure(ask(channel)) == FAILURE
            assert await failure_of_stream(stream(channel), []) == FAILURE


async def test_method_that_is_not_overridden_is_unimplemented() -> None:
    server = rpc.new_server()
    servicer = engine_pb2_grpc.EngineServiceServicer()  # pyright: ignore[reportAbstractUsage]
    engine_pb2_grpc.add_EngineServiceServicer_to_server(servicer, server)
    port = rpc.bind(server, "127.0.0.1:0")
    await server.start()
    async with rpc.open_channel(f"127.0.0.1:{port}") as channel:
        stub = engine_pb2_grpc.EngineServiceStub(channel)
        one = await failure(stub.GetModel(engine_pb2.GetModelRequest()))
        many = await failure_of_stream(stub.Generate(engine_pb2.GenerateRequest()), [])
        unknown = await failure(ask(channel))
    await server.stop(None)
    assert one.message == "/fencepost.engine.v1.EngineService/GetModel is not implemented by this server"
    assert {failed.code for failed in (one, many, unknown)} == {grpc.StatusCode.UNIMPLEMENTED}


async def test_servicer_may_abort_by_itself() -> None:
    async def fail(request: bytes, context: Context) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "not here")
        return b""

    before = observed("/test.Test/One", "NOT_FOUND")
    async with serving(one=fail) as channel:
        failed = await failure(ask(channel))
    assert failed == rpc.RpcFailure(grpc.StatusCode.NOT_FOUND, "not here")
    assert observed("/test.Test/One", "NOT_FOUND") == before + 1


def observed(method: str, code: str) -> float:
    value = REGISTRY.get_sample_value("fencepost_rpc_seconds_count", {"method": method, "code": code})
    return value or 0.0


async def test_calls_are_counted_by_method_and_code() -> None:
    async def answer(request: bytes, context: Context) -> bytes:
        if request:
            raise busy()
        return b""

    before = [observed("/test.Test/One", code) for code in ("OK", "RESOURCE_EXHAUSTED")]
    async with serving(one=answer) as channel:
        await ask(channel)
        await failure(ask(channel, b"fail"))
    after = [observed("/test.Test/One", code) for code in ("OK", "RESOURCE_EXHAUSTED")]
    assert after == [count + 1 for count in before]


def error_with(trailer: Sequence[tuple[str, Any]], details: str | None = "details") -> grpc.aio.AioRpcError:
    metadata = grpc.aio.Metadata(*trailer)
    return grpc.aio.AioRpcError(grpc.StatusCode.ABORTED, grpc.aio.Metadata(), metadata, details)


def test_malformed_details_stay_empty() -> None:
    plain = rpc.RpcFailure(grpc.StatusCode.ABORTED, "details")
    assert rpc.failure_of(error_with([])) == plain
    assert rpc.failure_of(error_with([("other", "x"), ("grpc-status-details-bin", b"\xff\xff")])) == plain
    assert rpc.failure_of(error_with([("grpc-status-details-bin", "text")])) == plain
    info = any_pb2.Any()
    info.Pack(error_details_pb2.ErrorInfo(reason="R"))
    broken = any_pb2.Any(type_url=info.type_url, value=b"\xff\xff")
    unknown = any_pb2.Any(type_url="type.googleapis.com/no.such.Message", value=b"")
    for details in ([broken], [unknown]):
        status = status_pb2.Status(details=details).SerializeToString()
        assert rpc.failure_of(error_with([("grpc-status-details-bin", status)])) == plain
    status = status_pb2.Status(details=[broken, unknown, info]).SerializeToString()
    assert rpc.failure_of(error_with([("grpc-status-details-bin", status)])).reason == "R"
    assert rpc.failure_of(error_with([], None)).message == "aborted"


# --- calls


async def test_cancelling_reaches_the_handler() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def one(request: bytes, context: Context) -> bytes:
        await wait()
        return b""

    async def many(request: bytes, context: Context) -> AsyncGenerator[bytes]:
        yield b"message"
        await wait()

    async with serving(one=one, many=many) as channel, asyncio.timeout(10):
        asking = asyncio.create_task(ask(channel))
        await started.wait()
        asking.cancel()
        await cancelled.wait()
        started.clear()
        cancelled.clear()
        call = stream(channel)
        assert await call.read() == b"message"
        await started.wait()
        call.cancel()
        await cancelled.wait()


async def test_answers_are_closed_when_the_caller_leaves_between_two() -> None:
    """Not only where it awaits something of its own: the generator's finally runs before the call is over."""
    closed = asyncio.Event()

    async def many(request: bytes, context: Context) -> AsyncGenerator[bytes]:
        try:
            while True:
                yield bytes(2**20)
        finally:
            closed.set()

    async with serving(many=many) as channel:
        call = stream(channel)
        await call.read()
        call.cancel()
        async with asyncio.timeout(10):
            await closed.wait()


async def test_deadline_that_remains_is_passed_on() -> None:
    async def remaining(request: bytes, context: Context) -> bytes:
        return struct.pack("<d", rpc.deadline_s(context, 30.0))

    async with serving(one=remaining) as channel:

        async def asked(timeout: float | None) -> float:
            return struct.unpack("<d", await ask(channel, timeout=timeout))[0]

        assert await asked(None) == 30.0
        assert await asked(1000) == 30.0
        assert 0 < await asked(20) < 25


async def test_trace_is_passed_on() -> None:
    async def trace(request: bytes, context: Context) -> bytes:
        return repr(rpc.trace_metadata(context)).encode()

    parent = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    async with serving(one=trace) as channel:
        assert await ask(channel) == b"()"
        assert await ask(channel, metadata=(("other", "x"), parent)) == repr((parent,)).encode()


# --- choice of a replica


ADDRESSES = st.lists(st.text(min_size=1), min_size=1, max_size=8, unique=True)


@given(key=st.text(), addresses=ADDRESSES, data=st.data())
def test_order_of_replicas_depends_on_nothing_but_key_and_set(
    key: str, addresses: list[str], data: st.DataObject
) -> None:
    order = rpc.rendezvous(key, addresses)
    assert sorted(order) == sorted(addresses)
    assert rpc.rendezvous(key, data.draw(st.permutations(addresses))) == order


@given(key=st.text(), addresses=ADDRESSES, added=st.text(min_size=1))
def test_keys_move_only_to_a_new_replica_or_from_a_lost_one(key: str, addresses: list[str], added: str) -> None:
    if added in addresses:
        return
    order = rpc.rendezvous(key, [*addresses, added])
    assert [address for address in order if address != added] == rpc.rendezvous(key, addresses)


def test_order_is_the_same_in_every_version() -> None:
    assert rpc.rendezvous("conversation", ["a:1", "b:1", "c:1"]) == ["c:1", "a:1", "b:1"]


def test_keys_are_balanced() -> None:
    addresses = [f"10.0.0.{i}:50051" for i in range(5)]
    homes = [rpc.rendezvous(f"conversation-{i}", addresses)[0] for i in range(5000)]
    counts = [homes.count(address) for address in addresses]
    assert max(counts) < 1100
    assert min(counts) > 900
