"""Responses as a stream and in one object, from the socket to the tokenizer."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson
import pytest
from fencepost.kvstore.v1 import record_pb2, record_pb2_grpc
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from gateway_server import gateway_at
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from scripted_tokenizer import (
    HELLO,
    MODEL,
    ScriptedTokenizer,
    admitted,
    finished,
    progress,
    reasoning,
    reasoning_finished,
    refusal,
    text,
)

from services import rpc
from tests.unit.gateway.responses.answers import FINISHES, LS, PATCH, SEARCH, SHELL, Events, answers, call
from tests.unit.gateway.responses.item_laws import Event, items_of

PATH = "/v1/responses"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOLS = [
    {"type": "function", "name": "ls", "parameters": {"type": "object", "properties": {}}, "strict": False},
    {"type": "custom", "name": "apply_patch"},
    {
        "type": "namespace",
        "name": "mcp__docs__",
        "description": "Docs.",
        "tools": [{"type": "function", "name": "search", "strict": False, "parameters": {"type": "object"}}],
    },
    {"type": "local_shell"},
]
SUMMARY = {"reasoning": {"summary": "auto"}}
ENCRYPTED = {"include": ["reasoning.encrypted_content"]}
ENDED = finished(pb.FINISH_REASON_CALLS)
CUT = finished(pb.FINISH_REASON_LENGTH)
THOUGHT = [
    admitted(),
    reasoning("h"),
    reasoning("m"),
    reasoning_finished(b"capsule"),
    text("So"),
    text("."),
    finished(),
]
LOST = refusal("UNAVAILABLE", "ENGINE_LOST", "The engine went away.", retry_after_s=2)
SCRIPTS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "text": ({}, HELLO),
    "reasoning": ({}, THOUGHT),
    "reasoning_summary": (SUMMARY, THOUGHT),
    "reasoning_encrypted": (ENCRYPTED, THOUGHT),
    "one_call": ({}, [admitted(), *call(LS, 0, '{"path"', ':"/"}'), ENDED]),
    "parallel_calls": (
        {},
        [
            *(admitted(), progress(64), text("Let me look.")),
            *(*call(LS, 0, '{"path"', ':"/"}'), *call(LS, 1), *call(LS, 2, "{", "", "}"), ENDED),
        ],
    ),
    "custom_call": ({}, [admitted(), *call(PATCH, 0, "*** Begin", " Patch\n"), ENDED]),
    "namespace_call": ({}, [admitted(), *call(SEARCH, 0, '{"q":', "1e5}"), ENDED]),
    "local_shell": ({}, [admitted(), *call(SHELL, 0, '{"command":', '["ls", "-l"], "timeout_ms": 9}'), ENDED]),
    "length_in_text": ({}, [admitted(), text("Hel"), CUT]),
    "length_in_call": (
        {},
        [admitted(), *call(LS, 0, "{}"), *call(LS, 1, '{"path": "/', is_whole=False), CUT],
    ),
    "nothing": ({}, [admitted(), text(""), finished()]),
}
# Abstract to the type checker only: the RPCs that are not overridden answer UNIMPLEMENTED.
_RecordServicer: Any = record_pb2_grpc.RecordServiceServicer
INCOMPLETE = ("length_in_text", "length_in_call")


def body(**changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "Hi", **changes}


def events_of(content: bytes) -> list[Event]:
    """All events; each has its name and its number, and is one that the official client knows."""
    found: list[Event] = []
    *frames, rest = content.split(b"\n\n")
    assert rest == b""
    for frame in frames:
        name, data = frame.split(b"\n")
        event = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        assert event["sequence_number"] == len(found)
        EVENT.validate_json(orjson.dumps(event), strict=True)
        found.append(event)
    return found


async def stream_of(client: httpx.AsyncClient, **changes: Any) -> list[Event]:
    response = await client.post(PATH, json=body(stream=True, **changes))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.content)


async def whole_of(client: httpx.AsyncClient, **changes: Any) -> Event:
    response = await client.post(PATH, json=body(**changes))
    assert response.status_code == 200, response.text
    Response.model_validate_json(response.content, strict=True)
    return response.json()


def between(events: list[Event]) -> list[Event]:
    """What a stream says of its items."""
    created, in_progress, *found, last = events
    assert (created["type"], in_progress["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == in_progress["response"]
    assert last["type"] in ("response.completed", "response.incomplete", "response.failed")
    return [event for event in found if event["type"] != "response.in_progress"]


def stable(content: bytes) -> bytes:
    """Ids by their number, times 0."""
    ids: dict[bytes, bytes] = {}

    def numbered(match: re.Match[bytes]) -> bytes:
        return ids.setdefault(match[0], match[1] + b"_%d" % len(ids))

    content = re.sub(rb"\b([a-z]+)_[0-9a-f]{32}", numbered, content)
    return re.sub(rb'"(created_at|completed_at)":\d+', rb'"\1":0', content)


def unstable(response: Event) -> Event:
    """Without what two runs of one script differ in."""
    return orjson.loads(stable(orjson.dumps(response)))


@pytest.fixture
async def official(url: str) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.mark.parametrize("name", SCRIPTS)
async def test_streams_match_golden(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, golden: Any, name: str
) -> None:
    changes, tokenizer.script = SCRIPTS[name]
    response = await client.post(PATH, json=body(stream=True, tools=TOOLS, **changes))
    assert response.status_code == 200, response.text
    events = events_of(response.content)
    assert items_of(between(events)) == events[-1]["response"]["output"]
    golden(f"responses_stream_{name}.sse", stable(response.content))


async def test_an_error_amid_the_answer_matches_golden(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, golden: Any
) -> None:
    tokenizer.script = [admitted(), *call(LS, 0, "{}"), text("Hel"), LOST]
    response = await client.post(PATH, json=body(stream=True))
    last = events_of(response.content)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "server_error", "message": "The engine went away."}
    assert [item["type"] for item in last["response"]["output"]] == ["function_call"]
    golden("responses_stream_error.sse", stable(response.content))


async def test_a_cancelled_stream_matches_golden(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, golden: Any
) -> None:
    tokenizer.script = [admitted(), *call(LS, 0, "{}"), text("Hel"), asyncio.Event()]
    content = b""
    async with client.stream("POST", PATH, json=body(stream=True)) as response:
        async for chunk in response.aiter_bytes():
            is_new = b"output_text.delta" not in content
            content += chunk
            if is_new and b"output_text.delta" in content:
                found = re.search(rb"resp_[0-9a-f]{32}", content)
                assert found is not None
                cancelled = await client.post(f"{PATH}/{found[0].decode()}/cancel")
                assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    async with asyncio.timeout(10):
        await tokenizer.cancelled.wait()
    last = events_of(content)[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
    assert [item["type"] for item in last["response"]["output"]] == ["function_call"]
    golden("responses_stream_cancelled.sse", stable(content))


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
    ("error", "status", "code", "param"),
    [
        (LOST, 503, "service_unavailable", None),
        (refusal("RESOURCE_EXHAUSTED", "BUSY", "Busy.", retry_after_s=3), 429, "rate_limit_exceeded", None),
        (refusal("OUT_OF_RANGE", "CONTEXT_LENGTH_EXCEEDED", "Long."), 400, "context_length_exceeded", "input"),
        (
            refusal("INVALID_ARGUMENT", "BAD", "Bad.", metadata={"field": "conversation.tools[2].name"}),
            *(400, None, "tools[2].tools[0]"),
        ),
    ],
)
async def test_errors_before_the_answer(
    client: httpx.AsyncClient,
    tokenizer: ScriptedTokenizer,
    error: Any,
    status: int,
    code: str | None,
    param: str | None,
    is_stream: bool,
) -> None:
    tokenizer.error = error
    response = await client.post(PATH, json=body(stream=is_stream, tools=TOOLS))
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    assert (response.json()["error"]["param"], response.json()["error"]["code"]) == (param, code)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    answers(),
    st.sampled_from([reason for reason in FINISHES if reason != pb.FINISH_REASON_CANCELLED]),
    st.fixed_dictionaries(
        {}, optional={"include": st.just(ENCRYPTED["include"]), "reasoning": st.just(SUMMARY["reasoning"])}
    ),
)
async def test_any_stream_keeps_the_laws_and_ends_as_the_whole(
    client: httpx.AsyncClient,
    tokenizer: ScriptedTokenizer,
    answer: Events,
    reason: pb.FinishReason.ValueType,
    changes: dict[str, Any],
) -> None:
    tokenizer.script = [admitted(), progress(64), *answer, finished(reason)]
    events = await stream_of(client, tools=TOOLS, **changes)
    last = events[-1]["response"]
    assert items_of(between(events)) == last["output"]
    is_cut = reason == pb.FINISH_REASON_LENGTH
    status, details = ("incomplete", {"reason": "max_output_tokens"}) if is_cut else ("completed", None)
    assert events[-1]["type"] == f"response.{status}"
    assert (last["status"], last["incomplete_details"]) == (status, details)
    assert (last["completed_at"] is None) == is_cut
    kept = ("status", "completed_at", "incomplete_details", "output", "usage")
    assert {**events[0]["response"], **{key: last[key] for key in kept}} == last
    assert events[0]["response"]["output"] == []
    assert unstable(await whole_of(client, tools=TOOLS, **changes)) == unstable(last)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(answers(), st.sampled_from([finished(pb.FINISH_REASON_CANCELLED), LOST]))
async def test_any_stream_that_fails_keeps_its_whole_items(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, answer: Events, end: Any
) -> None:
    tokenizer.script = [admitted(), *answer, end]
    events = await stream_of(client, tools=TOOLS)
    found, last = between(events), events[-1]["response"]
    done = [at for at, event in enumerate(found, 1) if event["type"] == "response.output_item.done"]
    assert items_of(found[: done[-1]] if done else []) == last["output"]
    assert (events[-1]["type"], last["status"], last["error"]["code"]) == ("response.failed", "failed", "server_error")
    assert (last["usage"], last["completed_at"], last["incomplete_details"]) == (None, None, None)
    response = await client.post(PATH, json=body(tools=TOOLS))
    assert response.status_code == 503


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in INCOMPLETE])
async def test_the_official_client_reads_the_same_from_a_stream_and_from_the_whole(
    official: AsyncOpenAI, tokenizer: ScriptedTokenizer, name: str
) -> None:
    changes, tokenizer.script = SCRIPTS[name]
    arguments: dict[str, Any] = body(tools=TOOLS, **changes)
    whole = await official.responses.create(**arguments)
    async with official.responses.stream(**arguments) as stream:
        final = await stream.get_final_response()
    assert final.output_text == whole.output_text
    shown, wanted = (unstable(one.model_dump(mode="json", exclude_unset=True)) for one in (final, whole))
    for item in shown["output"]:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    assert shown == wanted


@pytest.mark.parametrize("name", SCRIPTS)
async def test_the_official_client_sees_every_item_come_whole(
    official: AsyncOpenAI, tokenizer: ScriptedTokenizer, name: str
) -> None:
    changes, tokenizer.script = SCRIPTS[name]
    arguments: dict[str, Any] = body(tools=TOOLS, **changes)
    items: list[Any] = []
    last: Any = None
    async with official.responses.stream(**arguments) as stream:
        async for event in stream:
            last = event
            if event.type == "response.output_item.done":
                items.append(event.item.model_dump(mode="json", exclude_unset=True))
    assert last.type == ("response.incomplete" if name in INCOMPLETE else "response.completed")
    output = [item.model_dump(mode="json", exclude_unset=True) for item in last.response.output]
    for item in output:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    assert items == output


async def test_usage_has_all_numbers(official: AsyncOpenAI, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = [admitted(), text("a"), finished(vram=100, ssd=8)]
    usage = (await official.responses.create(**body())).usage
    assert usage is not None
    assert usage.model_dump(exclude_unset=True) == {
        "input_tokens": 135,
        "input_tokens_details": {
            "cached_tokens": 108,
            "cache_write_tokens": 0,
            "cached_tokens_by_tier": {"vram": 100, "ssd": 8},
            "recomputed_tokens": 27,
        },
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 142,
    }


@pytest.mark.parametrize(
    ("changes", "is_shown"),
    [
        ({}, False),
        ({"store": True}, False),
        ({"include": []}, False),
        ({"include": ["reasoning.encrypted_content"]}, True),
        ({"include": ["reasoning.encrypted_content"], "store": False}, True),
        ({"store": False}, True),
    ],
)
async def test_the_capsule_comes_with_the_end_of_the_thinking(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, changes: dict[str, Any], is_shown: bool
) -> None:
    tokenizer.script = THOUGHT
    events = await stream_of(client, **changes)
    begun = next(event["item"] for event in events if event["type"] == "response.output_item.added")
    ended = next(event["item"] for event in events if event["type"] == "response.output_item.done")
    assert begun["type"] == ended["type"] == "reasoning"
    assert "encrypted_content" not in begun
    assert ("encrypted_content" in ended) == is_shown
    assert not is_shown or base64.b64decode(ended["encrypted_content"], validate=True) == b"capsule"
    assert events[-1]["response"]["output"][0] == ended
    whole = (await whole_of(client, **changes))["output"][0]
    assert {**whole, "id": ended["id"]} == ended


@asynccontextmanager
async def records_that_wait(stored: asyncio.Event) -> AsyncGenerator[str]:
    """The address of a kvstore that keeps nothing, and says so only after the event."""

    class Waiting(_RecordServicer):
        async def Put(self, request: record_pb2.PutRequest, context: Any) -> record_pb2.PutResponse:
            await stored.wait()
            return record_pb2.PutResponse()

    server = rpc.new_server()
    record_pb2_grpc.add_RecordServiceServicer_to_server(Waiting(), server)
    port = rpc.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def kept_alive(
    tokenizer: ScriptedTokenizer, waiting: asyncio.Event, **settings: Any
) -> tuple[list[Event], httpx.Headers]:
    """The stream of a request that waits somewhere until four keep-alives have come."""
    content = b""
    async with (
        gateway_at(tokenizer.address, keep_alive_s=0.02, **settings) as url,
        httpx.AsyncClient(timeout=10) as client,
        client.stream("POST", f"{url}{PATH}", json=body(stream=True)) as response,
    ):
        async for chunk in response.aiter_bytes():
            content += chunk
            # The stream's own comes first.
            if content.count(b"event: response.in_progress") >= 5:
                waiting.set()
    return events_of(content), response.headers


async def test_a_request_that_waits_begins_its_stream_and_keeps_it_alive(tokenizer: ScriptedTokenizer) -> None:
    waiting = asyncio.Event()
    tokenizer.script = [waiting, *HELLO]
    events, headers = await kept_alive(tokenizer, waiting)
    assert "x-fencepost-cache" not in headers
    kinds = [event["type"] for event in events]
    assert kinds[:6] == ["response.created", *["response.in_progress"] * 5]
    assert all("fencepost" not in event for event in events)
    assert items_of(between(events)) == events[-1]["response"]["output"]


async def test_keep_alives_say_how_far_the_prompt_is(tokenizer: ScriptedTokenizer) -> None:
    waiting = asyncio.Event()
    tokenizer.script = [admitted(), progress(64), waiting, text("a"), finished()]
    events, headers = await kept_alive(tokenizer, waiting)
    assert headers["x-fencepost-cache"].startswith("vram=120 ")
    alive = [event for event in events[2:] if event["type"] == "response.in_progress"]
    assert len(alive) >= 4
    for event in alive:
        assert event["fencepost"] == {"prefilled_tokens": 64, "prompt_tokens": 135}
        assert event["response"] == events[0]["response"]
    assert items_of(between(events)) == events[-1]["response"]["output"]


async def test_keep_alives_go_on_inside_an_item(tokenizer: ScriptedTokenizer) -> None:
    waiting = asyncio.Event()
    tokenizer.script = [admitted(), text("a"), waiting, text("b"), finished()]
    events, _ = await kept_alive(tokenizer, waiting)
    alive = [event["response"]["status"] for event in events if event["type"] == "response.in_progress"]
    assert set(alive) == {"in_progress"}
    (item,) = items_of(between(events))
    assert item["content"][0]["text"] == "ab"


async def test_keep_alives_while_a_response_is_stored_say_that_it_is_in_progress(tokenizer: ScriptedTokenizer) -> None:
    waiting = asyncio.Event()
    async with records_that_wait(waiting) as records:
        events, _ = await kept_alive(tokenizer, waiting, records=records)
    alive = [event["response"] for event in events if event["type"] == "response.in_progress"]
    assert alive == [events[0]["response"]] * len(alive)
    assert events[-1]["type"] == "response.completed"


async def test_an_error_while_the_request_waits_ends_the_stream(tokenizer: ScriptedTokenizer) -> None:
    waiting = asyncio.Event()
    tokenizer.script = [waiting, refusal("RESOURCE_EXHAUSTED", "BUSY", "Busy.", retry_after_s=3)]
    events, _ = await kept_alive(tokenizer, waiting)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "rate_limit_exceeded"
