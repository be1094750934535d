"""Responses over a WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import httpx
import openai
import orjson
import pytest
import websockets
from dialogue import kvstore_at
from fencepost.tokenizer.v1 import conversation_pb2 as conv
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from gateway_server import gateway_at
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter
from scripted_tokenizer import MODEL, ScriptedTokenizer, admitted, call, finished, progress, refusal, text
from websockets.asyncio.client import ClientConnection, connect

from services.gateway.responses import connection

EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
WAIT_S = 20
LOST = refusal("UNAVAILABLE", "ENGINE_LOST", "The engine went away.", retry_after_s=2)
CALLS = [admitted(), *call(0, "call_1", "ls", '{"a" : 1}'), finished(pb.FINISH_REASON_CALLS)]
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")


class Socket:
    """A client that talks JSON."""

    def __init__(self, raw: ClientConnection) -> None:
        self.raw = raw

    async def send(self, **frame: Any) -> None:
        await self.raw.send(json.dumps(frame))

    async def create(self, **body: Any) -> None:
        await self.send(**{"type": "response.create", "model": MODEL, "input": "Hi", "store": False} | body)

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(WAIT_S):
            frame = await self.raw.recv()
        # Text, not bytes.
        assert isinstance(frame, str)
        event = orjson.loads(frame)
        # Its list of codes is shorter than that of the errors of a request.
        if event["type"] not in ("error", "response.failed"):
            EVENT.validate_json(frame, strict=True)
        return event

    async def rest(self) -> list[dict[str, Any]]:
        """Everything up to what ends a response."""
        events = [await self.next()]
        while events[-1]["type"] not in ENDS:
            events.append(await self.next())
        return events

    async def until(self, kind: str) -> dict[str, Any]:
        while (event := await self.next())["type"] != kind:
            assert event["type"] not in ENDS
        return event

    async def ask(self, **body: Any) -> dict[str, Any]:
        """The last event of a new response."""
        await self.create(**body)
        return (await self.rest())[-1]

    async def response(self, **body: Any) -> dict[str, Any]:
        """A response that completes."""
        last = await self.ask(**body)
        assert last["type"] == "response.completed", last
        return last["response"]


@asynccontextmanager
async def socket_at(url: str, path: str = "/v1/responses") -> AsyncGenerator[Socket]:
    address = url.replace("http", "ws", 1) + path
    async with connect(address, proxy=None, max_size=None, open_timeout=WAIT_S) as raw:
        yield Socket(raw)


def conversation(tokenizer: ScriptedTokenizer) -> list[tuple[Any, ...]]:
    """What the tokenizer got last: roles, texts, calls' arguments."""
    return [
        (
            conv.Role.Name(message.role).removeprefix("ROLE_").lower(),
            "".join(part.text.text for part in message.parts),
            *(made.arguments for made in message.calls),
        )
        for message in tokenizer.requests[-1].conversation.messages
    ]


def assert_not_found(event: dict[str, Any], response_id: str) -> None:
    assert event == {
        "type": "error",
        "status": 400,
        "error": {
            "type": "invalid_request_error",
            "code": "previous_response_not_found",
            "message": f"Previous response with id '{response_id}' not found.",
            "param": "previous_response_id",
        },
        "headers": {},
    }


@pytest.mark.parametrize("path", ["/v1/responses", "/responses"])
async def test_a_response_is_one_event_a_frame_and_ends_with_completed(url: str, path: str) -> None:
    async with socket_at(url, path) as socket:
        for _ in range(3):
            await socket.create()
            events = await socket.rest()
            assert [event["type"] for event in events] == [
                *("response.created", "response.in_progress", "response.output_item.added"),
                *("response.content_part.added", "response.output_text.delta", "response.output_text.delta"),
                *("response.output_text.done", "response.content_part.done", "response.output_item.done"),
                "response.completed",
            ]
            assert [event["sequence_number"] for event in events] == list(range(10))
            assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hello, world"
            assert events[-1]["response"]["usage"]["total_tokens"] == 142


async def test_the_official_client_has_a_conversation(url: str, tokenizer: ScriptedTokenizer) -> None:
    previous: dict[str, str] = {}
    async with (
        asyncio.timeout(WAIT_S),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as official,
        official.responses.connect() as found,
    ):
        for number in range(2):
            body: Any = {"type": "response.create", "model": MODEL, "input": f"Hi {number}", "store": False}
            await found.send(body | previous)
            while (event := await found.recv()).type != "response.completed":
                assert event.type != "error"
            assert event.response.output_text == "Hello, world"
            previous = {"previous_response_id": event.response.id}
    assert conversation(tokenizer) == [("user", "Hi 0"), ("assistant", "Hello, world"), ("user", "Hi 1")]


async def test_a_second_request_is_refused_while_a_response_is_made(url: str, tokenizer: ScriptedTokenizer) -> None:
    waiting = asyncio.Event()
    tokenizer.script = [admitted(), text("Hel"), waiting, text("lo"), finished()]
    async with socket_at(url) as socket:
        await socket.create()
        await socket.until("response.output_text.delta")
        await socket.create(input="Too early")
        error = await socket.next()
        assert (error["type"], error["status"], error["error"]["param"]) == ("error", 400, "type")
        waiting.set()
        last = (await socket.rest())[-1]
        assert last["response"]["output"][0]["content"][0]["text"] == "Hello"
        assert len(tokenizer.requests) == 1
        await socket.response()


async def test_a_cancelled_response_ends_and_the_connection_goes_on(url: str, tokenizer: ScriptedTokenizer) -> None:
    async with socket_at(url) as socket:
        first = await socket.response()
        tokenizer.script = [admitted(), text("Hel"), asyncio.Event()]
        await socket.create(previous_response_id=first["id"])
        await socket.until("response.output_text.delta")
        await socket.send(type="response.cancel")
        last = (await socket.rest())[-1]
        assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
        async with asyncio.timeout(WAIT_S):
            await tokenizer.cancelled.wait()
        tokenizer.script = [admitted(), text("a"), finished()]
        # What the client did not want to hear out is no failure: it may ask otherwise.
        await socket.response(previous_response_id=first["id"])
        # Too late, or for nothing.
        await socket.send(type="response.cancel")
        await socket.response()


async def test_a_request_is_cancelled_before_it_is_admitted(url: str, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = [asyncio.Event()]
    async with socket_at(url) as socket:
        await socket.create()
        async with asyncio.timeout(WAIT_S):
            await tokenizer.started.wait()
        await socket.send(type="response.cancel")
        error = await socket.next()
        assert (error["type"], error["status"], error["error"]["code"]) == ("error", 409, "response_cancelled")
        tokenizer.script = [admitted(), text("a"), finished()]
        # However early it comes.
        await socket.create()
        await socket.send(type="response.cancel")
        await socket.rest()
        await socket.response()


async def test_the_next_request_may_follow_the_last_event_at_once(url: str, tokenizer: ScriptedTokenizer) -> None:
    async with socket_at(url) as socket:
        for number in range(100):
            tokenizer.script = [admitted(), text("a"), LOST if number % 3 == 0 else finished()]
            assert (await socket.ask(model="nobody" if number % 7 == 0 else MODEL))["type"] == (
                "error" if number % 7 == 0 else "response.failed" if number % 3 == 0 else "response.completed"
            )


@pytest.mark.parametrize("script", [[asyncio.Event()], [admitted(), text("Hel"), asyncio.Event()]])
async def test_a_client_that_leaves_ends_the_answer(url: str, tokenizer: ScriptedTokenizer, script: Any) -> None:
    tokenizer.script = [asyncio.Event() if isinstance(step, asyncio.Event) else step for step in script]
    async with socket_at(url) as socket:
        await socket.create()
        async with asyncio.timeout(WAIT_S):
            await tokenizer.started.wait()
    async with asyncio.timeout(WAIT_S):
        await tokenizer.cancelled.wait()


async def test_a_warm_up_prepares_the_prompt_and_is_continued(url: str, tokenizer: ScriptedTokenizer) -> None:
    tools = [{"type": "function", "name": "ls", "parameters": {"type": "object"}}]
    async with socket_at(url) as socket:
        tokenizer.script = [admitted(), finished()]
        prompt = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]}]
        warm = await socket.response(input=prompt, tools=tools, generate=False)
        assert tokenizer.requests[-1].warm_up_only
        assert warm["output"] == []
        tokenizer.script = CALLS
        new = [{"type": "message", "role": "user", "content": "What is here?"}]
        first = await socket.response(input=new, tools=tools, previous_response_id=warm["id"])
        assert not tokenizer.requests[-1].warm_up_only
        output = {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"}
        await socket.response(input=[output], tools=tools, previous_response_id=first["id"])
        assert conversation(tokenizer) == [
            *(("developer", "Be brief."), ("user", "What is here?")),
            *(("assistant", "", '{"a" : 1}'), ("tool", "a.txt")),
        ]


async def test_what_is_not_stored_is_known_on_its_connection_only(url: str, tokenizer: ScriptedTokenizer) -> None:
    async with socket_at(url) as socket, httpx.AsyncClient(base_url=url) as client:
        first = await socket.response()
        assert (await client.get(f"/v1/responses/{first['id']}")).status_code == 404
        second = await socket.response(previous_response_id=first["id"])
        third = await socket.response(previous_response_id=second["id"])
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        await socket.response(input=[reference, {"role": "user", "content": "a"}])
        assert conversation(tokenizer) == [("assistant", "Hello, world"), ("user", "a")]
        async with socket_at(url) as other:
            assert_not_found(await other.ask(previous_response_id=third["id"]), third["id"])
            # The connection stays, so that the client can send everything anew.
            await other.response()


async def test_what_is_stored_goes_on_at_any_gateway(tokenizer: ScriptedTokenizer, tmp_path: Path) -> None:
    async with (
        kvstore_at(tmp_path / "kv") as records,
        gateway_at(tokenizer.address, records=records) as one,
        gateway_at(tokenizer.address, records=records) as other,
    ):
        async with socket_at(one) as socket:
            first = await socket.response(store=True)
        async with socket_at(other) as socket, httpx.AsyncClient(base_url=one) as client:
            second = await socket.response(previous_response_id=first["id"], store=True)
            assert conversation(tokenizer) == [("user", "Hi"), ("assistant", "Hello, world"), ("user", "Hi")]
            assert (await client.get(f"/v1/responses/{second['id']}")).json() == second


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_continuation_that_fails_takes_what_it_continued_with_it(
    url: str, tokenizer: ScriptedTokenizer, has_begun: bool
) -> None:
    async with socket_at(url) as socket:
        first = await socket.response()
        other = await socket.response()
        tokenizer.script = [admitted(), text("a"), LOST] if has_begun else [LOST]
        last = await socket.ask(previous_response_id=first["id"])
        assert last["type"] == ("response.failed" if has_begun else "error")
        tokenizer.script = [admitted(), text("a"), finished()]
        assert_not_found(await socket.ask(previous_response_id=first["id"]), first["id"])
        await socket.response(previous_response_id=other["id"])


async def test_an_answer_that_breaks_off_ends_with_failed(url: str, tokenizer: ScriptedTokenizer) -> None:
    async with socket_at(url) as socket:
        for broken in ([LOST], [finished(pb.FINISH_REASON_CANCELLED)], []):
            tokenizer.script = [admitted(), text("a"), *broken]
            last = await socket.ask()
            assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
            assert last["response"]["error"]["code"] == "server_error"


@pytest.mark.parametrize(
    ("frame", "message", "param"),
    [
        ("{", "The frame is not valid JSON", None),
        ("", "The frame is not valid JSON", None),
        ("[" * 5000, "The frame is not valid JSON", None),
        ("[]", "The frame must be a JSON object.", None),
        ("null", "The frame must be a JSON object.", None),
        (b"{}", "Frames must be text.", None),
        ("{}", "'type' is required.", "type"),
        ('{"type": 1}', "'type' must be a string", "type"),
        ('{"type": "session.update"}', "'type' must be response.create or response.cancel", "type"),
        ('{"type": "response.create", "input": "a"}', "'model' is required.", "model"),
        ('{"type": "response.create", "model": "tiny-chat"}', "'input' is required.", "input"),
        ('{"type": "response.create", "model": "tiny-chat", "input": [1]}', "'input[0]' must be", "input[0]"),
    ],
)
async def test_a_bad_frame_is_an_error_and_the_connection_stays(
    url: str, tokenizer: ScriptedTokenizer, frame: Any, message: str, param: str | None
) -> None:
    async with socket_at(url) as socket:
        await socket.raw.send(frame)
        event = await socket.next()
        assert (event["type"], event["status"], event["headers"]) == ("error", 400, {})
        assert event["error"]["message"].startswith(message)
        assert (event["error"]["type"], event["error"]["param"]) == ("invalid_request_error", param)
        assert not tokenizer.requests
        await socket.response()


@pytest.mark.parametrize(
    ("error", "status", "code", "headers"),
    [
        (
            refusal("RESOURCE_EXHAUSTED", "BUSY", "Busy.", retry_after_s=3),
            429,
            "rate_limit_exceeded",
            {"retry-after": "3"},
        ),
        (LOST, 503, "service_unavailable", {"retry-after": "2"}),
        (refusal("OUT_OF_RANGE", "CONTEXT_LENGTH_EXCEEDED", "Too long."), 400, "context_length_exceeded", {}),
        (refusal("INTERNAL", "BUG", "secret"), 500, None, {}),
    ],
)
async def test_an_error_before_the_start_has_what_http_would_have_said(
    url: str, tokenizer: ScriptedTokenizer, error: Any, status: int, code: str | None, headers: dict[str, str]
) -> None:
    tokenizer.error = error
    async with socket_at(url) as socket:
        event = await socket.ask()
        assert (event["type"], event["status"], event["error"]["code"]) == ("error", status, code)
        assert event["headers"] == headers
        assert "secret" not in event["error"]["message"]
        unknown = await socket.ask(model="nobody")
        assert (unknown["status"], unknown["error"]["code"]) == (404, "model_not_found")


async def asks_until_closed(socket: Socket) -> NoReturn:
    while True:
        await socket.ask()


async def refusal_of(url: str) -> websockets.InvalidStatus:
    with pytest.raises(websockets.InvalidStatus) as raised:
        async with socket_at(url):
            pass
    return raised.value


async def test_a_gateway_without_websockets_sends_its_clients_to_http(tokenizer: ScriptedTokenizer) -> None:
    async with gateway_at(tokenizer.address, websocket=False) as url:
        refused = (await refusal_of(url)).response
        assert refused.status_code == 426
        assert orjson.loads(refused.body)["error"]["code"] == "websocket_disabled"


async def test_one_connection_too_many_is_refused_until_another_ends(tokenizer: ScriptedTokenizer) -> None:
    async with gateway_at(tokenizer.address, max_websockets=2) as url:
        async with socket_at(url) as socket, socket_at(url):
            refused = (await refusal_of(url)).response
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert orjson.loads(refused.body)["error"]["code"] == "service_unavailable"
            await socket.response()
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    async with socket_at(url) as socket:
                        await socket.response()
                    break
                except websockets.InvalidStatus:
                    # The gateway learns a little later that the others have left.
                    await asyncio.sleep(0)


async def test_silence_is_filled_with_progress(tokenizer: ScriptedTokenizer) -> None:
    queued, prefilling = asyncio.Event(), asyncio.Event()
    tokenizer.script = [queued, admitted(), progress(64), prefilling, text("a"), finished()]
    async with gateway_at(tokenizer.address, keep_alive_s=0.02) as url, socket_at(url) as socket:
        await socket.create()
        for _ in range(4):
            await socket.until("response.in_progress")
        queued.set()
        while "fencepost" not in (event := await socket.until("response.in_progress")):
            pass
        assert event["fencepost"] == {"prefilled_tokens": 64, "prompt_tokens": 135}
        prefilling.set()
        events = await socket.rest()
        numbers = [found["sequence_number"] for found in events]
        assert numbers == list(range(event["sequence_number"] + 1, event["sequence_number"] + 1 + len(numbers)))
        assert events[-1]["type"] == "response.completed"


async def test_a_frame_that_is_too_large_closes_the_connection(tokenizer: ScriptedTokenizer) -> None:
    async with gateway_at(tokenizer.address, max_body_bytes=10_000) as url, socket_at(url) as socket:
        await socket.response(input="a" * 9_000)
        await socket.create(input="a" * 10_000)
        with pytest.raises(websockets.ConnectionClosed):
            await socket.next()
        assert socket.raw.close_code == 1009


async def test_what_a_connection_remembers_is_bounded(
    url: str, tokenizer: ScriptedTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LOCAL_BYTES", 10_000)
    async with socket_at(url) as socket:
        oldest = await socket.response(input="a" * 4000)
        newer = await socket.response(input="b" * 4000)
        newest = await socket.response(input="c" * 4000, previous_response_id=None)
        assert_not_found(await socket.ask(previous_response_id=oldest["id"]), oldest["id"])
        await socket.response(input="d", previous_response_id=newest["id"])
        assert newer["id"] != newest["id"]
        # More than all that is kept: answered, and not remembered.
        huge = await socket.response(input="e" * 20_000)
        assert_not_found(await socket.ask(previous_response_id=huge["id"]), huge["id"])
        await socket.response()


async def test_a_gateway_that_stops_lets_the_running_response_end(tokenizer: ScriptedTokenizer) -> None:
    waiting = asyncio.Event()
    tokenizer.script = [admitted(), text("Hel"), waiting, text("lo"), finished()]
    async with AsyncExitStack() as open_until_here:
        url = await open_until_here.enter_async_context(gateway_at(tokenizer.address))
        address = url.replace("http", "ws", 1) + "/v1/responses"
        idle, raw = [await connect(address, proxy=None) for _ in range(2)]
        socket = Socket(raw)
        await socket.create()
        await socket.until("response.output_text.delta")
        stopping = asyncio.create_task(open_until_here.aclose())
        async with asyncio.timeout(WAIT_S):
            await idle.wait_closed()
        assert idle.close_code == 1012
        waiting.set()
        last = (await socket.rest())[-1]
        assert last["response"]["output"][0]["content"][0]["text"] == "Hello"
        async with asyncio.timeout(WAIT_S):
            await raw.wait_closed()
            await stopping
        assert raw.close_code == 1012


async def test_a_gateway_that_stops_begins_no_response(tokenizer: ScriptedTokenizer) -> None:
    waiting = asyncio.Event()
    tokenizer.script = [admitted(), text("a"), waiting, finished()]
    async with AsyncExitStack() as open_until_here:
        url = await open_until_here.enter_async_context(gateway_at(tokenizer.address))
        address = url.replace("http", "ws", 1) + "/v1/responses"
        idle, raw = [await connect(address, proxy=None) for _ in range(2)]
        socket = Socket(raw)
        await socket.create()
        await socket.until("response.output_text.delta")
        stopping = asyncio.create_task(open_until_here.aclose())
        async with asyncio.timeout(WAIT_S):
            await idle.wait_closed()
        await socket.create()
        error = await socket.next()
        assert (error["type"], error["status"]) == ("error", 400)
        waiting.set()
        assert (await socket.rest())[-1]["type"] == "response.completed"
        with pytest.raises(websockets.ConnectionClosed):
            await asks_until_closed(socket)
        await stopping
    assert len(tokenizer.requests) == 1


async def test_a_response_that_outlasts_the_grace_is_cut_off(
    tokenizer: ScriptedTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer.script = [admitted(), text("a"), asyncio.Event()]
    async with gateway_at(tokenizer.address) as url:
        raw = await connect(url.replace("http", "ws", 1) + "/v1/responses", proxy=None)
        socket = Socket(raw)
        await socket.create()
        await socket.until("response.output_text.delta")
    async with asyncio.timeout(WAIT_S):
        await tokenizer.cancelled.wait()
        await raw.wait_closed()
    assert raw.close_code == 1012
    assert not [record for record in caplog.records if record.exc_info]
