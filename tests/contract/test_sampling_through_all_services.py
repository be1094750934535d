"""Several choices and log-probabilities from a client to a real engine and back."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from services import rpc
from services.tokenizer.assembly import build
from services.tokenizer.config import TokenizerSettings
from tests.contract.engine_client import EngineClient, run_engine, write_tiny_engine_model
from tests.contract.gateway_server import gateway_at

BODY: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Tell me something long enough for some blocks."}],
    "seed": 7,
    "max_tokens": 24,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine_model(tmp_path_factory.mktemp("model") / "tiny")


@asynccontextmanager
async def stack_of(model: Path) -> AsyncGenerator[tuple[httpx.AsyncClient, EngineClient]]:
    server = rpc.new_server()
    async with (
        run_engine(model) as engine,
        build(TokenizerSettings(model=model, engines=(engine.address,)), server),
    ):
        port = rpc.bind(server, "127.0.0.1:0")
        await server.start()
        async with gateway_at(f"127.0.0.1:{port}") as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield client, engine
        await server.stop(None)


async def answer_of(client: httpx.AsyncClient, **changes: Any) -> dict[str, Any]:
    response = await client.post("/v1/chat/completions", json=BODY | changes)
    assert response.status_code == 200, response.text
    return response.json()


def texts_of(answer: dict[str, Any]) -> list[str]:
    return [choice["message"]["content"] for choice in answer["choices"]]


async def test_choices_are_reproducible_and_the_prompt_is_counted_once(model: Path) -> None:
    async with stack_of(model) as (client, engine):
        (alone,) = texts_of(one := await answer_of(client))
        texts = texts_of(several := await answer_of(client, n=4))
        assert texts[0] == alone
        assert len(set(texts)) == 4
        assert texts_of(await answer_of(client, n=4)) == texts
        assert several["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
        assert several["usage"]["completion_tokens"] > one["usage"]["completion_tokens"]
        load = await engine.settled()
        assert load.held_blocks == 0
        assert load.free_blocks + load.cached_blocks == load.total_blocks


async def test_log_probabilities_spell_the_answer(model: Path) -> None:
    async with stack_of(model) as (client, _):
        asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 3, "n": 2}
        answer = await answer_of(client, **asked)
        for choice in answer["choices"]:
            entries = choice["logprobs"]["content"]
            spelt = b"".join(bytes(entry["bytes"]) for entry in entries)
            assert spelt.decode(errors="replace") == choice["message"]["content"]
            assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
            assert all(entry["logprob"] <= entry["top_logprobs"][0]["logprob"] < 0 for entry in entries)
        assert texts_of(answer) == texts_of(await answer_of(client, n=2))


async def test_a_bias_decides_and_one_beyond_the_vocabulary_is_named(model: Path) -> None:
    async with stack_of(model) as (client, _):
        (text,) = texts_of(await answer_of(client, logit_bias={"70": 100}, max_tokens=5))
        assert len(text) == 5
        assert len(set(text)) == 1
        response = await client.post("/v1/chat/completions", json=BODY | {"logit_bias": {"500": 1}})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "logit_bias"
