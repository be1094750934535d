"""Stored responses: chains, their retrieval, references to items, and compaction, in a real kvstore."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest
from dialogue import kvstore_at
from fencepost.kvstore.v1 import record_pb2, record_pb2_grpc
from fencepost.tokenizer.v1 import conversation_pb2 as conv
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from gateway_server import gateway_at
from scripted_tokenizer import (
    MODEL,
    ScriptedTokenizer,
    admitted,
    call,
    finished,
    reasoning,
    reasoning_finished,
    refusal,
    text,
)

from services import rpc
from services.gateway.tenants.caller import Caller
from services.gateway.tenants.key import draw_key
from services.gateway.tenants.key_file import write_keys

PATH = "/v1/responses"
NOW = datetime(2025, 1, 2, tzinfo=UTC)
# No JSON library would write them like this.
ARGUMENTS = '{"b" : 1.0,\n "a":[1e2 ], "a":"\\u00e9"}'
CALLS = [
    *(admitted(), reasoning("hm"), reasoning_finished(b"capsule"), text("Let me look.")),
    *call(0, "call_1", "ls", ARGUMENTS[:7], ARGUMENTS[7:]),
    finished(pb.FINISH_REASON_CALLS),
]
DONE = [admitted(), text("All is there."), finished()]
TOOLS = [{"type": "function", "name": "ls", "parameters": {"type": "object", "properties": {}}}]
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "a.txt\nb.txt"}


@pytest.fixture
async def records(tmp_path: Path) -> AsyncIterator[str]:
    async with kvstore_at(tmp_path / "kv") as address:
        yield address


@pytest.fixture
async def url(tokenizer: ScriptedTokenizer, records: str) -> AsyncIterator[str]:
    async with gateway_at(tokenizer.address, records=records) as found:
        yield found


async def create(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post(PATH, json={"model": MODEL, **body})
    assert response.status_code == 200, response.text
    return response.json()


async def first_turn(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> dict[str, Any]:
    """Ends with thinking, text and a call."""
    tokenizer.script = CALLS
    shown = ["reasoning.encrypted_content"]
    return await create(client, input="What is here?", instructions="Be brief.", tools=TOOLS, include=shown)


def conversation(tokenizer: ScriptedTokenizer) -> list[tuple[Any, ...]]:
    """What the tokenizer got last."""
    return [seen(message) for message in tokenizer.requests[-1].conversation.messages]


def seen(message: conv.Message) -> tuple[Any, ...]:
    """Role, parts' texts, calls' ids and arguments, the call that it answers."""
    parts = [part.reasoning.text or part.text.text for part in message.parts]
    calls = [(made.call_id, made.name, made.arguments) for made in message.calls]
    return conv.Role.Name(message.role).removeprefix("ROLE_").lower(), parts, calls, message.call_id


FIRST_ANSWER = ("assistant", ["hm", "Let me look."], [("call_1", "ls", ARGUMENTS)], "")
FIRST_TURN = [("user", ["What is here?"], [], ""), FIRST_ANSWER]
SECOND_TURN = [("tool", ["a.txt\nb.txt"], [], "call_1"), ("assistant", ["All is there."], [], "")]


def assert_not_found(response: httpx.Response, response_id: str) -> None:
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": f"Previous response with id '{response_id}' not found.",
        "type": "invalid_request_error",
        "param": "previous_response_id",
        "code": "previous_response_not_found",
    }


async def test_a_chain_keeps_calls_and_outputs_whole_and_in_their_spelling(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    first = await first_turn(client, tokenizer)
    tokenizer.script = DONE
    second = await create(client, input=[RESULT], previous_response_id=first["id"], tools=TOOLS)
    assert conversation(tokenizer) == [*FIRST_TURN, SECOND_TURN[0]]
    assert tokenizer.requests[-1].routing.previous_response_id == first["id"]
    assert tokenizer.requests[-1].conversation.messages[1].parts[0].reasoning.capsule == b"capsule"
    third = await create(client, input="And now?", previous_response_id=second["id"], instructions="Be long.")
    # Instructions are never inherited.
    assert conversation(tokenizer) == [
        ("system", ["Be long."], [], ""),
        *FIRST_TURN,
        *SECOND_TURN,
        ("user", ["And now?"], [], ""),
    ]
    assert third["previous_response_id"] == second["id"]
    # Another branch of the same turn.
    await create(client, input="Why?", previous_response_id=first["id"])
    assert conversation(tokenizer) == [*FIRST_TURN, ("user", ["Why?"], [], "")]


async def test_a_chain_survives_a_restart_and_goes_on_at_another_gateway(
    tokenizer: ScriptedTokenizer, records: str
) -> None:
    async with (
        gateway_at(tokenizer.address, records=records) as one,
        gateway_at(tokenizer.address, records=records) as other,
        httpx.AsyncClient(timeout=10) as client,
    ):
        tokenizer.script = CALLS
        body: dict[str, Any] = {"model": MODEL, "input": "What is here?"}
        first = (await client.post(f"{one}{PATH}", json=body)).json()
        tokenizer.script = DONE
        body |= {"input": [RESULT], "previous_response_id": first["id"]}
        second = (await client.post(f"{other}{PATH}", json=body)).json()
        assert conversation(tokenizer) == [*FIRST_TURN, SECOND_TURN[0]]
    async with gateway_at(tokenizer.address, records=records) as new, httpx.AsyncClient(base_url=new) as client:
        await create(client, input="And now?", previous_response_id=second["id"])
        assert conversation(tokenizer) == [*FIRST_TURN, *SECOND_TURN, ("user", ["And now?"], [], "")]
        assert (await client.get(f"{PATH}/{first['id']}")).json() == first


async def test_without_a_kvstore_a_chain_lives_as_long_as_its_gateway(tokenizer: ScriptedTokenizer) -> None:
    async with gateway_at(tokenizer.address) as url, httpx.AsyncClient(base_url=url) as client:
        first = await first_turn(client, tokenizer)
        tokenizer.script = DONE
        await create(client, input=[RESULT], previous_response_id=first["id"])
        assert conversation(tokenizer) == [*FIRST_TURN, SECOND_TURN[0]]
    async with gateway_at(tokenizer.address) as url, httpx.AsyncClient(base_url=url) as client:
        response = await client.post(PATH, json={"model": MODEL, "input": "a", "previous_response_id": first["id"]})
        assert_not_found(response, first["id"])


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_unknown_previous_response_is_said_so_before_anything_is_asked(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, is_stream: bool
) -> None:
    for path in (PATH, f"{PATH}/input_tokens", f"{PATH}/compact"):
        body = {"model": MODEL, "input": "a", "previous_response_id": "resp_nobody", "stream": is_stream}
        assert_not_found(await client.post(path, json=body), "resp_nobody")
    assert not tokenizer.requests
    assert not tokenizer.counted


async def test_an_id_of_any_length_is_just_unknown(client: httpx.AsyncClient) -> None:
    long = "x" * 5000
    body = {"model": MODEL, "input": "a", "previous_response_id": long}
    assert_not_found(await client.post(PATH, json=body), long[:200])
    body = {"model": MODEL, "input": [{"type": "item_reference", "id": long}]}
    assert (await client.post(PATH, json=body)).status_code == 404
    assert (await client.get(f"{PATH}/{long}")).status_code == 404


async def test_a_deleted_response_is_gone_and_so_is_what_continues_it(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    first = await first_turn(client, tokenizer)
    second = await create(client, input=[RESULT], previous_response_id=first["id"])
    deleted = await client.delete(f"{PATH}/{first['id']}")
    assert deleted.json() == {"id": first["id"], "object": "response", "deleted": True}
    assert (await client.delete(f"{PATH}/{first['id']}")).status_code == 404
    assert (await client.get(f"{PATH}/{first['id']}")).status_code == 404
    for response_id in (first["id"], second["id"]):
        body = {"model": MODEL, "input": "a", "previous_response_id": response_id}
        assert_not_found(await client.post(PATH, json=body), response_id)
    assert (await client.get(f"{PATH}/{second['id']}")).json() == second
    assert (await client.get(f"{PATH}/{second['id']}/input_items")).status_code == 404


async def test_an_expired_response_is_not_found(tokenizer: ScriptedTokenizer, records: str) -> None:
    async with gateway_at(tokenizer.address, records=records) as url, httpx.AsyncClient(base_url=url) as client:
        first = await first_turn(client, tokenizer)
        # Put as it would be found at the end of its time.
        async with rpc.open_channel(records) as channel:
            stub: Any = record_pb2_grpc.RecordServiceStub(channel)
            key: dict[str, Any] = {"kind": record_pb2.RECORD_KIND_RESPONSE, "tenant": "default"}
            name = f"response:{first['id']}".encode()
            value = (await stub.Get(record_pb2.GetRequest(key=name, **key))).value
            await stub.Put(record_pb2.PutRequest(key=name, value=value, ttl_ms=1, **key))
            async with asyncio.timeout(10):
                while (await stub.BatchGet(record_pb2.BatchGetRequest(keys=[name], **key))).records:
                    pass
        body = {"model": MODEL, "input": "a", "previous_response_id": first["id"]}
        assert_not_found(await client.post(PATH, json=body), first["id"])
        assert (await client.get(f"{PATH}/{first['id']}")).status_code == 404


async def test_a_stored_response_is_given_back_byte_for_byte(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    tokenizer.script = CALLS
    body = (
        b'{"model": "tiny-chat", "input": "a", "metadata": {"a" : "\\u00e9"}, "tools": [{"type": "function", '
        b'"name": "ls", "parameters": {"type" : "object", "properties": {"n": {"maximum": 1e2}}}}]}'
    )
    created = await client.post(PATH, content=body)
    assert created.status_code == 200
    got = await client.get(f"{PATH}/{created.json()['id']}")
    assert (got.status_code, got.headers["content-type"]) == (200, "application/json")
    assert got.content == created.content
    assert (await client.get(f"/responses/{created.json()['id']}")).content == created.content
    streamed_again = await client.get(f"{PATH}/{created.json()['id']}", params={"stream": "true"})
    assert (streamed_again.status_code, streamed_again.json()["error"]["param"]) == (400, "stream")


async def test_a_response_is_in_place_before_its_last_event(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    tokenizer.script = CALLS
    content = b""
    async with client.stream("POST", PATH, json={"model": MODEL, "input": "a", "stream": True}) as response:
        async for chunk in response.aiter_bytes():
            content += chunk
            if b"event: response.completed\n" in content:
                final = orjson.loads(content.split(b"event: response.completed\ndata: ")[1].split(b"\n\n")[0])
                got = await client.get(f"{PATH}/{final['response']['id']}")
                assert got.json() == final["response"]
    assert b"event: response.completed\n" in content


@pytest.mark.parametrize("script", [[admitted(), text("a"), refusal("UNAVAILABLE", "LOST", "Gone.")], None])
async def test_what_failed_or_was_not_to_be_stored_is_not_there(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, script: Any
) -> None:
    tokenizer.script = CALLS if script is None else script
    body = {"model": MODEL, "input": "a", "stream": True, "store": script is not None}
    content = (await client.post(PATH, json=body)).content
    last = orjson.loads(content.rstrip().rpartition(b"data: ")[2])
    assert last["type"] == ("response.completed" if script is None else "response.failed")
    response_id = last["response"]["id"]
    for method, path in (("GET", ""), ("GET", "/input_items"), ("DELETE", ""), ("POST", "/cancel")):
        response = await client.request(method, f"{PATH}/{response_id}{path}")
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "invalid_request_error"
    body = {"model": MODEL, "input": "a", "previous_response_id": response_id}
    assert_not_found(await client.post(PATH, json=body), response_id)


async def test_input_items_are_those_of_the_whole_chain(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    first = await first_turn(client, tokenizer)
    tokenizer.script = DONE
    own = [RESULT | {"id": "mine_1"}, {"role": "user", "content": "Well?", "id": "mine_2"}]
    second = await create(client, input=own, previous_response_id=first["id"])
    path = f"{PATH}/{second['id']}/input_items"
    listed = (await client.get(path, params={"order": "asc"})).json()
    items = listed["data"]
    assert [item["type"] for item in items] == [
        *("message", "reasoning", "message", "function_call"),
        *("function_call_output", "message"),
    ]
    assert items[0]["content"] == [{"type": "input_text", "text": "What is here?"}]
    assert items[1:4] == first["output"]
    assert items[3]["arguments"] == ARGUMENTS
    assert items[4]["output"] == RESULT["output"]
    assert (listed["object"], listed["has_more"]) == ("list", False)
    assert (listed["first_id"], listed["last_id"]) == (items[0]["id"], "mine_2")
    # The newest first, page by page.
    newest: list[Any] = []
    after: dict[str, str] = {}
    while True:
        page = (await client.get(path, params={"limit": "4", **after})).json()
        newest += page["data"]
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert newest == items[::-1]
    assert (await client.get(path, params={"after": items[0]["id"]})).json() == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }
    for bad in ({"limit": "0"}, {"limit": "101"}, {"limit": "x"}, {"order": "up"}, {"after": "nobody"}):
        response = await client.get(path, params=bad)
        assert (response.status_code, response.json()["error"]["param"]) == (400, next(iter(bad)))


async def test_the_official_client_reads_stored_responses(url: str, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.script = CALLS
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as official:
        created = await official.responses.create(model=MODEL, input="a", tools=TOOLS)  # pyright: ignore
        assert await official.responses.retrieve(created.id) == created
        items = [item async for item in official.responses.input_items.list(created.id, limit=1)]
        assert [item.type for item in items] == ["message"]
        counted = await official.responses.input_tokens.count(input="a")
        assert counted.input_tokens == 135
        compacted = await official.responses.compact(model=MODEL, previous_response_id=created.id)
        assert [item.type for item in compacted.output] == ["message", "compaction"]
        await official.responses.delete(created.id)
        with pytest.raises(openai.NotFoundError):
            await official.responses.retrieve(created.id)


async def test_a_completed_response_cannot_be_cancelled(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    first = await first_turn(client, tokenizer)
    response = await client.post(f"{PATH}/{first['id']}/cancel")
    assert (response.status_code, response.json()["error"]["message"]) == (
        400,
        "Cannot cancel a completed response.",
    )


async def test_a_response_in_the_making_is_cancelled_by_its_id(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    tokenizer.script = [*CALLS[:3], text("Hel"), asyncio.Event()]
    content, cancelled = b"", None
    async with client.stream("POST", PATH, json={"model": MODEL, "input": "a", "stream": True}) as response:
        response_id = ""
        async for chunk in response.aiter_bytes():
            content += chunk
            if not response_id and b"output_text.delta" in content:
                response_id = orjson.loads(content.split(b"data: ")[1].split(b"\n\n")[0])["response"]["id"]
                cancelled = (await client.post(f"{PATH}/{response_id}/cancel")).json()
    async with asyncio.timeout(10):
        await tokenizer.cancelled.wait()
    last = orjson.loads(content.rstrip().rpartition(b"data: ")[2])
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
    # The same to whoever cancelled it, to whoever listened, and to whoever looks later.
    assert cancelled == last["response"]
    assert (await client.get(f"{PATH}/{response_id}")).json() == last["response"]
    assert [item["type"] for item in last["response"]["output"]] == ["reasoning"]
    assert (await client.post(f"{PATH}/{response_id}/cancel")).status_code == 400


async def test_references_stand_for_the_items_they_name(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    first = await first_turn(client, tokenizer)
    tokenizer.script = DONE
    references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    # As clients do that keep ids only.
    second = await create(client, input=[{"role": "user", "content": "What is here?"}, *references, RESULT])
    assert conversation(tokenizer) == [*FIRST_TURN, SECOND_TURN[0]]
    listed = (await client.get(f"{PATH}/{second['id']}/input_items", params={"order": "asc"})).json()["data"]
    assert listed[1:4] == first["output"]
    # What was referenced is part of the new turn, whatever becomes of the old one.
    await client.delete(f"{PATH}/{first['id']}")
    await create(client, input="And now?", previous_response_id=second["id"])
    assert conversation(tokenizer) == [*FIRST_TURN, *SECOND_TURN, ("user", ["And now?"], [], "")]
    third = [{"type": "item_reference", "id": second["output"][0]["id"]}, {"role": "user", "content": "Again."}]
    await create(client, input=third, previous_response_id=second["id"])
    assert conversation(tokenizer)[-2:] == [SECOND_TURN[1], ("user", ["Again."], [], "")]


async def test_a_reference_to_nothing_is_an_error(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    first = await first_turn(client, tokenizer)
    body = {"model": MODEL, "input": [{"type": "item_reference", "id": "msg_nobody"}]}
    for changes in ({}, {"previous_response_id": first["id"]}):
        response = await client.post(PATH, json=body | changes)
        assert (response.status_code, response.json()["error"]["message"]) == (
            404,
            "Item with id 'msg_nobody' not found.",
        )


async def test_input_tokens_are_those_of_the_prompt_that_would_be_asked(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer
) -> None:
    first = await first_turn(client, tokenizer)
    body = {"model": MODEL, "input": [RESULT], "previous_response_id": first["id"], "tools": TOOLS}
    counted = await client.post(f"{PATH}/input_tokens", json=body)
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": 135}
    await create(client, **body)
    assert tokenizer.counted[-1].conversation == tokenizer.requests[-1].conversation
    nameless = await client.post(f"{PATH}/input_tokens", json={"input": "a"})
    assert (nameless.json()["input_tokens"], tokenizer.counted[-1].model) == (135, MODEL)
    tokenizer.error = refusal("UNIMPLEMENTED", "UNSUPPORTED", "not yet", metadata={"field": "conversation.messages"})
    refused = await client.post(f"{PATH}/input_tokens", json={"input": "a"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


async def test_a_compacted_conversation_goes_on(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    first = await first_turn(client, tokenizer)
    tokenizer.script = [admitted(), text("Files were"), text(" listed."), finished()]
    own = [RESULT, {"role": "user", "content": [{"type": "input_text", "text": "Now delete them."}]}]
    body = {"model": MODEL, "input": own, "previous_response_id": first["id"], "tools": TOOLS}
    response = await client.post(f"{PATH}/compact", json=body)
    compacted = response.json()
    assert response.status_code == 200
    asked = tokenizer.requests[-1]
    assert conversation(tokenizer)[:-1] == [*FIRST_TURN, SECOND_TURN[0], ("user", ["Now delete them."], [], "")]
    assert asked.routing.response_id == ""
    assert asked.conversation.tool_choice.mode == conv.TOOL_CHOICE_MODE_NONE
    assert (compacted["object"], compacted["usage"]["total_tokens"]) == ("response.compaction", 142)
    output = compacted["output"]
    assert [(item["type"], item.get("role")) for item in output] == [
        ("message", "user"),
        ("message", "user"),
        ("compaction", None),
    ]
    tokenizer.script = DONE
    goes_on = await create(client, input=[*output, {"role": "user", "content": "Go on."}])
    sent = conversation(tokenizer)
    assert [role for role, *_ in sent[:2]] == ["user", "user"]
    assert [parts for _, parts, *_ in sent[:2]] == [["What is here?"], ["Now delete them."]]
    assert "Files were listed." in "".join("".join(parts) for _, parts, *_ in sent[2:])
    assert sent[-1][1][-1] == "Go on."
    # Also where it is part of a chain.
    await create(client, input="More.", previous_response_id=goes_on["id"])
    assert conversation(tokenizer)[: len(sent)] == sent


async def test_a_failed_compaction_is_an_error(client: httpx.AsyncClient, tokenizer: ScriptedTokenizer) -> None:
    tokenizer.error = refusal("RESOURCE_EXHAUSTED", "BUSY", "Busy.", retry_after_s=3)
    response = await client.post(f"{PATH}/compact", json={"model": MODEL, "input": "a"})
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")


@pytest.mark.parametrize("said", [[], [text(" \n")], [reasoning("hm"), reasoning_finished(b"capsule")]])
async def test_a_compaction_without_a_summary_is_an_error(
    client: httpx.AsyncClient, tokenizer: ScriptedTokenizer, said: list[Any]
) -> None:
    tokenizer.script = [admitted(), *said, finished()]
    response = await client.post(f"{PATH}/compact", json={"model": MODEL, "input": "a"})
    assert response.status_code == 500
    assert response.json()["error"]["message"].startswith("The model gave no summary of the conversation")


async def test_a_response_that_cannot_be_stored_fails(tokenizer: ScriptedTokenizer, tmp_path: Path) -> None:
    async with kvstore_at(tmp_path / "kv") as records:
        pass
    async with (
        gateway_at(tokenizer.address, records=records) as url,
        httpx.AsyncClient(base_url=url, timeout=20) as client,
    ):
        body: dict[str, Any] = {"model": MODEL, "input": "a"}
        whole = await client.post(PATH, json=body)
        assert (whole.status_code, whole.headers["retry-after"]) == (503, "1")
        content = (await client.post(PATH, json=body | {"stream": True})).content
        last = orjson.loads(content.rstrip().rpartition(b"data: ")[2])
        assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "server_error")
        assert (await client.get(f"{PATH}/resp_1")).status_code == 503
        assert (await client.post(PATH, json=body | {"store": False})).status_code == 200


async def test_a_response_over_the_stores_limit_fails_with_the_reason(
    tokenizer: ScriptedTokenizer, records: str
) -> None:
    async with (
        gateway_at(tokenizer.address, records=records, max_body_bytes=40 * 2**20) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        body = {"model": MODEL, "input": "a" * 33 * 2**20, "stream": True}
        content = (await client.post(PATH, json=body)).content
    last = orjson.loads(content.rstrip().rpartition(b"data: ")[2])
    assert last["type"] == "response.failed"
    assert "too large to be stored" in last["response"]["error"]["message"]


async def test_a_chain_larger_than_one_answer_of_the_store_is_read(tokenizer: ScriptedTokenizer, records: str) -> None:
    async with gateway_at(tokenizer.address, records=records) as url, httpx.AsyncClient(base_url=url, timeout=60) as c:
        created: dict[str, Any] = {}
        previous: dict[str, Any] = {}
        for _ in range(3):
            created = await create(c, input="a" * 17 * 2**20, **previous)
            previous = {"previous_response_id": created["id"]}
        listed = (await c.get(f"{PATH}/{created['id']}/input_items", params={"limit": "1"})).json()
        assert listed["has_more"]
        response = await c.post(PATH, json={"model": MODEL, "input": "b", **previous})
        assert response.status_code == 200
    assert len(tokenizer.requests[-1].conversation.messages) == 7


@pytest.mark.parametrize("path", [PATH, "/v1/chat/completions"])
async def test_nobody_cancels_what_is_not_a_response_of_theirs(
    tokenizer: ScriptedTokenizer, tmp_path: Path, path: str
) -> None:
    keys_file = tmp_path / "keys.json"
    (alices, alice), (bobs, bob) = (draw_key(Caller(name, name, None), "", NOW) for name in ("alice", "bob"))
    write_keys(keys_file, [alices, bobs])
    waiting = asyncio.Event()
    tokenizer.script = [admitted(), text("Hel"), waiting, text("lo"), finished()]
    body = {"model": MODEL, "input": "a", "messages": [{"role": "user", "content": "a"}], "stream": True}
    async with (
        gateway_at(tokenizer.address, keys_file=keys_file) as url,
        httpx.AsyncClient(base_url=url, timeout=10, headers={"x-api-key": alice}) as client,
        client.stream("POST", path, json=body) as response,
    ):
        chunks = response.aiter_bytes()
        first = orjson.loads((await anext(chunks)).split(b"data: ")[1].split(b"\n\n")[0])
        answer_id = first["id"] if "id" in first else first["response"]["id"]
        # A chat's answer has another interface, also for its owner.
        key = bob if path == PATH else alice
        refused = await client.post(f"{PATH}/{answer_id}/cancel", headers={"x-api-key": key})
        assert refused.status_code == 404
        waiting.set()
        rest = b"".join([chunk async for chunk in chunks])
    assert b"lo" in rest
    assert tokenizer.completed.is_set()


async def test_no_key_finds_what_another_has_stored(tokenizer: ScriptedTokenizer, records: str, tmp_path: Path) -> None:
    keys_file = tmp_path / "keys.json"
    (alices, alice), (bobs, bob) = (draw_key(Caller(name, name, None), "", NOW) for name in ("alice", "bob"))
    write_keys(keys_file, [alices, bobs])
    async with (
        gateway_at(tokenizer.address, records=records, keys_file=keys_file) as url,
        httpx.AsyncClient(base_url=url, timeout=10, headers={"x-api-key": alice}) as client,
        httpx.AsyncClient(base_url=url, timeout=10, headers={"x-api-key": bob}) as other,
    ):
        first = await create(client, input="a")
        unknown = "resp_" + "0" * 32
        for method, path in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
            foreign, missing = [await other.request(method, f"{PATH}/{one}{path}") for one in (first["id"], unknown)]
            assert (foreign.status_code, missing.status_code) == (404, 404)
            assert (
                foreign.json()["error"]["message"].replace(first["id"], unknown) == missing.json()["error"]["message"]
            )
        body = {"model": MODEL, "input": "b", "previous_response_id": first["id"]}
        for endpoint in (PATH, f"{PATH}/input_tokens", f"{PATH}/compact"):
            assert_not_found(await other.post(endpoint, json=body), first["id"])
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        assert (await other.post(PATH, json={"model": MODEL, "input": [reference]})).status_code == 404
        assert len(tokenizer.requests) == 1
        assert (await client.get(f"{PATH}/{first['id']}")).json() == first
