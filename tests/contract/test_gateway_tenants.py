"""API keys, tenants and limits of the gateway on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_server import gateway_at
from openai import AsyncOpenAI
from scripted_tokenizer import HELLO, MODEL, ScriptedTokenizer, admitted, finished, text
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from services.gateway.tenants.caller import Caller
from services.gateway.tenants.key import draw_key
from services.gateway.tenants.key_file import write_keys

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
NOW = datetime(2025, 1, 2, tzinfo=UTC)
ALICES, ALICE = draw_key(Caller("alice", "alice", None), "", NOW)
BOBS, BOB = draw_key(Caller("bob", "team", False), "", NOW)
REVOKED, WAS_EVES = draw_key(Caller("eve", "eve", None), "", NOW)


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    revoked = type(REVOKED)(REVOKED.key_id, REVOKED.digest, REVOKED.caller, "", NOW, revoked=NOW)
    write_keys(path, [ALICES, BOBS, revoked])
    return path


@pytest.fixture
async def guarded(tokenizer: ScriptedTokenizer, keys_file: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client without a key of a gateway that wants one."""
    async with (
        gateway_at(tokenizer.address, keys_file=keys_file) as url,
        httpx.AsyncClient(base_url=url, timeout=10) as client,
    ):
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def assert_refused(response: httpx.Response, path: str) -> None:
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"]
    if path.startswith(("/v1/messages", "/messages")):
        assert response.json()["type"] == "error"
        assert response.json()["error"]["type"] == "authentication_error"
    else:
        assert response.json()["error"]["code"] == "invalid_api_key"


WRONG = [
    {},
    bearer("none"),
    bearer(WAS_EVES),
    bearer(ALICE[:-1]),
    {"x-api-key": WAS_EVES},
    {"x-api-key": "none"},
    {"authorization": f"Basic {ALICE}"},
    {**bearer(ALICE), "x-api-key": BOB},
]


@pytest.mark.parametrize("path", [CHAT, "/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_no_request_without_a_good_key_reaches_the_tokenizer(
    guarded: httpx.AsyncClient, tokenizer: ScriptedTokenizer, path: str
) -> None:
    for headers in WRONG:
        assert_refused(await guarded.post(path, json=BODY, headers=headers), path)
    assert tokenizer.requests == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/v1/models"),
        ("GET", f"/models/{MODEL}"),
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/messages/count_tokens"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
        ("GET", "/metrics"),
        ("GET", "/nothing"),
        ("OPTIONS", CHAT),
        ("POST", "/"),
        ("GET", "//"),
        ("GET", "/health/"),
        ("GET", "/%68ealth/x"),
    ],
)
async def test_keys_guard_every_path(guarded: httpx.AsyncClient, method: str, path: str) -> None:
    assert_refused(await guarded.request(method, path), path)


async def test_everybody_may_ask_whether_somebody_is_there(guarded: httpx.AsyncClient) -> None:
    assert (await guarded.get("/health")).status_code == 200
    assert (await guarded.head("/")).status_code == 200


@pytest.mark.parametrize("headers", [bearer(ALICE), {"x-api-key": ALICE}, {**bearer(ALICE), "x-api-key": ALICE}])
async def test_a_good_key_in_either_header(
    guarded: httpx.AsyncClient, tokenizer: ScriptedTokenizer, headers: dict[str, str]
) -> None:
    assert (await guarded.post(CHAT, json=BODY, headers=headers)).status_code == 200
    assert (await guarded.get("/docs", headers=headers)).status_code == 200
    routing = tokenizer.requests[0].routing
    assert (routing.tenant, routing.cache_scope, routing.HasField("persist")) == ("alice", "alice", False)


async def test_the_official_client(guarded: httpx.AsyncClient) -> None:
    async with AsyncOpenAI(base_url=f"{guarded.base_url}/v1", api_key=BOB) as client:
        answer = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}])
    assert answer.choices[0].message.content == "Hello, world"


async def test_a_client_cannot_choose_its_tenant(guarded: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    names = ("tenant", "cache_scope", "persist", "routing", "user", "organization", "metadata")
    body = {**BODY, **{name: "alice" for name in names if name not in ("metadata", "routing")}}
    body |= {"metadata": {"tenant": "alice"}, "routing": {"tenant": "alice", "cache_scope": "alice"}}
    headers = {**bearer(BOB), "openai-organization": "alice", "openai-project": "alice"}
    headers |= {"x-tenant": "alice", "x-fencepost-tenant": "alice", "tenant": "alice", "cache-scope": "alice"}
    response = await guarded.post(f"{CHAT}?tenant=alice&cache_scope=alice", json=body, headers=headers)
    assert response.status_code == 200
    routing = tokenizer.requests[0].routing
    assert (routing.tenant, routing.cache_scope, routing.persist) == ("bob", "team", False)


async def test_without_keys_any_key_is_taken(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    for headers in WRONG:
        assert (await client.post(CHAT, json=BODY, headers=headers)).status_code == 200
    assert {(request.routing.tenant, request.routing.cache_scope) for request in tokenizer.requests} == {
        ("default", "default")
    }
    assert (await client.get("/docs")).status_code == 200


async def test_a_file_that_goes_does_not_open_the_door(
    guarded: httpx.AsyncClient, keys_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.to_thread(keys_file.unlink)
    while f"{keys_file} is gone" not in caplog.text:
        assert_refused(await guarded.get("/v1/models"), "/v1/models")
    assert_refused(await guarded.get("/v1/models"), "/v1/models")
    assert (await guarded.get("/v1/models", headers=bearer(ALICE))).status_code == 200


async def test_limits_count_streams_to_their_end(tokenizer: ScriptedTokenizer, keys_file: Path) -> None:
    go = asyncio.Event()
    tokenizer.script = [admitted(), text("a"), go, text("b"), finished()]
    streaming = {**BODY, "stream": True}
    async with (
        gateway_at(tokenizer.address, keys_file=keys_file, tenant_concurrency=1, max_concurrency=2) as url,
        httpx.AsyncClient(base_url=url, timeout=10) as client,
        client.stream("POST", CHAT, json=streaming, headers=bearer(ALICE)) as first,
    ):
        assert first.status_code == 200
        refused = await client.post(CHAT, json=BODY, headers=bearer(ALICE))
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        async with client.stream("POST", CHAT, json=streaming, headers=bearer(BOB)) as second:
            assert second.status_code == 200
            assert (await client.get("/health")).status_code == 200
            go.set()
            await second.aread()
        await first.aread()
        tokenizer.script = list(HELLO)
        for key in (ALICE, BOB, ALICE):
            assert (await client.post(CHAT, json=BODY, headers=bearer(key))).status_code == 200


async def test_the_whole_server_has_a_limit(tokenizer: ScriptedTokenizer, keys_file: Path) -> None:
    tokenizer.script = [admitted(), text("a"), asyncio.Event()]
    async with (
        gateway_at(tokenizer.address, keys_file=keys_file, max_concurrency=1) as url,
        httpx.AsyncClient(base_url=url, timeout=10) as client,
    ):
        async with client.stream("POST", CHAT, json={**BODY, "stream": True}, headers=bearer(ALICE)) as first:
            assert first.status_code == 200
            for path, status in ((CHAT, 503), ("/v1/messages", 529)):
                refused = await client.post(path, json=BODY, headers=bearer(BOB))
                assert refused.status_code == status
                assert refused.headers["retry-after"] == "1"
        # The client has left; its slot comes back once the gateway has noticed.
        await tokenizer.cancelled.wait()
        while (await client.get("/v1/models", headers=bearer(BOB))).status_code != 200:
            pass


async def create(socket: ClientConnection) -> dict[str, Any]:
    """One response over a WebSocket; the event that ends it."""
    await socket.send(json.dumps({"type": "response.create", "model": MODEL, "input": "Hi"}))
    while True:
        event = json.loads(await socket.recv())
        if event["type"] in ("response.completed", "error"):
            return event


async def test_a_websocket_asks_who_is_there_with_every_response(tokenizer: ScriptedTokenizer, keys_file: Path) -> None:
    async with (
        gateway_at(tokenizer.address, keys_file=keys_file) as url,
        connect(f"{url.replace('http', 'ws', 1)}/v1/responses", additional_headers=bearer(ALICE)) as socket,
    ):
        assert (await create(socket))["type"] == "response.completed"
        assert tokenizer.requests[0].routing.tenant == "alice"
        write_keys(keys_file, [BOBS])
        while (event := await create(socket))["type"] != "error":
            pass
        assert event["status"] == 401
        assert event["error"]["code"] == "invalid_api_key"


async def test_a_websocket_takes_a_slot_for_a_response_only(tokenizer: ScriptedTokenizer, keys_file: Path) -> None:
    go = asyncio.Event()
    tokenizer.script = [admitted(), text("a"), go, text("b"), finished()]
    async with (
        gateway_at(tokenizer.address, keys_file=keys_file, tenant_concurrency=1) as url,
        httpx.AsyncClient(base_url=url, timeout=10) as client,
        connect(f"{url.replace('http', 'ws', 1)}/v1/responses", additional_headers=bearer(ALICE)) as socket,
    ):
        async with client.stream("POST", CHAT, json={**BODY, "stream": True}, headers=bearer(ALICE)) as response:
            assert response.status_code == 200
            event = await create(socket)
            assert (event["status"], event["headers"]) == (429, {"retry-after": "1"})
            go.set()
            await response.aread()
        assert (await create(socket))["type"] == "response.completed"


async def test_a_websocket_without_a_good_key_is_refused_before_the_upgrade(guarded: httpx.AsyncClient) -> None:
    url = str(guarded.base_url).replace("http", "ws", 1)
    for headers in WRONG:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"{url}/v1/responses", additional_headers=headers)
        assert refused.value.response.status_code == 401
        assert refused.value.response.headers["www-authenticate"] == "Bearer"
