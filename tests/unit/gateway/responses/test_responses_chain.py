"""Chains of stored responses, on records of this process."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from services.gateway.errors import NotFoundError
from services.gateway.records import MemoryRecords
from services.gateway.responses.chain import Chains, PreviousResponseNotFoundError

TTL_S = 1000.0


def said(item_id: str, text: str, role: str = "user") -> dict[str, Any]:
    return {"id": item_id, "type": "message", "role": role, "content": text}


def response(number: int) -> dict[str, Any]:
    return {"id": f"resp_{number}", "object": "response", "output": [said(f"msg_{number}", "a", "assistant")]}


async def put(chains: Chains, number: int, tenant: str = "t") -> None:
    """The response of this number, which continues all lower ones."""
    ancestors = [f"resp_{earlier}" for earlier in range(number)]
    await chains.put(tenant, response(number), [said(f"in_{number}", "q")], ancestors)


async def ids_of(chains: Chains, response_id: str) -> list[Any]:
    return [item.values["id"] for item in (await chains.follow("t", response_id)).items]


async def test_a_chain_is_the_input_and_the_output_of_every_turn_in_order() -> None:
    chains = Chains((MemoryRecords(2**20),), TTL_S)
    for number in range(3):
        await put(chains, number)
    assert await ids_of(chains, "resp_2") == ["in_0", "msg_0", "in_1", "msg_1", "in_2", "msg_2"]
    assert (await chains.follow("t", "resp_1")).ids == ("resp_0", "resp_1")
    assert orjson.loads((await chains.get("t", "resp_1")).response_json) == response(1)


async def test_nothing_of_another_tenant_is_found() -> None:
    chains = Chains((MemoryRecords(2**20),), TTL_S)
    await put(chains, 0)
    with pytest.raises(NotFoundError):
        await chains.get("other", "resp_0")
    with pytest.raises(PreviousResponseNotFoundError):
        await chains.follow("other", "resp_0")
    assert await chains.items_named("other", ["msg_0"]) == {}
    assert not await chains.delete("other", "resp_0")
    assert list(await chains.items_named("t", ["msg_0", "nothing"])) == ["msg_0"]


async def test_a_chain_that_has_lost_a_part_is_not_found() -> None:
    chains = Chains((MemoryRecords(2**20),), TTL_S)
    for number in range(3):
        await put(chains, number)
    assert await chains.delete("t", "resp_1")
    assert not await chains.delete("t", "resp_1")
    assert await chains.items_named("t", ["msg_1"]) == {}
    with pytest.raises(PreviousResponseNotFoundError) as raised:
        await chains.follow("t", "resp_2")
    assert raised.value.openai_error() == {
        "message": "Previous response with id 'resp_2' not found.",
        "type": "invalid_request_error",
        "param": "previous_response_id",
        "code": "previous_response_not_found",
    }
    assert await ids_of(chains, "resp_0") == ["in_0", "msg_0"]


async def test_an_expired_response_is_not_found() -> None:
    chains = Chains((MemoryRecords(2**20),), 0)
    await put(chains, 0)
    with pytest.raises(PreviousResponseNotFoundError):
        await chains.follow("t", "resp_0")


@pytest.mark.parametrize("response_id", ["", "x" * 1_000_000, "\0", "resp_0\n", "é" * 200])
async def test_no_id_is_too_strange_to_be_unknown(response_id: str) -> None:
    chains = Chains((MemoryRecords(2**20),), TTL_S)
    await put(chains, 0)
    with pytest.raises(PreviousResponseNotFoundError) as raised:
        await chains.follow("t", response_id)
    assert len(raised.value.message) < 300
    assert await chains.items_named("t", [response_id]) == {}
    assert not await chains.delete("t", response_id)


async def test_following_a_chain_past_half_of_its_time_renews_all_of_it_where_it_is() -> None:
    local, shared = MemoryRecords(2**20), MemoryRecords(2**20)
    for number in range(2):
        await put(Chains((shared,), TTL_S / 4), number)
    await put(Chains((shared,), TTL_S * 0.75), 9)
    chains = Chains((local, shared), TTL_S)
    await chains.follow("t", "resp_1")
    await chains.get("t", "resp_9")
    keys = ["response:resp_0", "response:resp_1", "response:resp_9"]
    left = [record.remaining_s for record in (await shared.get("t", keys)).values()]
    assert [seconds > TTL_S * 0.9 for seconds in left] == [True, True, False]
    assert await local.get("t", keys) == {}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[]",
        b"1",
        b"{}",
        b'{"v": 2, "response": {"id": "resp_0", "output": []}, "input": [], "ancestors": []}',
        b'{"v": 1, "input": [], "ancestors": []}',
        b'{"v": 1, "response": [], "input": [], "ancestors": []}',
        b'{"v": 1, "response": {"id": "resp_0", "output": [1]}, "input": [], "ancestors": []}',
        b'{"v": 1, "response": {"id": "resp_0", "output": []}, "input": {}, "ancestors": []}',
        b'{"v": 1, "response": {"id": "resp_0", "output": []}, "input": []}',
        b'{"v": 1, "response": {"id": "resp_0", "output": []}, "input": [], "ancestors": 1}',
        b'{"v": 1, "response": {"id": "resp_0", "output": []}, "input": [], "ancestors": "ab"}',
    ],
)
async def test_a_record_that_cannot_be_read_is_not_found(value: bytes) -> None:
    records = MemoryRecords(2**20)
    chains = Chains((records,), TTL_S)
    await put(chains, 1)
    await records.put("t", "response:resp_0", value, TTL_S)
    with pytest.raises(NotFoundError):
        await chains.get("t", "resp_0")
    for response_id in ("resp_0", "resp_1"):
        with pytest.raises(PreviousResponseNotFoundError):
            await chains.follow("t", response_id)
    assert not await chains.delete("t", "resp_0")


async def test_references_that_lead_nowhere_find_nothing() -> None:
    records = MemoryRecords(2**20)
    chains = Chains((records,), TTL_S)
    await put(chains, 0)
    await records.put("t", "item:msg_7", b"\xff", TTL_S)
    await records.put("t", "item:msg_8", b"resp_0", TTL_S)
    assert await chains.items_named("t", ["msg_7", "msg_8"]) == {}


async def test_what_does_not_fit_takes_the_oldest_with_it() -> None:
    chains = Chains((MemoryRecords(20_000),), TTL_S)
    for number in range(200):
        await chains.put("t", response(number), [said("in", "q" * 200)], [])
    with pytest.raises(NotFoundError):
        await chains.get("t", "resp_0")
    assert (await chains.get("t", "resp_199")).ancestors == ()
