"""The response object: all that it holds, how it fails, and what the official client makes of any stream."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import orjson
import pytest
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from gateway_server import gateway_at
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from scripted_tokenizer import (
    MODEL,
    ScriptedTokenizer,
    admitted,
    finished,
    logprobs,
    progress,
    reasoning,
    reasoning_finished,
    refusal,
    text,
)

from tests.unit.gateway.responses.answers import LS, Events, answers, call

PATH = "/v1/responses"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
LOST = refusal("UNAVAILABLE", "ENGINE_LOST", "The engine went away.", retry_after_s=2)
CUT = finished(pb.FINISH_REASON_LENGTH)
FUNCTION = {"type": "function", "name": "ls", "parameters": {"type": "object", "properties": {}}}


def events_of(content: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(frame.split(b"\ndata: ")[1]) for frame in content.split(b"\n\n") if frame]


async def stream_of(client: httpx.AsyncClient, **changes: Any) -> list[dict[str, Any]]:
    response = await client.post(PATH, json={"model": MODEL, "input": "Hi", "stream": True, **changes})
    assert response.status_code == 200, response.text
    return events_of(response.content)


async def whole_of(client: httpx.AsyncClient, **changes: Any) -> dict[str, Any]:
    response = await client.post(PATH, json={"model": MODEL, "input": "Hi", **changes})
    assert response.status_code == 200, response.text
    Response.model_validate_json(response.content, strict=True)
    return response.json()


async def test_a_response_has_every_key(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = [admitted(), *call(LS, 0, '{"path"', ':"/"}'), finished(pb.FINISH_REASON_CALLS)]
    response = await whole_of(client, tools=[FUNCTION])
    assert re.fullmatch(r"resp_[0-9a-f]{32}", response.pop("id"))
    assert re.fullmatch(r"fc_[0-9a-f]{32}", response["output"][0].pop("id"))
    assert response.pop("completed_at") >= response.pop("created_at")
    assert response == {
        "object": "response",
        "status": "completed",
        "model": MODEL,
        "error": None,
        "incomplete_details": None,
        "conversation": None,
        "prompt": None,
        "output": [
            {
                "type": "function_call",
                "call_id": "call_0",
                "name": "ls",
                "arguments": '{"path":"/"}',
                "status": "completed",
            }
        ],
        "usage": {
            "input_tokens": 135,
            "input_tokens_details": {
                "cached_tokens": 128,
                "cache_write_tokens": 0,
                "cached_tokens_by_tier": {"vram": 120, "ssd": 8},
                "recomputed_tokens": 7,
            },
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 142,
        },
        "background": False,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": True,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [{**FUNCTION, "description": None, "strict": False}],
        "truncation": "disabled",
        "previous_response_id": None,
        "prompt_cache_key": None,
        "safety_identifier": None,
        "user": None,
    }


async def test_log_probabilities_are_asked_for_by_include(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    tokenizer.script = [admitted(), text("H", logprobs=[logprobs(b"H", -0.5, (b"H", -0.5), (b"I", -1.0))]), finished()]
    assert (await whole_of(client))["output"][0]["content"][0]["logprobs"] == []
    response = await whole_of(client, include=["message.output_text.logprobs"], top_logprobs=2)
    likeliest, other = ({"token": "H", "logprob": -0.5, "bytes": [72]}, {"token": "I", "logprob": -1.0, "bytes": [73]})
    assert response["output"][0]["content"][0]["logprobs"] == [{**likeliest, "top_logprobs": [likeliest, other]}]


@pytest.mark.parametrize("answer", [[reasoning("h"), reasoning_finished(b"half")], [text("ha")]])
async def test_what_was_cut_short_is_incomplete_itself(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, answer: Events
) -> None:
    tokenizer.script = [admitted(), *answer, finished(pb.FINISH_REASON_LENGTH)]
    response = await whole_of(client)
    assert (response["status"], response["completed_at"]) == ("incomplete", None)
    assert [item["status"] for item in response["output"]] == ["incomplete"]


async def test_thinking_before_an_answer_that_was_cut_short_is_complete(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    tokenizer.script = [admitted(), reasoning("h"), reasoning_finished(b"capsule"), text("a"), CUT]
    assert [item["status"] for item in (await whole_of(client))["output"]] == ["completed", "incomplete"]


async def test_warnings_stand_beside_the_response(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    warned = finished()
    warned.finished.warnings.append("The schema is advised only.")
    tokenizer.script = [admitted(), text("{}"), warned]
    events = await stream_of(client)
    EVENT.validate_json(orjson.dumps(events[-1]), strict=True)
    assert events[-1]["response"]["fencepost"] == {"warnings": ["The schema is advised only."]}
    assert (await whole_of(client))["fencepost"] == {"warnings": ["The schema is advised only."]}


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [
        (LOST, "server_error", "The engine went away."),
        (refusal("INTERNAL", "BUG", "x"), "server_error", "The server failed; its log has the details."),
        (refusal("DEADLINE_EXCEEDED", "LATE", "x"), "server_error", "The answer took longer than this server allows."),
        (
            finished(pb.FINISH_REASON_CANCELLED),
            *("server_error", "The server gave this answer up; try again."),
        ),
        # The words in which Codex looks for the time to wait.
        (
            refusal("RESOURCE_EXHAUSTED", "BUSY", "Busy.", retry_after_s=2.5),
            *("rate_limit_exceeded", "Busy. Please try again in 3s."),
        ),
        (refusal("OUT_OF_RANGE", "CONTEXT_LENGTH_EXCEEDED", "Long."), "context_length_exceeded", "Long."),
        (refusal("INVALID_ARGUMENT", "BAD", "Bad."), "invalid_prompt", "Bad."),
        (refusal("UNIMPLEMENTED", "NOT_YET", "Not yet."), "invalid_prompt", "Not yet."),
    ],
)
async def test_a_failure_amid_the_answer_has_a_code_that_clients_know(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, end: Any, code: str, message: str
) -> None:
    tokenizer.script = [admitted(), text("a"), end]
    last = (await stream_of(client))[-1]
    assert (last["type"], last["response"]["error"]) == ("response.failed", {"code": code, "message": message})
    # The official types lack one code, by which agents know that they have to compact.
    EVENT.validate_json(orjson.dumps(last).replace(b"context_length_exceeded", b"invalid_prompt"), strict=True)


async def test_keep_alives_say_how_many_requests_are_ahead(tokenizer: ScriptedTokenizer) -> None:
    waiting = asyncio.Event()
    place = pb.GenerateResponse(progress=pb.Progress(prompt_tokens=135, queue_position=2))
    tokenizer.script = [admitted(), place, waiting, progress(64), text("a"), finished()]
    content = b""
    async with (
        # Keep-alives alone would keep it waiting for ever.
        asyncio.timeout(60),
        gateway_at(tokenizer.address, keep_alive_s=0.02) as url,
        httpx.AsyncClient(timeout=10) as client,
        client.stream("POST", f"{url}{PATH}", json={"model": MODEL, "input": "Hi", "stream": True}) as response,
    ):
        async for chunk in response.aiter_bytes():
            content += chunk
            if b'"queue_position"' in content:
                waiting.set()
    alive = [event["fencepost"] for event in events_of(content) if "fencepost" in event]
    assert alive[0] == {"prefilled_tokens": 0, "prompt_tokens": 135, "queue_position": 2}


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    answer=answers(),
    end=st.sampled_from([finished(), CUT, LOST]),
    changes=st.fixed_dictionaries({"store": st.booleans()}, optional={"reasoning": st.just({"summary": "auto"})}),
)
async def test_the_official_accumulator_gets_any_stream_right(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, answer: Events, end: Any, changes: dict[str, Any]
) -> None:
    tokenizer.script = [admitted(), *answer, end]
    events = await stream_of(client, **changes)
    state: ResponseStreamState[None] = ResponseStreamState(input_tools=omit, text_format=omit)
    summed: dict[int, str] = {}
    completed: Any = None
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        for seen in state.handle_event(EVENT.validate_json(orjson.dumps(event), strict=True)):
            match seen.type:
                case "response.output_text.delta" | "response.function_call_arguments.delta":
                    summed[seen.output_index] = seen.snapshot
                case "response.completed":
                    completed = seen.response
                case _:
                    pass
    last = events[-1]["response"]
    for index, item in enumerate(last["output"]):
        if item["type"] in ("message", "function_call"):
            text_of_item = item["arguments"] if "arguments" in item else item["content"][0]["text"]
            assert summed.get(index, "") == text_of_item
    assert {event["response"]["id"] for event in events if "response" in event} == {last["id"]}
    assert (completed is not None) == (end is not LOST and end is not CUT)
    if completed is not None:
        assert completed.output_text == Response.model_validate(last).output_text
        assert [item.id for item in completed.output] == [item["id"] for item in last["output"]]
