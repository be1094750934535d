"""SSE framing, coalescing, back-pressure and endings of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import orjson
import pytest

from services.gateway.errors import UnavailableError
from services.gateway.stream import BUFFER_BYTES, ClientGoneError, EventStream, sse, unless_gone


class Client:
    """The far end: takes what is sent once it is allowed to, and leaves when told to."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.has_received = asyncio.Event()
        self.is_complete = False
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.is_gone = asyncio.Event()
        self.headers: dict[bytes, bytes] = {}

    async def receive(self) -> dict[str, Any]:
        await self.is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.may_read.wait()
        if message["type"] == "http.response.start":
            self.headers = dict(message["headers"])
            return
        assert not self.is_complete
        self.bodies.append(message["body"])
        self.is_complete = not message["more_body"]
        self.has_received.set()


def stream_of(frames: AsyncGenerator[bytes, None], closed: list[str], keep_alive_s: float = 60.0) -> EventStream:
    return EventStream(
        frames,
        frame_of_error=lambda error: error.message.encode(),
        keep_alive=lambda: b".",
        keep_alive_s=keep_alive_s,
        close=lambda: closed.append("closed"),
        headers={"x-extra": "1"},
    )


async def deliver(stream: EventStream, client: Client) -> None:
    async with asyncio.timeout(10):
        await stream({"type": "http"}, client.receive, client.send)


async def test_frames_arrive_whole_and_in_order() -> None:
    async def frames() -> AsyncGenerator[bytes, None]:
        for i in range(100):
            if i % 7 == 0:
                await asyncio.sleep(0)
            yield b"%d," % i

    client, closed = Client(), list[str]()
    await deliver(stream_of(frames(), closed), client)
    assert b"".join(client.bodies) == b"".join(b"%d," % i for i in range(100))
    assert client.is_complete
    assert closed == ["closed"]
    assert client.headers[b"x-extra"] == b"1"
    assert client.headers[b"content-type"] == b"text/event-stream; charset=utf-8"


async def test_all_that_is_queued_goes_in_one_send() -> None:
    async def frames() -> AsyncGenerator[bytes, None]:
        for _ in range(50):
            yield b"x"

    client = Client()
    await deliver(stream_of(frames(), []), client)
    assert client.bodies == [b"x" * 50]


async def test_a_stalled_client_stops_the_source() -> None:
    num_made = 0

    async def frames() -> AsyncGenerator[bytes, None]:
        nonlocal num_made
        for _ in range(1000):
            num_made += 1
            yield b"x" * 10_000

    client = Client()
    client.may_read.clear()
    delivery = asyncio.create_task(deliver(stream_of(frames(), []), client))
    for _ in range(1000):
        await asyncio.sleep(0)
    assert num_made == 0
    client.may_read.set()
    await asyncio.sleep(0)
    client.may_read.clear()
    for _ in range(1000):
        await asyncio.sleep(0)
    assert 0 < num_made <= 2 * (BUFFER_BYTES // 10_000 + 1)
    client.may_read.set()
    await delivery
    assert num_made == 1000
    assert sum(map(len, client.bodies)) == 10_000_000


async def test_a_client_that_leaves_ends_source_and_stream() -> None:
    ended = asyncio.Event()

    async def frames() -> AsyncGenerator[bytes, None]:
        try:
            yield b"x"
            await asyncio.Event().wait()
        finally:
            ended.set()

    client, closed = Client(), list[str]()
    delivery = asyncio.create_task(deliver(stream_of(frames(), closed), client))
    await client.has_received.wait()
    client.is_gone.set()
    with pytest.raises(ClientGoneError):
        await delivery
    assert ended.is_set()
    assert closed == ["closed"]
    assert not client.is_complete


async def test_errors_end_the_stream_in_its_protocols_shape() -> None:
    async def expected() -> AsyncGenerator[bytes, None]:
        yield b"x|"
        raise UnavailableError("gone")

    async def our_bug() -> AsyncGenerator[bytes, None]:
        yield b"x|"
        raise KeyError("inside")

    for frames, said in ((expected, b"x|gone"), (our_bug, b"x|The server failed; its log has the details.")):
        client = Client()
        await deliver(stream_of(frames(), []), client)
        assert b"".join(client.bodies) == said
        assert client.is_complete


async def test_silence_is_filled_but_never_after_the_end() -> None:
    silence = asyncio.Event()

    async def frames() -> AsyncGenerator[bytes, None]:
        yield b"a"
        await silence.wait()
        yield b"b"

    client = Client()
    delivery = asyncio.create_task(deliver(stream_of(frames(), [], keep_alive_s=0.01), client))
    while b"".join(client.bodies).count(b".") < 3:
        client.has_received.clear()
        await client.has_received.wait()
    silence.set()
    await delivery
    sent = b"".join(client.bodies)
    assert sent.startswith(b"a...")
    assert sent.endswith(b"b")


async def test_a_stalled_client_gathers_no_keep_alives() -> None:
    silence = asyncio.Event()

    async def frames() -> AsyncGenerator[bytes, None]:
        yield b"a"
        await silence.wait()
        yield b"b"

    client = Client()
    delivery = asyncio.create_task(deliver(stream_of(frames(), [], keep_alive_s=0.01), client))
    await client.has_received.wait()
    client.may_read.clear()
    await asyncio.sleep(0.2)
    client.may_read.set()
    silence.set()
    await delivery
    # One being sent, one waiting, one that the clock may add at the end.
    assert b"".join(client.bodies).count(b".") <= 3


async def test_work_for_nobody_is_cancelled() -> None:
    client, cancelled = Client(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    running = asyncio.create_task(unless_gone(client.receive, work()))
    await asyncio.sleep(0)
    client.is_gone.set()
    with pytest.raises(ClientGoneError):
        await running
    assert cancelled.is_set()


async def test_cancelling_the_waiter_cancels_the_work() -> None:
    client, cancelled = Client(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    running = asyncio.create_task(unless_gone(client.receive, work()))
    for _ in range(3):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cancelled.is_set()


def test_line_separators_are_escaped() -> None:
    hostile = "a\u2028\u2029\u0085é\u0105…\u2027\u202a"
    framed = sse({"text": hostile})
    assert framed.startswith(b"data: {")
    assert framed.endswith(b"}\n\n")
    assert framed.decode().splitlines() == [framed.decode().rstrip("\n"), ""]
    assert orjson.loads(framed[6:]) == {"text": hostile}
    assert "é\u0105…\u2027\u202a" in framed.decode()
