"""What a user gets from ``fencepost up``, through the official client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.e2e.oracle import Oracle
from tests.e2e.stack import MODEL, Stack, run_stack, wait_for_health

QUESTIONS = (
    "What is the capital of France?",
    "And of Italy? Answer in one sentence.",
    "Name three fruits that grow in both countries.",
)


@pytest.fixture(scope="module")
def stack(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with run_stack(tmp_path_factory.mktemp("stack")) as running:
        yield running


@pytest.fixture(scope="module")
def oracle(smollm2_dir: Path) -> Oracle:
    return Oracle(smollm2_dir)


def ask(stack: Stack, messages: list[Any], max_tokens: int = 40, **options: Any) -> ChatCompletion:
    return stack.client().chat.completions.create(
        model=MODEL, messages=messages, max_tokens=max_tokens, temperature=0, **options
    )


def cached(answer: ChatCompletion, tier: str | None = None) -> int:
    assert answer.usage is not None
    details = answer.usage.prompt_tokens_details
    assert details is not None
    if tier is None:
        return details.cached_tokens or 0
    return details.model_dump()["cached_tokens_by_tier"][tier]


def test_three_turns_reuse_memory_and_after_a_restart_the_disk(tmp_path: Path, oracle: Oracle):
    messages: list[Any] = []

    def turn(stack: Stack, question: str) -> ChatCompletion:
        messages.append({"role": "user", "content": question})
        answer = ask(stack, messages)
        text, num_tokens = oracle.answer(messages, 40)
        assert answer.choices[0].message.content == text, "equal to a computation without any cache"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == num_tokens
        messages.append({"role": "assistant", "content": text})
        return answer

    with run_stack(tmp_path / "data") as stack:
        first = turn(stack, QUESTIONS[0])
        second = turn(stack, QUESTIONS[1])
        assert first.usage is not None
        assert second.usage is not None
        assert cached(second, "vram") >= first.usage.prompt_tokens + first.usage.completion_tokens - 1
    with run_stack(tmp_path / "data") as stack:
        third = turn(stack, QUESTIONS[2])
        assert cached(third, "ssd") >= second.usage.prompt_tokens + second.usage.completion_tokens - 1


def test_eight_streams_equal_one_by_one(stack: Stack, oracle: Oracle):
    prompts: list[list[Any]] = [
        [{"role": "user", "content": f"Tell me one fact about the number {n}."}] for n in range(2, 10)
    ]

    async def stream(client: openai.AsyncOpenAI, messages: list[Any]) -> str:
        chunks = await client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=24, temperature=0, stream=True
        )
        return "".join([c.choices[0].delta.content or "" async for c in chunks if c.choices])

    async def together() -> list[str]:
        async with stack.async_client() as client:
            return await asyncio.gather(*(stream(client, messages) for messages in prompts))

    texts = asyncio.run(together())
    assert texts == [oracle.answer(messages, 24)[0] for messages in prompts]
    assert texts == [ask(stack, messages, 24).choices[0].message.content for messages in prompts]


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves_holds_nothing_and_its_blocks_stay(stack: Stack, streams: bool):
    story = f"Tell me a very long story about {'a river' if streams else 'a mountain'}. " * 40
    body = {"model": MODEL, "messages": [{"role": "user", "content": story}], "max_tokens": 2000, "stream": streams}
    # The engine says when it is at work on the request; then the client leaves, however fast the machine is.
    with socket.create_connection(("127.0.0.1", stack.port)) as client:
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
        client.sendall(head.encode() + data)
        stack.wait_until_decoding()
    load = stack.engine_load()
    assert (load.held_blocks, load.leases, load.running) == (0, 0, 0)
    again = ask(stack, [{"role": "user", "content": story}], 1)
    assert again.usage is not None
    assert cached(again) >= again.usage.prompt_tokens - 16


@pytest.mark.parametrize("service", ["kvstore", "engine", "tokenizer", "gateway"])
def test_any_service_may_be_killed(stack: Stack, service: str):
    others = {name: stack.pid_of(name) for name in ("kvstore", "engine", "tokenizer", "gateway") if name != service}
    killed = stack.pid_of(service)
    os.kill(killed, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while True:
        try:
            wait_for_health(stack)
            answer = ask(stack, [{"role": "user", "content": "What is the capital of France?"}], 12)
            break
        except (openai.APIConnectionError, openai.InternalServerError):
            assert time.monotonic() < deadline, stack.log
            time.sleep(0.2)
    assert answer.choices[0].message.content == "The capital of France is Paris."
    while True:
        try:
            assert stack.pid_of(service) != killed
            break
        except AssertionError:
            assert time.monotonic() < deadline, stack.log
            time.sleep(0.1)
    assert {name: stack.pid_of(name) for name in others} == others, "the others stay up"


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        ({"messages": []}, 400, "messages", None),
        ({"messages": "hello"}, 400, "messages", None),
        ({"messages": [{"role": "user", "content": 7}]}, 400, "messages[0].content", None),
        ({"model": "llama-nothing"}, 404, "model", "model_not_found"),
        ({"max_tokens": 0}, 400, "max_tokens", None),
        ({"max_tokens": -3}, 400, "max_tokens", None),
        ({"max_tokens": "many"}, 400, "max_tokens", None),
        ({"temperature": 3}, 400, "temperature", None),
        ({"stop": [""]}, 400, "stop[0]", None),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, 400, "messages", "context_length_exceeded"),
    ],
)
def test_bad_input_is_a_client_error_that_names_the_field(
    stack: Stack, body: dict[str, Any], status: int, param: str, code: str | None
):
    whole = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]} | body
    response = httpx.post(f"{stack.url}/v1/chat/completions", json=whole, timeout=30)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param), error
    assert code is None or error["code"] == code
    assert error["type"] == "invalid_request_error"
    assert error["message"]


def test_malformed_json_is_a_client_error_and_the_stack_keeps_serving(stack: Stack):
    response = httpx.post(f"{stack.url}/v1/chat/completions", content=b'{"model": ', timeout=30)
    assert response.status_code == 400
    assert "JSON" in response.json()["error"]["message"]
    assert ask(stack, [{"role": "user", "content": "Hi"}], 1).choices


def test_stop_texts_and_seeds(stack: Stack):
    messages: list[Any] = [{"role": "user", "content": "Count from one to ten in words, separated by commas."}]
    free = ask(stack, messages, 40).choices[0].message.content or ""
    stop = free[len(free) // 2 : len(free) // 2 + 3]
    cut = ask(stack, messages, 40, stop=[stop])
    assert cut.choices[0].message.content == free[: free.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    client = stack.client()
    drawn = [
        client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=20, temperature=1.2, top_p=0.9, seed=7
        )
        for _ in range(2)
    ]
    assert drawn[0].choices[0].message.content == drawn[1].choices[0].message.content


@pytest.mark.parametrize("seed", range(12 if os.environ.get("FENCEPOST_SOAK") else 2))
def test_what_was_sampled_is_reused_even_where_it_is_not_how_the_text_would_be_encoded(stack: Stack, seed: int):
    options: dict[str, Any] = {"model": MODEL, "temperature": 1.8, "seed": seed, "max_tokens": 32}
    if seed % 2:
        options["tools"] = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
    client = stack.client()
    messages: list[Any] = [{"role": "user", "content": f"Tell me something nobody has ever said before ({seed})."}]
    known = 0
    for _ in range(3):
        answer = client.chat.completions.create(messages=messages, **options)
        assert answer.usage is not None
        assert cached(answer) >= known
        known = answer.usage.prompt_tokens + answer.usage.completion_tokens - 1
        echo = answer.choices[0].message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
        messages += [echo, {"role": "user", "content": "Go on."}]
