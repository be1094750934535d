"""Whatever a client sends, it gets an answer or an error in its protocol's shape, and only its own tenant's."""

from __future__ import annotations

import asyncio
import os
import random
from datetime import UTC, datetime
from pathlib import Path

import httpx
import orjson
import pytest
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb

from services.gateway.tenants.caller import Caller
from services.gateway.tenants.key import draw_key
from services.gateway.tenants.key_file import write_keys
from tests.contract.agent_bodies import BODY_BY_PATH
from tests.contract.gateway_server import gateway_at
from tests.contract.mutations import mutated
from tests.contract.scripted_tokenizer import ScriptedTokenizer

# All of the soak's bodies together are ten thousand.
NUM_BODIES = 10_000 // len(BODY_BY_PATH) + 1 if os.environ.get("FENCEPOST_SOAK") else 100
CONCURRENCY = 16
NOW = datetime(2025, 1, 2, tzinfo=UTC)


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
async def test_a_body_that_is_nearly_right_is_answered_or_refused(path: str, tmp_path: Path) -> None:
    tenants = ("alice", "bob")
    drawn = [draw_key(Caller(tenant, f"{tenant}-scope", None), "", NOW) for tenant in tenants]
    write_keys(tmp_path / "keys.json", [key for key, _ in drawn])
    rng = random.Random(f"nearly right {path}")
    bodies = [mutated(BODY_BY_PATH[path], rng) for _ in range(NUM_BODIES)]
    limit = asyncio.Semaphore(CONCURRENCY)
    async with (
        ScriptedTokenizer().serving() as tokenizer,
        gateway_at(tokenizer.address, keys_file=tmp_path / "keys.json") as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):

        async def send(number: int, body: object) -> None:
            request_id = f"{tenants[number % 2]}-{number}"
            headers = {"x-api-key": drawn[number % 2][1], "x-request-id": request_id}
            async with limit:
                response = await client.post(path, content=orjson.dumps(body), headers=headers)
            assert response.status_code in (200, 400, 404), (response.status_code, response.text, body)
            if response.status_code != 200:
                error = response.json()["error"]
                assert error["message"], body
                if "messages" in path:
                    assert response.json()["type"] == "error", body
                else:
                    assert set(error) == {"message", "type", "param", "code"}, body

        async with asyncio.TaskGroup() as group:
            for number, body in enumerate(bodies):
                group.create_task(send(number, body))
    assert all(_is_its_senders(request) for request in tokenizer.requests)


def _is_its_senders(request: pb.GenerateRequest) -> bool:
    """The sender's name begins the id of its request."""
    tenant = request.routing.request_id.partition("-")[0]
    return (request.routing.tenant, request.routing.cache_scope) == (tenant, f"{tenant}-scope")
