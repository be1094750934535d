"""Chat Completions against a scripted tokenizer: what clients get and what the tokenizer is asked."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import orjson
import pytest
from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from scripted_tokenizer import (
    HELLO,
    MODEL,
    ScriptedTokenizer,
    admitted,
    call,
    finished,
    logprobs,
    progress,
    reasoning,
    refusal,
    text,
)

MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def body(**changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": MESSAGES, **changes}


def events(stream: bytes) -> list[Any]:
    """The stream's data, strictly framed: JSON values, then possibly "[DONE]"."""
    assert stream.endswith(b"\n\n")
    lines = stream[:-2].split(b"\n\n")
    assert all(line.startswith(b"data: ") and b"\n" not in line and b"\r" not in line for line in lines)
    data = [line[6:] for line in lines]
    return [item.decode() if item == b"[DONE]" else orjson.loads(item) for item in data]


def validated(chunk: Any) -> ChatCompletionChunk:
    return ChatCompletionChunk.model_validate_json(orjson.dumps(chunk), strict=True)


async def stream_of(client: httpx.AsyncClient, **changes: Any) -> list[Any]:
    response = await client.post("/v1/chat/completions", json=body(stream=True, **changes))
    assert response.status_code == 200, response.text
    return events(response.content)


async def test_answer_in_one_piece(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    response = await client.post("/v1/chat/completions", json=body())
    assert response.status_code == 200
    answer = ChatCompletion.model_validate_json(response.content, strict=True)
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == MODEL
    assert answer.choices[0].message.content == "Hello, world"
    assert answer.choices[0].finish_reason == "stop"
    usage = response.json()["usage"]
    assert usage == {
        "prompt_tokens": 135,
        "completion_tokens": 7,
        "total_tokens": 142,
        "prompt_tokens_details": {
            "cached_tokens": 128,
            "cached_tokens_by_tier": {"vram": 120, "ssd": 8},
            "recomputed_tokens": 7,
        },
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert response.headers["x-fencepost-cache"] == "vram=120 ssd=0 recomputed=15 miss=cold"
    request = tokenizer.requests[0]
    assert request.routing.response_id == answer.id
    assert request.routing.request_id == response.headers["x-request-id"]
    assert (request.routing.tenant, request.routing.cache_scope) == ("default", "default")
    assert tokenizer.completed.is_set()


async def test_stream_matches_golden(client: httpx.AsyncClient, golden: Any) -> None:
    response = await client.post("/v1/chat/completions", json=body(stream=True, stream_options={"include_usage": True}))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in response.headers
    stable = re.sub(rb"chatcmpl-[0-9a-f]{32}", b"chatcmpl-ID", response.content)
    golden("chat_text.sse", re.sub(rb'"created":\d+', b'"created":0', stable))


async def test_chunks_come_in_the_documented_order(client: httpx.AsyncClient) -> None:
    *chunks, done = await stream_of(client, stream_options={"include_usage": True})
    assert done == "[DONE]"
    first, *deltas, last, usage = [validated(chunk) for chunk in chunks]
    assert first.choices[0].delta.role == "assistant"
    assert [chunk.choices[0].delta.content for chunk in deltas] == ["Hello", ", world"]
    assert last.choices[0].finish_reason == "stop"
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.prompt_tokens_details is not None
    assert usage.usage.prompt_tokens_details.cached_tokens == 128
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_no_usage_unless_asked(client: httpx.AsyncClient) -> None:
    *chunks, done = await stream_of(client)
    assert done == "[DONE]"
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


async def test_reasoning_and_calls_stream(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = [
        admitted(),
        progress(64),
        reasoning("hm"),
        *call(0, "call_a", "ls", '{"path"', ':"/"}'),
        *call(1, "call_b", "pwd", "{}"),
        finished(tokenizer_pb2.FINISH_REASON_CALLS),
    ]
    *chunks, _ = await stream_of(client)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta] == ["hm"]
    started = [piece for delta in deltas for piece in delta.get("tool_calls", ()) if "id" in piece]
    assert [(piece["index"], piece["id"], piece["function"]["name"]) for piece in started] == [
        (0, "call_a", "ls"),
        (1, "call_b", "pwd"),
    ]
    pieces = [piece for chunk in chunks for piece in validated(chunk).choices[0].delta.tool_calls or ()]
    first = [piece.function.arguments or "" for piece in pieces if piece.index == 0 and piece.function]
    assert "".join(first) == '{"path":"/"}'
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"

    whole = (await client.post("/v1/chat/completions", json=body())).content
    message = ChatCompletion.model_validate_json(whole, strict=True).choices[0].message
    assert message.content is None
    assert [found.id for found in message.tool_calls or ()] == ["call_a", "call_b"]
    assert orjson.loads(whole)["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] == '{"path":"/"}'


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        (tokenizer_pb2.FINISH_REASON_STOP_TEXT, "stop"),
        (tokenizer_pb2.FINISH_REASON_LENGTH, "length"),
        (tokenizer_pb2.FINISH_REASON_LOOP, "stop"),
    ],
)
async def test_finish_reasons(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, reason: tokenizer_pb2.FinishReason.ValueType, shown: str
) -> None:
    tokenizer.script = [admitted(), finished(reason)]
    answer = (await client.post("/v1/chat/completions", json=body())).json()
    assert answer["choices"][0]["finish_reason"] == shown
    assert answer["choices"][0]["message"]["content"] == ""


async def test_warnings_stand_beside_the_answer(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    warned = finished(tokenizer_pb2.FINISH_REASON_LOOP)
    warned.finished.warnings.append("It went round in circles.")
    tokenizer.script = [admitted(), text("ha" * 9), warned]
    shown = {"warnings": ["It went round in circles."]}
    for path, asked in (("/v1/chat/completions", body()), ("/v1/completions", {"model": MODEL, "prompt": "Hi"})):
        assert (await client.post(path, json=asked)).json()["fencepost"] == shown
        *chunks, _ = events((await client.post(path, json={**asked, "stream": True})).content)
        assert [chunk.get("fencepost") for chunk in chunks if chunk["choices"][0]["finish_reason"]] == [shown]
        assert sum("fencepost" in chunk for chunk in chunks) == 1


INTERLEAVED = [
    admitted(),
    text("A", choice=1),
    reasoning("hm", choice=0),
    text("a"),
    *call(0, "call_1", "ls", "{}", choice=1),
    text("b"),
    finished(tokenizer_pb2.FINISH_REASON_CALLS, choice=1),
    text("c"),
    finished(tokenizer_pb2.FINISH_REASON_LENGTH),
]


async def test_choices_are_told_apart(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = INTERLEAVED
    response = await client.post("/v1/chat/completions", json=body(n=2))
    answer = ChatCompletion.model_validate_json(response.content, strict=True)
    assert tokenizer.requests[0].sampling.choices == 2
    first, second = answer.choices
    assert (first.index, first.message.content, first.finish_reason) == (0, "abc", "length")
    assert (second.index, second.message.content, second.finish_reason) == (1, "A", "tool_calls")
    assert [found.id for found in second.message.tool_calls or ()] == ["call_1"]
    assert first.message.tool_calls is None
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (135, 14, 149)
    assert response.json()["usage"]["completion_tokens_details"] == {"reasoning_tokens": 4}


async def test_choices_stream_side_by_side(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = INTERLEAVED
    *chunks, done = await stream_of(client, n=2, stream_options={"include_usage": True})
    assert done == "[DONE]"
    *parts, usage = [validated(chunk) for chunk in chunks]
    assert usage.choices == []
    assert usage.usage is not None
    assert (usage.usage.prompt_tokens, usage.usage.completion_tokens) == (135, 14)
    seen = [(part.choices[0].index, part.choices[0].delta.content, part.choices[0].finish_reason) for part in parts]
    assert [one for one in seen if one[1] is not None or one[2]] == [
        (0, "", None),
        (1, "", None),
        (1, "A", None),
        (0, "a", None),
        (0, "b", None),
        (1, None, "tool_calls"),
        (0, "c", None),
        (0, None, "length"),
    ]
    assert all(part.choices[0].delta.role == "assistant" for part in parts[:2])
    assert {part.choices[0].index for part in parts if part.choices[0].delta.tool_calls} == {1}


async def test_silence_is_filled_in_a_choice_that_goes_on(tokenizer: ScriptedTokenizer) -> None:
    from gateway_server import gateway_at

    silence = asyncio.Event()
    tokenizer.script = [admitted(), text("a"), finished(), silence, text("b", choice=1), finished(choice=1)]
    async with gateway_at(tokenizer.address, keep_alive_s=0.02) as url, httpx.AsyncClient() as client:
        request = client.stream("POST", f"{url}/v1/chat/completions", json=body(stream=True, n=2))
        choices: list[Any] = []
        async with request as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    choices += orjson.loads(line[6:])["choices"]
                if choices and choices[-1]["delta"] == {} and choices[-1]["index"] == 1:
                    silence.set()
    ended = next(place for place, choice in enumerate(choices) if choice["finish_reason"])
    assert {choice["index"] for choice in choices[ended + 1 :]} == {1}


async def test_log_probabilities(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = [
        admitted(),
        text("He", logprobs=[logprobs(b"He", -0.5, (b"He", -0.5), (b"Oh", -1))]),
        text("\u00e9", logprobs=[logprobs(b"\xc3", -2), logprobs(b"\xa9", 0)]),
        finished(),
    ]
    asked = {"logprobs": True, "top_logprobs": 2}
    whole = (await client.post("/v1/chat/completions", json=body(**asked))).content
    found = ChatCompletion.model_validate_json(whole, strict=True).choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert [(one.token, one.bytes, one.logprob) for one in found.content] == [
        ("He", [72, 101], -0.5),
        ("\\xc3", [0xC3], -2),
        ("\\xa9", [0xA9], 0),
    ]
    assert [(one.token, one.logprob) for one in found.content[0].top_logprobs] == [("He", -0.5), ("Oh", -1)]
    assert tokenizer.requests[0].sampling.logprobs == 2
    first, he, e, last = [validated(chunk).choices[0] for chunk in (await stream_of(client, **asked))[:-1]]
    assert first.logprobs is None
    assert last.logprobs is None
    assert he.logprobs is not None
    assert e.logprobs is not None
    assert [*(he.logprobs.content or ()), *(e.logprobs.content or ())] == [
        type(one).model_validate(one.model_dump()) for one in found.content
    ]
    assert orjson.loads(whole)["choices"][0]["logprobs"]["refusal"] is None


async def test_the_official_client_accumulates_choices_and_log_probabilities(
    url: str, tokenizer: ScriptedTokenizer
) -> None:
    tokenizer.script = [
        admitted(),
        *(text(value, choice=choice, logprobs=[logprobs(value.encode(), -1)]) for value in "ab" for choice in (1, 0)),
        finished(),
        finished(choice=1),
    ]
    arguments: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "n": 2, "logprobs": True}
    async with (
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
        client.chat.completions.stream(**arguments) as stream,
    ):
        final = await stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["ab", "ab"]
    for choice in final.choices:
        assert choice.logprobs is not None
        assert [one.token for one in choice.logprobs.content or ()] == ["a", "b"]


async def test_a_field_that_the_engine_refuses_is_named_as_the_client_spells_it(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    for field, param in (("sampling.logit_bias", "logit_bias"), ("sampling.choices", "n")):
        tokenizer.error = refusal("INVALID_ARGUMENT", "INVALID_REQUEST", "out of range", metadata={"field": field})
        response = await client.post("/v1/chat/completions", json=body())
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_any_text_survives_framing(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    hostile = 'a\u2028b\u2029c\u0085d\r\n\n\x00\x7f"\\ data: [DONE]\n\n\U0001f600\ufeff\u00e9\ud7ff'
    tokenizer.script = [admitted(), *(text(character) for character in hostile), text(hostile), finished()]
    response = await client.post("/v1/chat/completions", json=body(stream=True))
    for separator in ("\u2028", "\u2029", "\u0085"):
        assert separator not in response.text
    contents = [chunk["choices"][0]["delta"].get("content", "") for chunk in events(response.content)[:-1]]
    assert "".join(contents) == hostile * 2
    whole = (await client.post("/v1/chat/completions", json=body())).json()
    assert whole["choices"][0]["message"]["content"] == hostile * 2


async def test_silence_is_filled_with_empty_deltas(tokenizer: ScriptedTokenizer) -> None:
    from gateway_server import gateway_at

    silence = asyncio.Event()
    tokenizer.script = [admitted(), text("a"), silence, text("b"), finished()]
    async with gateway_at(tokenizer.address, keep_alive_s=0.02) as url, httpx.AsyncClient() as client:
        request = client.stream("POST", f"{url}/v1/chat/completions", json=body(stream=True))
        seen: list[Any] = []
        async with request as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    seen.append(orjson.loads(line[6:]))
                if sum(chunk["choices"][0]["delta"] == {} for chunk in seen) == 3:
                    silence.set()
    assert all(validated(chunk) for chunk in seen)
    assert [c for chunk in seen if (c := chunk["choices"][0]["delta"].get("content"))] == ["a", "b"]


async def test_the_official_clients_read_it(url: str, tokenizer: ScriptedTokenizer) -> None:
    arguments: dict[str, Any] = {"model": MODEL, "messages": MESSAGES}
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answer = await client.chat.completions.create(**arguments)
        assert answer.choices[0].message.content == "Hello, world"
        chunks = [chunk async for chunk in await client.chat.completions.create(stream=True, **arguments)]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello, world"
        async with client.chat.completions.stream(stream_options={"include_usage": True}, **arguments) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == "Hello, world"
        assert final.usage is not None
        assert final.usage.total_tokens == 142

    def synchronously() -> list[str | None]:
        with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            whole = client.chat.completions.create(**arguments).choices[0].message.content
            stream = client.chat.completions.create(stream=True, **arguments)
            return [whole, "".join(chunk.choices[0].delta.content or "" for chunk in stream)]

    assert await asyncio.to_thread(synchronously) == ["Hello, world", "Hello, world"]


async def test_the_request_reaches_the_tokenizer(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"traceparent": trace, "session-id": "s-1", "x-request-id": "mine-1"}
    sampling = {"temperature": 0, "top_p": 0.5, "seed": -1, "max_tokens": 5, "stop": ["END", "\n"]}
    response = await client.post("/chat/completions?beta=1", headers=headers, json=body(unknown={"x": 1}, **sampling))
    assert response.status_code == 200
    assert response.headers["x-request-id"] == "mine-1"
    request = tokenizer.requests[0]
    assert [(message.role, message.parts[0].text.text) for message in request.conversation.messages] == [
        (conversation_pb2.ROLE_SYSTEM, "Be brief."),
        (conversation_pb2.ROLE_USER, "Hi"),
    ]
    assert request.sampling == tokenizer_pb2.Sampling(
        temperature=0, top_p=0.5, seed=2**64 - 1, max_tokens=5, stop_texts=["END", "\n"]
    )
    assert request.routing.conversation_key == "s-1"
    assert request.routing.request_id == "mine-1"
    assert tokenizer.metadata["traceparent"] == trace
    assert tokenizer.deadline_s is not None
    # On the wire, gRPC rounds a deadline up to a few digits.
    assert 3000 < tokenizer.deadline_s < 3700


async def test_concurrent_streams_do_not_mix(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = [admitted(), *(text(f"{i} ") for i in range(50)), finished()]
    streams = await asyncio.gather(*(stream_of(client) for _ in range(8)))
    ids = {chunk["id"] for stream in streams for chunk in stream[:-1]}
    assert len(ids) == 8
    for stream in streams:
        contents = [chunk["choices"][0]["delta"].get("content", "") for chunk in stream[:-1]]
        assert "".join(contents) == "".join(f"{i} " for i in range(50))


async def test_answers_are_served_one_after_another(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = list(HELLO)
    for _ in range(3):
        assert (await stream_of(client))[-1] == "[DONE]"
    assert len(tokenizer.requests) == 3


async def test_usage_says_what_was_read_and_why_the_rest_was_not(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    end = finished(vram=0, ssd=100)
    end.finished.usage.timings.restored_ms = 12.34
    end.finished.usage.cached.miss.CopyFrom(tokenizer_pb2.Miss(reason="forked", at_token=100, segment="message 2"))
    tokenizer.script = [admitted(), text("a"), end]
    usage = (await client.post("/v1/chat/completions", json=body())).json()["usage"]
    assert usage["prompt_tokens_details"] == {
        "cached_tokens": 100,
        "cached_tokens_by_tier": {"vram": 0, "ssd": 100},
        "recomputed_tokens": 35,
        "restored_ms": 12.3,
        "cache_miss": {"reason": "forked", "at_token": 100, "segment": "message 2"},
    }
