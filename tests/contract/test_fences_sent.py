"""With fences on, the engine gets a program with each prompt that asks for something; off, such is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from dialogue import Dialogue, byte_ids, tokenizer_at, user
from fencepost.engine.v1 import engine_pb2, fence_pb2
from fencepost.tokenizer.v1 import conversation_pb2 as cpb
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from scripted_engine import ScriptedEngine, admitted, finished

from services.identity import tokenizer_fingerprint
from services.vocabulary import load_vocabulary

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = '{"type": "object", "properties": {"path": {"type": "string", "format": "uri"}}, "required": ["path"]}'
TOOLS = [cpb.Tool(name="read", parameters_json=SCHEMA), cpb.Tool(name="list")]
ADVISED = "the output format is advised to the model, not enforced"
REQUIRED = cpb.TOOL_CHOICE_MODE_REQUIRED


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(smollm2_dir: Path) -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(tokenizer_fingerprint(smollm2_dir), context_tokens=100_000).serving() as scripted:
        yield scripted


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stub(smollm2_dir: Path, engine: ScriptedEngine) -> AsyncIterator[Any]:
    async with tokenizer_at(smollm2_dir, engine.address, fences=True) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unfenced(smollm2_dir: Path, engine: ScriptedEngine) -> AsyncIterator[Any]:
    async with tokenizer_at(smollm2_dir, engine.address, fences=False) as found:
        yield found


def asking(*tools: cpb.Tool, **fields: Any) -> pb.GenerateRequest:
    conversation = cpb.Conversation(messages=[user("Hi.")], tools=tools, **fields)
    return pb.GenerateRequest(model="m", conversation=conversation, routing=pb.Routing(tenant="t"))


async def finished_of(stub: Any, request: pb.GenerateRequest) -> pb.Finished:
    events = [event async for event in stub.Generate(request, timeout=20)]
    return events[-1].finished


async def test_the_program_goes_with_the_prompt(stub: Any, engine: ScriptedEngine, smollm2_dir: Path) -> None:
    dialogue = Dialogue([user("Hi.")], TOOLS, tool_mode=REQUIRED)
    call = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
    turn = await dialogue.ask(stub, engine, [*byte_ids(call, load_vocabulary(smollm2_dir)), 2])
    fence = engine.requests[-1].fence
    assert turn.finished.reason == pb.FINISH_REASON_CALLS
    assert not fence.HasField("trigger")
    keys = [branch.key for node in fence.nodes for branch in node.choose.branches]
    assert keys == ['"read", "arguments": ', '"list", "arguments": ']
    encoded = await stub.Encode(
        pb.EncodeRequest(model="m", conversation=dialogue.conversation, routing=dialogue.routing)
    )
    assert fence_pb2.Program.FromString(encoded.fence_program) == fence


async def test_without_tools_and_formats_nothing_is_sent(stub: Any, unfenced: Any, engine: ScriptedEngine) -> None:
    engine.script = [admitted(), finished()]
    assert list((await finished_of(stub, asking())).warnings) == []
    assert not engine.requests[-1].HasField("fence")
    assert not engine.requests[-1].HasField("reasoning")
    await finished_of(unfenced, asking(*TOOLS))
    assert not engine.requests[-1].HasField("fence")


async def test_only_the_tools_that_are_allowed_are_in_the_program(stub: Any, engine: ScriptedEngine) -> None:
    engine.script = [admitted(), finished()]
    for mode in (REQUIRED, cpb.TOOL_CHOICE_MODE_AUTO):
        choice = cpb.ToolChoice(mode=mode, allowed_names=["list"])
        await finished_of(stub, asking(*TOOLS, tool_choice=choice, parallel_calls=False))
        fence = engine.requests[-1].fence
        assert [branch.key for node in fence.nodes for branch in node.choose.branches] == ['"list", "arguments": ']
        assert fence.HasField("trigger") is (mode is not REQUIRED)


async def test_an_enforced_format_is_not_warned_of(stub: Any, unfenced: Any, engine: ScriptedEngine) -> None:
    engine.script = [admitted(), finished()]
    output_format = cpb.OutputFormat(json_schema=cpb.JsonSchema(schema_json=SCHEMA))
    assert list((await finished_of(stub, asking(output_format=output_format))).warnings) == []
    assert [node.value.json_schema for node in engine.requests[-1].fence.nodes] == [SCHEMA]
    assert list((await finished_of(unfenced, asking(output_format=output_format))).warnings) == [ADVISED]
    # Beside tools the model may choose between calls and text, and then the text is free.
    assert ADVISED in (await finished_of(stub, asking(*TOOLS, output_format=output_format))).warnings


async def test_what_the_engine_relaxes_is_in_the_answers_warnings(stub: Any, engine: ScriptedEngine) -> None:
    engine.script = [admitted(), finished()]
    await finished_of(stub, asking(*TOOLS))
    values = [number for number, node in enumerate(engine.requests[-1].fence.nodes) if node.HasField("value")]
    relaxed = [fence_pb2.Relaxed(parameter_path=f"nodes[{values[0]}]", keyword="format")] * 2
    ending = engine_pb2.Finished(reason=engine_pb2.FINISH_REASON_STOP, warnings=relaxed)
    engine.script = [admitted(), engine_pb2.GenerateResponse(finished=ending)]
    assert list((await finished_of(stub, asking(*TOOLS))).warnings) == ["not enforced: format of tools.read.path"]


@pytest.mark.parametrize(
    "choice",
    [
        cpb.ToolChoice(mode=REQUIRED),
        cpb.ToolChoice(mode=REQUIRED, allowed_names=["list"]),
        cpb.ToolChoice(allowed_names=["list"]),
    ],
)
async def test_a_choice_that_only_a_fence_can_keep_is_refused_without(unfenced: Any, choice: cpb.ToolChoice) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="not supported yet") as caught:
        await finished_of(unfenced, asking(*TOOLS, tool_choice=choice))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
