"""``tool_choice`` and output formats in each protocol, from a client's body to what the engine gets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from dialogue import byte_ids
from fencepost.engine.v1 import engine_pb2, fence_pb2
from scripted_engine import ScriptedEngine, admitted, finished, sampled

from services import rpc
from services.identity import tokenizer_fingerprint
from services.tokenizer.assembly import build
from services.tokenizer.config import TokenizerSettings
from services.vocabulary import load_vocabulary
from tests.contract.gateway_server import gateway_at

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CHAT = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("f", "g")]
RESPONSES = [{"type": "function", "name": name, "parameters": SCHEMA} for name in ("f", "g")]
MESSAGES = [{"name": name, "input_schema": SCHEMA} for name in ("f", "g")]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi."}], "tools": CHAT},
    "/v1/responses": {"input": "Hi.", "tools": RESPONSES},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi."}], "tools": MESSAGES, "max_tokens": 9},
}
CHOICES: list[tuple[str, Any, list[str], bool]] = [
    ("/v1/chat/completions", "auto", ["f", "g"], True),
    ("/v1/chat/completions", "required", ["f", "g"], False),
    ("/v1/chat/completions", {"type": "function", "function": {"name": "g"}}, ["g"], False),
    (
        "/v1/chat/completions",
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": CHAT[:1]}},
        ["f"],
        True,
    ),
    ("/v1/responses", "required", ["f", "g"], False),
    ("/v1/responses", {"type": "function", "name": "g"}, ["g"], False),
    ("/v1/responses", {"type": "allowed_tools", "mode": "required", "tools": RESPONSES[1:]}, ["g"], False),
    ("/v1/messages", {"type": "auto"}, ["f", "g"], True),
    ("/v1/messages", {"type": "any"}, ["f", "g"], False),
    ("/v1/messages", {"type": "tool", "name": "g"}, ["g"], False),
]
FORMATS: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    ),
    ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}}),
    ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
]


@dataclass(frozen=True)
class Stack:
    """Gateways with and without fences behind them, and the engine that both ask."""

    fenced: httpx.AsyncClient
    unfenced: httpx.AsyncClient
    engine: ScriptedEngine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(smollm2_dir: Path) -> AsyncIterator[Stack]:
    async with AsyncExitStack() as open_stack:
        scripted = ScriptedEngine(tokenizer_fingerprint(smollm2_dir), context_tokens=100_000)
        engine = await open_stack.enter_async_context(scripted.serving())
        engine.script = [admitted(), finished()]
        clients: list[httpx.AsyncClient] = []
        for fences in (True, False):
            server = rpc.new_server()
            settings = TokenizerSettings(model=smollm2_dir, model_name="m", engines=(engine.address,), fences=fences)
            await open_stack.enter_async_context(build(settings, server))
            port = rpc.bind(server, "127.0.0.1:0")
            await server.start()
            open_stack.push_async_callback(server.stop, None)
            url = await open_stack.enter_async_context(gateway_at(f"127.0.0.1:{port}"))
            clients.append(await open_stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60)))
        yield Stack(clients[0], clients[1], engine)


@pytest.mark.parametrize(("path", "choice", "names", "is_free"), CHOICES)
async def test_a_choice_becomes_a_program_of_its_tools(
    stack: Stack, path: str, choice: Any, names: list[str], is_free: bool
) -> None:
    answer = await stack.fenced.post(path, json={"model": "m", **ASKED[path], "tool_choice": choice})
    assert answer.status_code == 200, answer.text
    fence = stack.engine.requests[-1].fence
    keys = {branch.key for node in fence.nodes for branch in node.choose.branches}
    assert keys == {f'"{name}", "arguments": ' for name in names}
    assert fence.HasField("trigger") is is_free


@pytest.mark.parametrize(("path", "choice", "names", "is_free"), CHOICES)
async def test_without_fences_only_what_needs_none_is_served(
    stack: Stack, path: str, choice: Any, names: list[str], is_free: bool
) -> None:
    answer = await stack.unfenced.post(path, json={"model": "m", **ASKED[path], "tool_choice": choice})
    if is_free and len(names) == len(CHAT):
        assert answer.status_code == 200
        assert not stack.engine.requests[-1].HasField("fence")
    else:
        assert answer.status_code == 400
        assert "tool_choice" in answer.text


@pytest.mark.parametrize(("path", "fields"), FORMATS)
async def test_an_output_format_becomes_one_value(stack: Stack, path: str, fields: dict[str, Any]) -> None:
    body = {"model": "m", **ASKED[path], **fields}
    del body["tools"]
    answer = await stack.fenced.post(path, json=body)
    assert answer.status_code == 200, answer.text
    (node,) = stack.engine.requests[-1].fence.nodes
    assert '"required"' in node.value.json_schema
    assert "warnings" not in answer.text


async def answered(
    stack: Stack, path: str, body: dict[str, Any], ids: list[int], relaxed: fence_pb2.Relaxed
) -> httpx.Response:
    """The engine writes ``ids`` and says what it did not enforce."""
    ending = engine_pb2.Finished(reason=engine_pb2.FINISH_REASON_STOP, warnings=[relaxed])
    script = stack.engine.script
    try:
        stack.engine.script = [admitted(), sampled(*ids, 2), engine_pb2.GenerateResponse(finished=ending)]
        return await stack.fenced.post(path, json=body)
    finally:
        stack.engine.script = script


@pytest.mark.parametrize(("path", "fields"), FORMATS)
async def test_an_output_that_breaks_what_was_relaxed_is_told_to_the_client(
    stack: Stack, smollm2_dir: Path, path: str, fields: dict[str, Any]
) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    body = {
        "model": "m",
        **ASKED[path],
        **json.loads(json.dumps(fields).replace(json.dumps(SCHEMA), json.dumps(schema))),
    }
    del body["tools"]
    relaxed = fence_pb2.Relaxed(parameter_path="nodes[0]", keyword="uniqueItems")
    answer = await answered(stack, path, body, byte_ids("[1, 2, 1]", load_vocabulary(smollm2_dir)), relaxed)
    assert answer.json()["fencepost"]["warnings"] == [
        "not enforced: uniqueItems of output_format",
        "the answer is not valid: uniqueItems of output_format",
    ]
    assert "[1, 2, 1]" in answer.text


@pytest.mark.parametrize("path", ASKED)
async def test_arguments_that_break_what_was_relaxed_are_told_to_the_client(
    stack: Stack, smollm2_dir: Path, path: str
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    body = json.loads(json.dumps({"model": "m", **ASKED[path]}).replace(json.dumps(SCHEMA), json.dumps(schema)))
    await stack.fenced.post(path, json=body)
    values = [number for number, node in enumerate(stack.engine.requests[-1].fence.nodes) if node.HasField("value")]
    relaxed = fence_pb2.Relaxed(parameter_path=f"nodes[{values[0]}]", keyword="uniqueItems")
    call = '<tool_call>\n{"name": "f", "arguments": {"a": [1, 1]}}\n</tool_call>'
    answer = await answered(stack, path, body, byte_ids(call, load_vocabulary(smollm2_dir)), relaxed)
    assert answer.json()["fencepost"]["warnings"] == [
        "not enforced: uniqueItems of tools.f.a",
        "call 0 is not valid: uniqueItems of tools.f.a",
    ]
