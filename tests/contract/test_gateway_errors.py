"""What goes wrong: always a 4xx or 5xx in OpenAI's shape that names the field, and the gateway keeps serving."""

from __future__ import annotations

import gzip
import itertools
import math
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest
import zstandard
from fencepost.tokenizer.v1 import tokenizer_pb2
from gateway_server import gateway_at
from openai import APIStatusError, AsyncOpenAI
from scripted_tokenizer import MODEL, ScriptedTokenizer, admitted, finished, refusal, text

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "Hi"}


def body(**changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [USER], **changes}


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error, its envelope checked."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    assert list(response.json()) == ["error"]
    error = response.json()["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert error["message"]
    return error


async def test_body_that_is_no_json_object(client: httpx.AsyncClient) -> None:
    for content, says in [
        (b"", "empty"),
        (b'{"model": ', "line 1, column"),
        (b'{"model": "m",\n "messages": [}', "line 2, column 15"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"temperature": NaN}', "line 1"),
        (b'{"temperature": Infinity}', "line 1"),
        (b'{"temperature": 1e999}', "line 1"),
        (b'{"model": "\xff\xfe"}', "not valid JSON"),
        (rb'{"model": "\ud800"}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
    ]:
        error = error_of(await client.post(PATH, content=content), 400)
        assert error["type"] == "invalid_request_error"
        assert says in error["message"]
    assert (await client.post(PATH, json=body())).status_code == 200


async def test_the_field_is_named(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    for changes, param in [
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [USER, USER, {"role": "user", "content": 7}]}, "messages[2].content"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"functions": [{"name": "ls"}]}, "functions"),
    ]:
        for is_stream in (False, True):
            error = error_of(await client.post(PATH, json=body(stream=is_stream, **changes)), 400)
            assert error["param"] == param
            assert param in error["message"]
            assert error["type"] == "invalid_request_error"
    assert tokenizer.requests == []


REFUSALS: list[tuple[str, str, dict[str, Any], int, str | None, str | None]] = [
    ("INVALID_ARGUMENT", "INVALID_FIELD", {"metadata": {"field": "sampling.top_p"}}, 400, None, "top_p"),
    ("INVALID_ARGUMENT", "TEMPLATE_REFUSED", {"metadata": {"field": "conversation"}}, 400, None, "messages"),
    (
        "UNIMPLEMENTED",
        "NOT_SUPPORTED",
        {"metadata": {"field": "conversation.messages[1].parts[0]"}},
        400,
        "unsupported_parameter",
        "messages[1].content[0]",
    ),
    (
        "INVALID_ARGUMENT",
        "INVALID_FIELD",
        {"metadata": {"field": "conversation.tools[0].parameters_json"}},
        400,
        None,
        "tools[0].function.parameters",
    ),
    (
        "UNIMPLEMENTED",
        "NOT_SUPPORTED",
        {"metadata": {"field": "conversation.tool_choice"}},
        400,
        "unsupported_parameter",
        "tool_choice",
    ),
    ("UNIMPLEMENTED", "", {}, 400, "unsupported_parameter", None),
    ("NOT_FOUND", "MODEL_NOT_FOUND", {}, 404, "model_not_found", "model"),
    ("OUT_OF_RANGE", "CONTEXT_LENGTH_EXCEEDED", {}, 400, "context_length_exceeded", "messages"),
    ("RESOURCE_EXHAUSTED", "ENCODE_QUEUE_FULL", {"retry_after_s": 2.2}, 429, "rate_limit_exceeded", None),
    ("RESOURCE_EXHAUSTED", "ENCODE_QUEUE_FULL", {}, 429, "rate_limit_exceeded", None),
    ("UNAVAILABLE", "NO_ENGINE", {"retry_after_s": 0.1}, 503, "service_unavailable", None),
    ("DEADLINE_EXCEEDED", "ENCODE_TIMEOUT", {}, 504, "timeout", None),
    ("INTERNAL", "INTERNAL", {}, 500, None, None),
    ("NOT_FOUND", "WHATEVER", {}, 500, None, None),
]


async def test_refusal_before_the_first_event_is_a_status(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    for (status, reason, details, http_status, code, param), is_stream in itertools.product(REFUSALS, (False, True)):
        tokenizer.error = refusal(status, reason, "said by the tokenizer", **details)
        response = await client.post(PATH, json=body(stream=is_stream))
        error = error_of(response, http_status)
        assert (error["code"], error["param"]) == (code, param)
        if http_status in (429, 503):
            assert response.headers["retry-after"] == str(max(1, math.ceil(details.get("retry_after_s", 0))))
        else:
            assert "retry-after" not in response.headers
        assert ("said by the tokenizer" in error["message"]) == (http_status < 500 or http_status == 503)
    tokenizer.error = None
    assert (await client.post(PATH, json=body())).status_code == 200


async def test_context_overflow_has_the_wording_that_clients_know(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    sizes = {"prompt_tokens": "9000", "context_tokens": "8192"}
    tokenizer.error = refusal("OUT_OF_RANGE", "CONTEXT_LENGTH_EXCEEDED", "too long", metadata=sizes)
    error = error_of(await client.post(PATH, json=body()), 400)
    assert "maximum context length is 8192 tokens" in error["message"]
    assert "resulted in 9000 tokens" in error["message"]


async def test_error_after_the_headers_ends_the_stream_without_done(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    tokenizer.script = [admitted(), text("Hel"), refusal("UNAVAILABLE", "ENGINE_LOST", "the engine died")]
    response = await client.post(PATH, json=body(stream=True))
    assert response.status_code == 200
    assert "[DONE]" not in response.text
    *_, content, last = response.text.strip().split("\n\n")
    assert '"content":"Hel"' in content
    error = orjson.loads(last.removeprefix("data: "))["error"]
    assert error == {
        "message": "the engine died",
        "type": "server_error",
        "param": None,
        "code": "service_unavailable",
    }


@pytest.mark.parametrize(
    "script",
    [
        [admitted(), text("Hel"), refusal("INTERNAL", "INTERNAL", "secret inside")],
        [admitted(), text("Hel")],
        [text("no Admitted"), finished()],
        [],
    ],
)
async def test_a_broken_tokenizer_is_a_500_that_tells_nothing(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, script: list[Any]
) -> None:
    tokenizer.script = script
    error = error_of(await client.post(PATH, json=body()), 500)
    assert error["type"] == "server_error"
    assert "secret" not in error["message"]


async def test_an_answer_the_server_gave_up_is_a_503(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = [admitted(), finished(tokenizer_pb2.FINISH_REASON_CANCELLED)]
    response = await client.post(PATH, json=body())
    error_of(response, 503)
    assert response.headers["retry-after"] == "1"


async def test_no_tokenizer_at_all_is_a_503_without_addresses() -> None:
    async with gateway_at("127.0.0.1:1") as url, httpx.AsyncClient(base_url=url) as client:
        response = await client.post(PATH, json=body())
        error = error_of(response, 503)
        assert response.headers["retry-after"] == "1"
        assert "127.0.0.1" not in error["message"]


async def test_an_answer_that_takes_too_long_is_a_504(tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = [admitted(), text("a"), 30.0]
    async with (
        gateway_at(tokenizer.address, request_timeout_s=0.2) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        error_of(await client.post(PATH, json=body()), 504)
        stream = await client.post(PATH, json=body(stream=True))
        assert orjson.loads(stream.text.strip().split("data: ")[-1])["error"]["code"] == "timeout"


async def test_the_official_client_raises_its_own_errors(url: str, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.error = refusal("NOT_FOUND", "MODEL_NOT_FOUND", "no such model")
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(APIStatusError) as caught:
            await client.chat.completions.create(model="x", messages=[{"role": "user", "content": "Hi"}])
    assert (caught.value.status_code, caught.value.code, caught.value.param) == (404, "model_not_found", "model")
    assert caught.value.request_id is not None


async def test_large_bodies_are_refused_whatever_they_declare(tokenizer: ScriptedTokenizer) -> None:
    async with (
        gateway_at(tokenizer.address, max_body_bytes=10_000) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        large = orjson.dumps(body(messages=[{"role": "user", "content": "a" * 20_000}]))

        async def undeclared() -> AsyncIterator[bytes]:
            for start in range(0, len(large), 1000):
                yield large[start : start + 1000]

        gzipped = {"content-encoding": "gzip"}
        for response in (
            await client.post(PATH, content=large),
            await client.post(PATH, content=undeclared()),
            await client.post(PATH, content=gzip.compress(large), headers=gzipped),
            await client.post(PATH, content=gzip.compress(b"a" * 10_000_000)[:9_000], headers=gzipped),
            *[await client.post(PATH, content=bomb, headers={"content-encoding": "zstd"}) for bomb in zstd_bombs()],
        ):
            assert error_of(response, 413)["code"] == "request_too_large"
        small = body(messages=[{"role": "user", "content": "a" * 9_000}])
        assert (await client.post(PATH, json=small)).status_code == 200


async def test_compressed_bodies(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    packed = gzip.compress(orjson.dumps(body()))
    assert (await client.post(PATH, content=packed, headers={"content-encoding": "gzip"})).status_code == 200
    for content in (b"no gzip", packed[:-6], packed + packed, b""):
        response = await client.post(PATH, content=content, headers={"content-encoding": "gzip"})
        error_of(response, 400)
    for encoding in ("deflate", "br", "gzip, gzip"):
        response = await client.post(PATH, content=packed, headers={"content-encoding": encoding})
        assert encoding in error_of(response, 415)["message"]
    assert len(tokenizer.requests) == 1


@pytest.mark.parametrize("write_content_size", [True, False])
async def test_zstd_bodies(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, write_content_size: bool) -> None:
    headers = {"content-encoding": "zstd"}
    plain = orjson.dumps(body(messages=[{"role": "user", "content": random.Random(0).randbytes(50_000).hex()}]))
    packed = zstandard.ZstdCompressor(write_content_size=write_content_size).compress(plain)
    assert (await client.post(PATH, content=packed, headers=headers)).status_code == 200
    sent = tokenizer.requests[0].conversation.messages[0].parts[0].text.text
    assert sent == random.Random(0).randbytes(50_000).hex()
    empty_frame = zstandard.compress(b"")
    for content in (b"no zstd", packed[:-1], packed[:20], packed + packed, packed + b"x", packed + empty_frame, b""):
        error_of(await client.post(PATH, content=content, headers=headers), 400)
    assert len(tokenizer.requests) == 1


def zstd_bombs() -> list[bytes]:
    """Short bodies that unfold to more than any limit here, or ask for the memory to do so."""
    long = b"a" * 50_000_000
    undeclared = zstandard.ZstdCompressor(write_content_size=False).compress(long)
    wide = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    return [zstandard.compress(long), undeclared, stream.compress(b"a" * 100) + stream.flush()]
