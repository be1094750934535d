"""The rest of the HTTP surface: models, unknown paths, request ids, what is measured."""

from __future__ import annotations

import httpx
import pytest
from openai import AsyncOpenAI
from prometheus_client import generate_latest
from scripted_tokenizer import MODEL, ScriptedTokenizer, refusal


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_models_in_the_shape_of_both_sdks(client: httpx.AsyncClient, prefix: str) -> None:
    response = await client.get(f"{prefix}/models?limit=1000&beta=true")
    assert response.status_code == 200
    first = {
        "id": MODEL,
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "fencepost",
        "type": "model",
        "display_name": MODEL,
        "created_at": "2023-11-14T22:13:20Z",
        "max_model_len": 8192,
        "aliases": ["default", "claude-*", "gpt-*"],
    }
    answer = response.json()
    assert answer["data"][0] == first
    assert {name: answer[name] for name in answer if name != "data"} == {
        "object": "list",
        "has_more": False,
        "first_id": MODEL,
        "last_id": "org/other",
    }
    assert (await client.get(f"{prefix}/models/default")).json() == first


async def test_the_official_client_lists_models(url: str) -> None:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        assert [model.id async for model in client.models.list()] == [MODEL, "org/other"]
        assert (await client.models.retrieve("org/other")).id == "org/other"


async def test_unknown_model(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/models/nobody")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


async def test_models_without_a_tokenizer(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.models_error = refusal("UNAVAILABLE", "STARTING", "still loading", retry_after_s=3)
    response = await client.get("/v1/models")
    assert response.status_code == 503
    assert response.headers["retry-after"] == "3"


async def test_somebody_is_there(client: httpx.AsyncClient) -> None:
    assert (await client.head("/")).status_code == 200
    assert (await client.get("/")).json()["name"] == "fencepost"
    assert (await client.get("/openapi.json")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("PROPFIND", "/v1/chat/completions", 405),
    ],
)
async def test_wrong_paths_and_methods(client: httpx.AsyncClient, method: str, path: str, status: int) -> None:
    response = await client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert path in response.json()["error"]["message"]
    assert ("allow" in response.headers) == (status == 405)
    assert response.headers["x-request-id"]


async def test_request_ids_are_kept_when_harmless(client: httpx.AsyncClient) -> None:
    assert (await client.get("/", headers={"x-request-id": "a-1:b.2"})).headers["x-request-id"] == "a-1:b.2"
    for hostile in ("a b", "é", "x" * 129, ""):
        made = (await client.get("/", headers={b"x-request-id": hostile.encode()})).headers["x-request-id"]
        assert made.startswith("req_")
    ids = {(await client.get("/")).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


async def test_metrics_count_by_pattern_not_by_what_was_sent(client: httpx.AsyncClient) -> None:
    await client.get("/v1/models/some-secret-name")
    await client.get("/another/secret")
    page = generate_latest().decode()
    assert 'path="/v1/models/{model_id:path}"' in page
    assert 'fencepost_http_requests_total{method="GET",path="unknown",status="404"}' in page
    assert "secret" not in page


async def test_metrics_are_not_for_clients(client: httpx.AsyncClient) -> None:
    assert (await client.get("/metrics")).status_code == 404


async def test_our_own_bug_is_a_500_in_shape(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.models[0].created_s = 2**62
    response = await client.get("/v1/models")
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert response.headers["x-request-id"]
