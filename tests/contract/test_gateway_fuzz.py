"""Whatever a client sends, it gets an answer or an error in its protocol's shape, and only its own tenant's."""

from __future__ import annotations

import asyncio
import os
import random

import httpx
import orjson
import pytest
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb

from tests.contract.agent_bodies import BODY_BY_PATH
from tests.contract.gateway_server import gateway_at
from tests.contract.mutations import mutated
from tests.contract.scripted_tokenizer import ScriptedTokenizer

# All of the soak's bodies together are ten thousand.
NUM_BODIES = 10_000 // len(BODY_BY_PATH) + 1 if os.environ.get("FENCEPOST_SOAK") else 100
CONCURRENCY = 16


@pytest.mark.parametrize("path", BODY_BY_PATH)
async def test_a_body_as_agents_send_it_is_answered(path: str) -> None:
    async with (
        ScriptedTokenizer().serving() as tokenizer,
        gateway_at(tokenizer.address) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        response = await client.post(path, json=BODY_BY_PATH[path])
        assert response.status_code == 200, response.text


@pytest.mark.parametrize("path", BODY_BY_PATH)
async def test_a_body_that_is_nearly_right_is_answered_or_refused(path: str) -> None:
    rng = random.Random(f"nearly right {path}")
    bodies = [mutated(BODY_BY_PATH[path], rng) for _ in range(NUM_BODIES)]
    limit = asyncio.Semaphore(CONCURRENCY)
    async with (
        ScriptedTokenizer().serving() as tokenizer,
        gateway_at(tokenizer.address) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):

        async def send(body: object) -> None:
            async with limit:
                response = await client.post(path, content=orjson.dumps(body))
            assert response.status_code in (200, 400, 404), (response.status_code, response.text, body)
            if response.status_code != 200:
                error = response.json()["error"]
                assert error["message"], body
                if "messages" in path:
                    assert response.json()["type"] == "error", body
                else:
                    assert set(error) == {"message", "type", "param", "code"}, body

        async with asyncio.TaskGroup() as group:
            for body in bodies:
                group.create_task(send(body))
    assert all(_is_ours(request) for request in tokenizer.requests)


def _is_ours(request: pb.GenerateRequest) -> bool:
    return (request.routing.tenant, request.routing.cache_scope) == ("default", "default")
