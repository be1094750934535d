"""Clients that leave, clients that are slow, and replicas that are down."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import httpx
import orjson
import pytest
from gateway_server import gateway_at
from grpc_health.v1 import health_pb2
from scripted_tokenizer import MODEL, ScriptedTokenizer, admitted, finished, refusal, text

from services import rpc

PATH = "/v1/chat/completions"


def body(**changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **changes}


async def open_request(url: str, **changes: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request on a socket of its own, whose client reads nothing unless told to."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    content = orjson.dumps(body(**changes))
    writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (PATH.encode(), len(content)) + content)
    return reader, writer


async def within_reason(event: asyncio.Event) -> None:
    async with asyncio.timeout(10):
        await event.wait()


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("is_admitted", [False, True])
async def test_a_client_that_leaves_cancels_the_answer(
    url: str, tokenizer: ScriptedTokenizer, is_stream: bool, is_admitted: bool
) -> None:
    never = asyncio.Event()
    tokenizer.script = [admitted(), text("a"), never] if is_admitted else [never]
    _, writer = await open_request(url, stream=is_stream)
    await within_reason(tokenizer.started)
    while is_admitted and tokenizer.num_sent < 2:
        assert not tokenizer.cancelled.is_set()
        await asyncio.sleep(0.005)
    assert not tokenizer.cancelled.is_set()
    writer.close()
    await within_reason(tokenizer.cancelled)


async def test_a_client_that_leaves_amid_a_flood_cancels_the_answer(url: str, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = itertools.chain([admitted()], itertools.repeat(text("x" * 1000)))
    reader, writer = await open_request(url, stream=True)
    await reader.readexactly(100_000)
    writer.close()
    await within_reason(tokenizer.cancelled)


async def test_an_answer_read_to_its_end_is_not_cancelled(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    tokenizer.script = [admitted(), text("a"), finished(), 0.05]
    assert (await client.post(PATH, json=body(stream=True))).text.endswith("data: [DONE]\n\n")
    await within_reason(tokenizer.completed)
    assert not tokenizer.cancelled.is_set()


async def test_a_slow_reader_holds_the_tokenizer_back(tokenizer: ScriptedTokenizer) -> None:
    piece = "x" * 50_000
    tokenizer.script = itertools.chain([admitted()], itertools.repeat(text(piece)))
    async with gateway_at(tokenizer.address, send_buffer_bytes=65_536) as url:
        reader, writer = await open_request(url, stream=True)
        # Nothing moves any more when a while passes without an event.
        num_sent, num_quiet = -1, 0
        while num_quiet < 15:
            await asyncio.sleep(0.02)
            num_quiet = num_quiet + 1 if tokenizer.num_sent == num_sent > 0 else 0
            num_sent = tokenizer.num_sent
            assert num_sent * len(piece) < 64 * 2**20
        # It moves on as soon as somebody reads.
        while tokenizer.num_sent < num_sent + 20:
            assert await reader.read(65_536)
        writer.close()
        await within_reason(tokenizer.cancelled)


async def test_many_disconnections_leave_nothing_behind(url: str, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = [admitted(), text("a"), asyncio.Event()]
    before = len(asyncio.all_tasks())
    for _ in range(10):
        tokenizer.cancelled.clear()
        reader, writer = await open_request(url, stream=True)
        await reader.readuntil(b'"content":"a"')
        writer.close()
        await within_reason(tokenizer.cancelled)
    for _ in range(100):
        if len(asyncio.all_tasks()) <= before + 2:
            break
        await asyncio.sleep(0.01)
    assert len(asyncio.all_tasks()) <= before + 2


async def test_another_replica_answers_when_one_is_down(tokenizer: ScriptedTokenizer) -> None:
    dead = "127.0.0.1:1"
    both = [dead, tokenizer.address]
    keys = [next(key for key in map(str, range(1000)) if rpc.rendezvous(key, both)[0] == first) for first in both]
    async with gateway_at(*both) as url, httpx.AsyncClient(base_url=url) as client:
        for key, is_stream in itertools.product(keys, (False, True)):
            response = await client.post(PATH, json=body(prompt_cache_key=key, stream=is_stream))
            assert response.status_code == 200
    assert len(tokenizer.requests) == 4


async def test_a_conversation_stays_on_its_replica() -> None:
    async with ScriptedTokenizer().serving() as first, ScriptedTokenizer().serving() as second:
        replicas = {replica.address: replica for replica in (first, second)}
        async with gateway_at(*replicas) as url, httpx.AsyncClient(base_url=url) as client:
            for i in range(8):
                opening = [{"role": "user", "content": f"question {i}"}]
                answers = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "more"}]
                for messages in (opening, opening + answers):
                    assert (await client.post(PATH, json=body(messages=messages))).status_code == 200
        openings = [
            {request.conversation.messages[0].parts[0].text.text for request in replica.requests}
            for replica in replicas.values()
        ]
        assert not openings[0] & openings[1]
        assert len(openings[0] | openings[1]) == 8
        assert len(first.requests) + len(second.requests) == 16


async def test_a_replica_that_failed_amid_an_answer_is_not_replaced() -> None:
    async with ScriptedTokenizer().serving() as first, ScriptedTokenizer().serving() as second:
        for replica in (first, second):
            replica.script = [admitted(), text("a"), refusal("UNAVAILABLE", "ENGINE_LOST", "gone")]
        async with gateway_at(first.address, second.address) as url, httpx.AsyncClient(base_url=url) as client:
            assert (await client.post(PATH, json=body())).status_code == 503
        assert len(first.requests) + len(second.requests) == 1


async def test_health_tells_no_address(tokenizer: ScriptedTokenizer) -> None:
    draining = ScriptedTokenizer()
    async with draining.serving(health_pb2.HealthCheckResponse.NOT_SERVING):
        async with (
            gateway_at("127.0.0.1:1", draining.address, tokenizer.address) as url,
            httpx.AsyncClient(base_url=url) as client,
        ):
            response = await client.get("/health")
            assert (response.status_code, response.json()) == (200, {"status": "ok"})
        async with gateway_at("127.0.0.1:1", draining.address) as url, httpx.AsyncClient(base_url=url) as client:
            response = await client.get("/health")
            assert response.status_code == 503
            assert response.headers["retry-after"] == "1"
            assert response.json() == {
                "status": "unavailable",
                "message": "no model is ready to answer; try again shortly",
            }
