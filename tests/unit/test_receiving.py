"""What a call answers reaches its reader, and costs no memory where the reader has gone."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from services import rpc
from services.receiving import answer_of, message_of, messages_of

MESSAGE = b"x" * 100_000
NUM_MESSAGES = 20
NUM_CANCELLED = 400


class AllocatorUse(ctypes.Structure):
    """glibc's mallinfo2."""

    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names)


def allocated_bytes() -> int:
    """What malloc has given out and not got back."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        pytest.skip("only glibc tells what it has given out")
    mallinfo.restype = AllocatorUse
    return mallinfo().uordblks


class Server:
    """Streams messages and remembers how its calls ended."""

    def __init__(self) -> None:
        self.was_cancelled = asyncio.Event()

    async def stream(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            for _ in range(NUM_MESSAGES):
                yield MESSAGE
            if request == b"fail":
                await context.abort(grpc.StatusCode.DATA_LOSS, "broken")
            if request == b"hang":
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise

    async def one(self, request: bytes, context: Any) -> bytes:
        if request == b"fail":
            await context.abort(grpc.StatusCode.DATA_LOSS, "broken")
        return MESSAGE


@pytest.fixture
def served() -> Server:
    return Server()


@pytest.fixture
async def channel(served: Server) -> AsyncGenerator[grpc.aio.Channel]:
    handlers = {
        "Stream": grpc.unary_stream_rpc_method_handler(served.stream),
        "One": grpc.unary_unary_rpc_method_handler(served.one),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with rpc.open_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(0)


def stream(channel: grpc.aio.Channel, request: bytes = b"") -> Any:
    return channel.unary_stream("/test.Service/Stream")(request)


def one(channel: grpc.aio.Channel, request: bytes = b"") -> Any:
    return channel.unary_unary("/test.Service/One")(request)


async def test_every_message_arrives_in_order_and_then_none(channel: grpc.aio.Channel) -> None:
    assert [message async for message in messages_of(stream(channel))] == [MESSAGE] * NUM_MESSAGES
    call = stream(channel)
    assert [await message_of(call) for _ in range(NUM_MESSAGES)] == [MESSAGE] * NUM_MESSAGES
    assert await message_of(call) is None
    assert await answer_of(one(channel)) == MESSAGE


async def test_a_failed_call_raises_its_status(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        async for _ in messages_of(stream(channel, b"fail")):
            pass
    assert failed.value.code() is grpc.StatusCode.DATA_LOSS
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await answer_of(one(channel, b"fail"))
    assert failed.value.code() is grpc.StatusCode.DATA_LOSS


async def test_a_cancelled_reader_cancels_its_call(channel: grpc.aio.Channel, served: Server) -> None:
    call = stream(channel, b"hang")

    async def read() -> None:
        async for _ in messages_of(call):
            pass

    reader = asyncio.ensure_future(read())
    await asyncio.sleep(0.05)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert call.cancelled()
    await asyncio.wait_for(served.was_cancelled.wait(), 5)


async def test_a_cancelled_call_cancels_its_reader(channel: grpc.aio.Channel) -> None:
    call = stream(channel, b"hang")
    for _ in range(NUM_MESSAGES):
        await message_of(call)
    reading = asyncio.ensure_future(message_of(call))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_readers_that_leave_cost_no_memory(channel: grpc.aio.Channel) -> None:
    async def read() -> None:
        async for _ in messages_of(stream(channel)):
            pass

    async def ask() -> None:
        await answer_of(one(channel))

    async def leave(number: int) -> None:
        task = asyncio.ensure_future(read() if number % 2 else ask())
        await asyncio.sleep(0.00002 * (number % 200))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    for number in range(NUM_CANCELLED // 4):
        await leave(number)
    before = allocated_bytes()
    for number in range(NUM_CANCELLED):
        await leave(number)
    await asyncio.sleep(0.2)
    # A tenth of what came for readers that had gone.
    assert allocated_bytes() - before < NUM_CANCELLED * len(MESSAGE) // 10
