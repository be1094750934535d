"""Anthropic's Messages and count_tokens, from the socket to the tokenizer."""

from __future__ import annotations

import asyncio
import base64
import random
import re
from typing import Any

import anthropic
import httpx
import orjson
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from fencepost.tokenizer.v1 import conversation_pb2 as conv
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from gateway_server import gateway_at
from pydantic import TypeAdapter
from scripted_tokenizer import (
    MODEL,
    ScriptedTokenizer,
    admitted,
    call,
    finished,
    progress,
    reasoning,
    reasoning_finished,
    refusal,
    text,
)

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
TOOLS = [{"name": name, "input_schema": {"type": "object", "properties": {}}} for name in ("ls", "pwd")]
ENDED = finished(pb.FINISH_REASON_CALLS)
SIGNATURE = base64.b64encode(b"capsule").decode()
LOST = refusal("UNAVAILABLE", "ENGINE_LOST", "The engine went away.", retry_after_s=2)
SCRIPTS: dict[str, list[Any]] = {
    "text": [admitted(), text("Hello"), text(", world"), finished()],
    "thinking": [
        *(admitted(), reasoning("h"), reasoning("m"), reasoning_finished(b"capsule")),
        *(text("\n\n"), text("So"), text("."), finished()),
    ],
    "one_call": [admitted(), text("\n"), *call(0, "call_a", "ls", '{"path"', ':"/"}'), ENDED],
    "parallel_calls": [
        *(admitted(), progress(64), text("Let me look.")),
        *call(0, "call_a", "ls", '{"path"', ':"/"}'),
        *call(1, "call_b", "pwd"),
        *call(2, "call_c", "ls", "{", "", "}"),
        ENDED,
    ],
    "stop_sequence": [admitted(), text("One"), finished(pb.FINISH_REASON_STOP_TEXT, stop_text="END")],
    "length": [
        *(admitted(), *call(0, "call_a", "ls", "{}"), *call(1, "call_b", "ls", '{"path": "/", "na', "me")[:-1]),
        finished(pb.FINISH_REASON_LENGTH),
    ],
    "loop": [admitted(), text("ha" * 20), finished(pb.FINISH_REASON_LOOP)],
    "nothing": [admitted(), text("\n"), finished()],
    "unreadable_call": [admitted(), *call(0, "call_a", "ls", '{"path": ')[:-1], finished()],
}
REASONS = {
    **dict.fromkeys(("text", "thinking", "nothing", "loop"), "end_turn"),
    **dict.fromkeys(("one_call", "parallel_calls", "unreadable_call"), "tool_use"),
    "length": "max_tokens",
    "stop_sequence": "stop_sequence",
}


def body(**changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}], **changes}


def events(content: bytes) -> list[dict[str, Any]]:
    """All events; each has its name, and is one that the official client knows."""
    found: list[dict[str, Any]] = []
    *frames, rest = content.split(b"\n\n")
    assert rest == b""
    for frame in frames:
        name, data = frame.split(b"\n")
        event = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        if event["type"] not in ("ping", "error"):
            EVENT.validate_json(orjson.dumps(event), strict=True)
        found.append(event)
    return found


async def stream_of(client: httpx.AsyncClient, **changes: Any) -> list[dict[str, Any]]:
    response = await client.post(PATH, json=body(stream=True, **changes))
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    return events(response.content)


def stable(content: bytes) -> bytes:
    content = re.sub(rb"msg_[0-9a-f]{32}", b"msg_ID", content)
    return re.sub(rb"req_[0-9a-f]{32}", b"req_ID", content)


def sdk(url: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0)


@pytest.mark.parametrize("name", SCRIPTS)
async def test_streams_match_golden(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, golden: Any, name: str
) -> None:
    tokenizer.script = SCRIPTS[name]
    response = await client.post(PATH, json=body(stream=True, tools=TOOLS))
    assert [event["type"] for event in events(response.content)][:2] == ["message_start", "ping"]
    golden(f"messages_{name}.sse", stable(response.content))


async def test_an_error_amid_the_answer_matches_golden(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, golden: Any
) -> None:
    tokenizer.script = [admitted(), text("Hel"), LOST]
    response = await client.post(PATH, json=body(stream=True), headers={"x-request-id": "mine-1"})
    last = events(response.content)[-1]
    assert (last["type"], last["error"]["type"], last["request_id"]) == ("error", "overloaded_error", "mine-1")
    golden("messages_error.sse", stable(response.content))


@pytest.mark.parametrize("name", SCRIPTS)
async def test_the_official_client_reads_the_same_from_a_stream_and_from_the_whole(
    url: str, client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, name: str
) -> None:
    tokenizer.script = SCRIPTS[name]
    whole = (await client.post(PATH, json=body(tools=TOOLS))).content
    expected = Message.model_validate_json(whole, strict=True)
    async with sdk(url) as official, official.messages.stream(**body(tools=TOOLS)) as stream:
        final = await stream.get_final_message()
    # What the two differ in is not said: the stream's message has no type of its own for some nulls.
    shown, wanted = (one.model_dump(exclude={"id"}, exclude_none=True) for one in (final, expected))
    assert shown == wanted
    assert final.stop_reason == REASONS[name]
    assert (final.usage.input_tokens, final.usage.cache_read_input_tokens, final.usage.output_tokens) == (7, 128, 7)
    assert final.usage.cache_creation_input_tokens == 0


async def test_what_a_message_holds(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = SCRIPTS["thinking"]
    message = (await client.post(PATH, json=body())).json()
    assert re.fullmatch(r"msg_[0-9a-f]{32}", message.pop("id"))
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": SIGNATURE},
            {"type": "text", "text": "\n\nSo."},
        ],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "cache_read_input_tokens": 128,
            "cache_creation_input_tokens": 0,
            "output_tokens": 7,
            "output_tokens_details": {"thinking_tokens": 2},
        },
    }
    tokenizer.script = SCRIPTS["stop_sequence"]
    message = (await client.post(PATH, json=body())).json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")


async def test_random_answers_read_the_same_both_ways(
    url: str, client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    dice = random.Random(1)
    async with sdk(url) as official:
        for _ in range(40):
            script: list[Any] = [admitted(vram=dice.choice([0, 64, 120]))]
            if dice.random() < 0.5:
                script += [reasoning(dice.choice(["", "\n", "hm"])) for _ in range(3)]
                script.append(reasoning_finished(dice.randbytes(dice.choice([0, 9]))))
            num_calls = 0
            for _ in range(dice.randrange(6)):
                if dice.random() < 0.6:
                    script.append(text(dice.choice(["", "\n", "a", "\u2028", "event: error\n\n"])))
                    continue
                arguments = dice.choice(["", "{}", '{"a": [1, {"b": "\\u2028"}]}'])
                cut = dice.randint(0, len(arguments))
                script += call(num_calls, f"call_{num_calls}", "ls", arguments[:cut], arguments[cut:])
                num_calls += 1
            script.append(ENDED if num_calls else finished())
            tokenizer.script = script
            stop_reason = (await stream_of(client))[-2]["delta"]["stop_reason"]
            assert stop_reason == ("tool_use" if num_calls else "end_turn")
            whole = Message.model_validate_json((await client.post(PATH, json=body())).content, strict=True)
            async with official.messages.stream(**body()) as stream:
                final = await stream.get_final_message()
            shown, wanted = ([block.model_dump(exclude_none=True) for block in one.content] for one in (final, whole))
            assert shown == wanted


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_answer_that_was_given_up_is_an_error(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, is_stream: bool
) -> None:
    tokenizer.script = [admitted(), text("a"), finished(pb.FINISH_REASON_CANCELLED)]
    response = await client.post(PATH, json=body(stream=is_stream))
    assert response.status_code == (200 if is_stream else 529)
    last = events(response.content)[-1] if is_stream else response.json()
    assert last["error"] == {"type": "overloaded_error", "message": "The server gave this answer up; try again."}


async def test_usage_is_whole_at_the_start_and_at_the_end(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    tokenizer.script = [admitted(vram=100), text("a"), finished(vram=100, ssd=8)]
    start, *_, delta, _ = await stream_of(client)
    assert start["message"]["usage"]["input_tokens"] == 35
    assert start["message"]["usage"]["cache_read_input_tokens"] == 100
    assert delta["usage"] == {
        "input_tokens": 27,
        "cache_read_input_tokens": 108,
        "cache_creation_input_tokens": 0,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 2},
    }


async def test_a_request_that_waits_begins_its_stream_and_pings(tokenizer: ScriptedTokenizer) -> None:
    waiting = asyncio.Event()
    tokenizer.script = [waiting, admitted(), text("a"), finished()]
    content = b""
    async with (
        gateway_at(tokenizer.address, keep_alive_s=0.02) as url,
        httpx.AsyncClient(timeout=10) as client,
        client.stream("POST", f"{url}{PATH}", json=body(stream=True)) as response,
    ):
        assert "x-fencepost-cache" not in response.headers
        async for chunk in response.aiter_bytes():
            content += chunk
            if content.count(b"event: ping") == 4:
                waiting.set()
    start, *others = [event for event in events(content) if event["type"] != "ping"]
    assert start["message"]["usage"]["input_tokens"] == 0
    assert others[-2]["usage"]["input_tokens"] == 7
    assert others[-1]["type"] == "message_stop"


async def test_an_error_while_the_request_waits_ends_the_stream(tokenizer: ScriptedTokenizer) -> None:
    waiting = asyncio.Event()
    tokenizer.script = [
        waiting,
        refusal("INVALID_ARGUMENT", "BAD", "no text", metadata={"field": "sampling.stop_texts"}),
    ]
    content = b""
    async with (
        gateway_at(tokenizer.address, keep_alive_s=0.02) as url,
        httpx.AsyncClient(timeout=10) as client,
        client.stream("POST", f"{url}{PATH}", json=body(stream=True)) as response,
    ):
        async for chunk in response.aiter_bytes():
            content += chunk
            waiting.set()
    last = events(content)[-1]
    assert last["error"] == {"type": "invalid_request_error", "message": "stop_sequences: no text"}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_client_that_leaves_cancels_the_answer(url: str, tokenizer: ScriptedTokenizer, is_stream: bool) -> None:
    tokenizer.script = [admitted(), text("a"), asyncio.Event()]
    async with httpx.AsyncClient(base_url=url) as client:
        asking = asyncio.create_task(client.post(PATH, json=body(stream=is_stream)))
        async with asyncio.timeout(10):
            await tokenizer.started.wait()
        asking.cancel()
    async with asyncio.timeout(10):
        await tokenizer.cancelled.wait()


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "kind", "message"),
    [
        (LOST, 529, "overloaded_error", "The engine went away."),
        (refusal("RESOURCE_EXHAUSTED", "BUSY", "Busy.", retry_after_s=3), 429, "rate_limit_error", "Busy."),
        (
            refusal(
                *("OUT_OF_RANGE", "CONTEXT_LENGTH_EXCEEDED", "Too long."),
                metadata={"prompt_tokens": "9000", "context_tokens": "8192"},
            ),
            *(400, "invalid_request_error", "prompt is too long: 9000 tokens > 8191 maximum"),
        ),
        (
            refusal("UNIMPLEMENTED", "UNSUPPORTED", "not yet", metadata={"field": "conversation.tool_choice"}),
            *(400, "invalid_request_error", "tool_choice: not yet"),
        ),
        (refusal("INTERNAL", "BUG", "secret"), 500, "api_error", "The server failed; its log has the details."),
    ],
)
async def test_errors_before_the_answer(
    client: httpx.AsyncClient,
    tokenizer: ScriptedTokenizer,
    error: Any,
    status: int,
    kind: str,
    message: str,
    is_stream: bool,
) -> None:
    tokenizer.error = error
    for path in (PATH, COUNT):
        response = await client.post(path, json=body(stream=is_stream), headers={"x-request-id": "mine-1"})
        assert response.status_code == status
        assert response.headers["request-id"] == "mine-1"
        assert ("retry-after" in response.headers) == (status in (429, 529))
        assert response.json() == {
            "type": "error",
            "error": {"type": kind, "message": message},
            "request_id": "mine-1",
        }


async def test_bad_requests_name_the_field(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text"}]}]
    for path in (PATH, COUNT, "/messages", "/messages/count_tokens"):
        response = await client.post(path, json=body(messages=messages))
        assert response.status_code == 400
        assert response.json()["error"] == {
            "type": "invalid_request_error",
            "message": "messages.0.content.1.text: is required.",
        }
    unknown = await client.post(PATH, json=body(model="nobody"))
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")


async def test_the_official_client_gets_its_own_errors(url: str, tokenizer: ScriptedTokenizer) -> None:
    async with sdk(url) as official:
        with pytest.raises(anthropic.BadRequestError, match="max_tokens: "):
            await official.messages.create(**body(max_tokens=0))
        with pytest.raises(anthropic.NotFoundError):
            await official.messages.create(**body(model="nobody"))
        tokenizer.script = [admitted(), text("a"), LOST]
        with pytest.raises(anthropic.APIStatusError, match="The engine went away"):
            async with official.messages.stream(**body()) as stream:
                await stream.get_final_message()


@pytest.mark.parametrize("path", [PATH, f"{PATH}?beta=true", "/messages", "/messages?beta=true"])
async def test_every_path_answers(client: httpx.AsyncClient, path: str) -> None:
    response = await client.post(
        path, json=body(), headers={"anthropic-beta": "a,b", "anthropic-version": "2023-06-01"}
    )
    assert response.json()["content"] == [{"type": "text", "text": "Hello, world"}]
    assert response.headers["x-fencepost-cache"].startswith("vram=120 ")


async def test_aliases_mean_the_served_model(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    response = await client.post(PATH, json=body(model="claude-opus-4-1"))
    assert response.json()["model"] == tokenizer.requests[0].model == MODEL


async def test_a_count_asks_for_the_prompt_of_the_request(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    session = {"x-claude-code-session-id": "s-1"}
    request = body(system=[{"type": "text", "text": "x-anthropic-billing-header: 1"}], tools=TOOLS)
    await client.post(PATH, json=request, headers=session)
    del request["max_tokens"]
    counted = await client.post(f"{COUNT}?beta=true", json=request, headers=session)
    assert counted.json() == {"input_tokens": 135}
    generated, count = tokenizer.requests[0], tokenizer.counted[0]
    assert count.conversation == generated.conversation
    assert (count.model, count.routing.tenant) == (generated.model, generated.routing.tenant)
    assert count.routing.conversation_key == generated.routing.conversation_key == "s-1"
    assert count.routing.cache_scope == generated.routing.cache_scope


async def test_many_counts_at_once(url: str, tokenizer: ScriptedTokenizer) -> None:
    async with sdk(url) as official:
        counts = await asyncio.gather(
            *(
                official.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": f"{index}"}])
                for index in range(20)
            )
        )
    assert [count.input_tokens for count in counts] == [135] * 20
    asked = {count.conversation.messages[0].parts[0].text.text for count in tokenizer.counted}
    assert asked == {str(index) for index in range(20)}


async def test_an_answer_comes_back_as_it_was_given(
    url: str, client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    tokenizer.script = [
        *(admitted(), reasoning("hm"), reasoning_finished(b"capsule"), text("So:")),
        *call(0, "call_a", "ls", '{"path": "/"}'),
        ENDED,
    ]
    async with sdk(url) as official:
        async with official.messages.stream(**body(tools=TOOLS)) as stream:
            answer = await stream.get_final_message()
        result = {"type": "tool_result", "tool_use_id": "call_a", "content": "a.py"}
        turns = [*body()["messages"], answer.to_param(), {"role": "user", "content": [result]}]
        await official.messages.create(**body(tools=TOOLS, messages=turns))
    first, second = (list(request.conversation.messages) for request in tokenizer.requests)
    assert second[:1] == first
    assert second[1:] == [
        conv.Message(
            role=conv.ROLE_ASSISTANT,
            parts=[
                conv.Part(reasoning=conv.ReasoningPart(text="hm", capsule=b"capsule")),
                conv.Part(text=conv.TextPart(text="So:")),
            ],
            calls=[
                conv.Call(
                    call_id="call_a",
                    name="ls",
                    kind=conv.CALL_KIND_FUNCTION,
                    arguments=second[1].calls[0].arguments,
                )
            ],
        ),
        conv.Message(role=conv.ROLE_TOOL, call_id="call_a", parts=[conv.Part(text=conv.TextPart(text="a.py"))]),
    ]
    assert orjson.loads(second[1].calls[0].arguments) == {"path": "/"}
