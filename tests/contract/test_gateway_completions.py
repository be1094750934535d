"""Completions against a scripted tokenizer."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson
import pytest
from fencepost.tokenizer.v1 import tokenizer_pb2
from gateway_server import gateway_at
from openai import AsyncOpenAI
from openai.types import Completion
from scripted_tokenizer import MODEL, ScriptedTokenizer, admitted, finished, logprobs, progress, refusal, text

PATH = "/v1/completions"


def body(**changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Once", **changes}


def events(stream: bytes) -> list[Any]:
    *data, done = stream.removesuffix(b"\n\n").split(b"\n\n")
    assert done == b"data: [DONE]"
    return [orjson.loads(line.removeprefix(b"data: ")) for line in data]


@pytest.mark.parametrize("path", [PATH, "/completions"])
async def test_answer_in_one_piece(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, path: str) -> None:
    response = await client.post(path, json=body(max_tokens=3, stop="."), headers={"session-id": "s-1"})
    assert response.status_code == 200, response.text
    answer = Completion.model_validate_json(response.content, strict=True)
    assert answer.id.startswith("cmpl-")
    assert (answer.object, answer.model) == ("text_completion", MODEL)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("Hello, world", "stop")
    assert answer.usage is not None
    assert (answer.usage.total_tokens, answer.usage.prompt_tokens) == (142, 135)
    assert response.headers["x-fencepost-cache"] == "vram=120 ssd=0 recomputed=15 miss=cold"
    request = tokenizer.requests[0]
    assert request.WhichOneof("input") == "text"
    assert request.text == "Once"
    assert request.sampling == tokenizer_pb2.Sampling(max_tokens=3, stop_texts=["."])
    assert (request.routing.response_id, request.routing.conversation_key) == (answer.id, "s-1")


async def test_stream(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = [
        *(admitted(), progress(10), text(""), text("a\u2028"), text("\n\nb")),
        finished(tokenizer_pb2.FINISH_REASON_LENGTH),
    ]
    response = await client.post(PATH, json=body(stream=True, stream_options={"include_usage": True}))
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, usage = events(response.content)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a\u2028", "\n\nb", ""]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]
    assert all(chunk["object"] == "text_completion" and chunk["usage"] is None for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 128
    assert len({chunk["id"] for chunk in (*chunks, usage)}) == 1
    whole = (await client.post(PATH, json=body())).json()
    assert whole["choices"][0]["text"] == "a\u2028\n\nb"
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"] == usage["usage"]
    assert all("usage" not in chunk for chunk in events((await client.post(PATH, json=body(stream=True))).content))


async def test_choices_with_log_probabilities(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = [
        admitted(),
        text("ab", choice=1, logprobs=[logprobs(b"a", -1, (b"x", -0.5)), logprobs(b"b", -2, (b"b", -2))]),
        text("Hi", logprobs=[logprobs(b"Hi", -0.25)]),
        finished(),
        text("c", choice=1, logprobs=[logprobs(b"c", -3)]),
        finished(tokenizer_pb2.FINISH_REASON_LENGTH, choice=1),
    ]
    response = await client.post(PATH, json=body(n=2, logprobs=1))
    answer = Completion.model_validate_json(response.content, strict=True)
    assert (tokenizer.requests[0].sampling.choices, tokenizer.requests[0].sampling.logprobs) == (2, 1)
    assert [(one.index, one.text, one.finish_reason) for one in answer.choices] == [
        (0, "Hi", "stop"),
        (1, "abc", "length"),
    ]
    found = answer.choices[1].logprobs
    assert found is not None
    assert (found.tokens, found.token_logprobs, found.text_offset) == (["a", "b", "c"], [-1, -2, -3], [0, 1, 2])
    assert found.top_logprobs == [{"x": -0.5, "a": -1}, {"b": -2}, {"c": -3}]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (135, 14)
    chunks = events((await client.post(PATH, json=body(n=2, logprobs=1, stream=True))).content)
    assert [(one["choices"][0]["index"], one["choices"][0]["text"]) for one in chunks] == [
        (1, "ab"),
        (0, "Hi"),
        (0, ""),
        (1, "c"),
        (1, ""),
    ]
    pieces = [one["choices"][0]["logprobs"] for one in chunks if one["choices"][0]["index"] == 1]
    assert [piece and piece["text_offset"] for piece in pieces] == [[0, 1], [2], None]


async def test_silence_is_filled_with_empty_text(tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = [admitted(), text("a"), 0.1, text("b"), finished()]
    async with gateway_at(tokenizer.address, keep_alive_s=0.01) as url, httpx.AsyncClient(base_url=url) as client:
        chunks = events((await client.post(PATH, json=body(stream=True))).content)
    texts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(texts) == "ab"
    assert texts.count("") > 1


async def test_the_official_client_reads_it(url: str) -> None:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answer = await client.completions.create(model=MODEL, prompt="Once")
        assert answer.choices[0].text == "Hello, world"
        stream = await client.completions.create(model=MODEL, prompt="Once", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello, world"


@pytest.mark.parametrize(
    ("field", "param"), [("text", "prompt"), ("sampling.top_p", "top_p"), ("sampling.stop_texts[1]", "stop[1]")]
)
async def test_a_refused_field_is_named(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, field: str, param: str
) -> None:
    tokenizer.error = refusal("INVALID_ARGUMENT", "INVALID_FIELD", "wrong", metadata={"field": field})
    for is_stream in (False, True):
        response = await client.post(PATH, json=body(stream=is_stream))
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param


async def test_other_errors(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.error = refusal("OUT_OF_RANGE", "CONTEXT_LENGTH_EXCEEDED", "too long")
    error = (await client.post(PATH, json=body())).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    tokenizer.error = None
    response = await client.post(PATH, json=body(prompt=["a", "b"]))
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "unsupported_parameter"
    tokenizer.script = [admitted(), text("a"), refusal("UNAVAILABLE", "ENGINE_LOST", "the engine died")]
    stream = (await client.post(PATH, json=body(stream=True))).text
    assert "[DONE]" not in stream
    assert orjson.loads(stream.strip().split("data: ")[-1])["error"]["code"] == "service_unavailable"


async def test_a_client_that_leaves_cancels_the_answer(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = [admitted(), text("a"), asyncio.Event()]
    async with client.stream("POST", PATH, json=body(stream=True)) as response:
        async for line in response.aiter_lines():
            assert '"text":"a"' in line
            break
    async with asyncio.timeout(10):
        await tokenizer.cancelled.wait()
