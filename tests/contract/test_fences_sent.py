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
from prometheus_client import REGISTRY
from scripted_engine import ScriptedEngine, admitted, finished, sampled

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


async def test_a_call_is_held_against_its_schema_only_where_something_was_relaxed(
    stub: Any, engine: ScriptedEngine, smollm2_dir: Path
) -> None:
    vocabulary = load_vocabulary(smollm2_dir)
    tools = [
        cpb.Tool(name="tag", parameters_json='{"properties": {"tags": {"type": "array", "uniqueItems": true}}}'),
        cpb.Tool(name="tagger", parameters_json='{"properties": {"tags": {"type": "array", "uniqueItems": true}}}'),
    ]
    await finished_of(stub, asking(*tools))
    nodes = engine.requests[-1].fence.nodes
    (place,) = [f"nodes[{number}]" for number, node in enumerate(nodes) if node.HasField("value")][:1]
    calls = [f'{{"name": "{name}", "arguments": {{"tags": ["secret", "secret"]}}}}' for name in ("tag", "tagger")]
    ids = byte_ids("".join(f"<tool_call>\n{call}\n</tool_call>\n" for call in calls).strip(), vocabulary)
    relaxed = [fence_pb2.Relaxed(parameter_path=place, keyword="uniqueItems")]
    before = broken("uniqueItems"), relaxed_count("uniqueItems")
    for warnings, found in (
        ([], []),
        (
            relaxed,
            ["not enforced: uniqueItems of tools.tag.tags", "call 0 is not valid: uniqueItems of tools.tag.tags"],
        ),
    ):
        ending = engine_pb2.Finished(reason=engine_pb2.FINISH_REASON_STOP, warnings=warnings)
        engine.script = [admitted(), sampled(*ids, 2), engine_pb2.GenerateResponse(finished=ending)]
        events = [event async for event in stub.Generate(asking(*tools), timeout=20)]
        # The calls are what the model wrote, whatever is said of them.
        delivered = [event.call_finished.arguments for event in events if event.HasField("call_finished")]
        assert delivered == ['{"tags": ["secret", "secret"]}'] * 2
        assert list(events[-1].finished.warnings) == found
    assert (broken("uniqueItems"), relaxed_count("uniqueItems")) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize(
    ("text", "reason", "found"),
    [
        ('{"at": "soon"}', engine_pb2.FINISH_REASON_STOP, ["the answer is not valid: format of output_format.at"]),
        ('{"at": "2024-02-29"}', engine_pb2.FINISH_REASON_STOP, []),
        ('{"at": "2024-', engine_pb2.FINISH_REASON_LENGTH, []),
    ],
)
async def test_a_whole_structured_output_is_held_against_its_schema(
    stub: Any,
    engine: ScriptedEngine,
    smollm2_dir: Path,
    text: str,
    reason: engine_pb2.FinishReason.ValueType,
    found: list[str],
) -> None:
    schema = '{"type": "object", "properties": {"at": {"type": "string", "format": "date"}}}'
    ids = byte_ids(text, load_vocabulary(smollm2_dir))
    relaxed = [fence_pb2.Relaxed(parameter_path="nodes[0]/properties/at", keyword="format")]
    ending = engine_pb2.Finished(reason=reason, warnings=relaxed)
    engine.script = [admitted(), sampled(*ids), engine_pb2.GenerateResponse(finished=ending)]
    output_format = cpb.OutputFormat(json_schema=cpb.JsonSchema(schema_json=schema))
    finished = await finished_of(stub, asking(output_format=output_format))
    assert list(finished.warnings) == ["not enforced: format of output_format/properties/at", *found]


async def test_a_call_that_the_fence_did_not_see_is_checked(engine: ScriptedEngine, smollm2_dir: Path) -> None:
    vocabulary = load_vocabulary(smollm2_dir)
    tool = cpb.Tool(name="f", parameters_json='{"properties": {"n": {"type": "integer", "maximum": 3}}}')
    call = "<function=f>\n<parameter=n>\n7\n</parameter>\n</function>\n</tool_call>"
    async with tokenizer_at(smollm2_dir, engine.address, fences=True, dialect="qwen_xml") as stub:
        for written, found in (
            (f"Look.\n\n<tool_call>\n{call}", []),
            (f"Look.\n\n{call}", ["call 0 is not valid: maximum of tools.f.n"]),
        ):
            engine.script = [admitted(), sampled(*byte_ids(written, vocabulary), 2), finished()]
            assert list((await finished_of(stub, asking(tool))).warnings) == found


async def test_what_a_program_leaves_out_by_itself_is_checked_too(
    stub: Any, engine: ScriptedEngine, smollm2_dir: Path
) -> None:
    tool = cpb.Tool(name="f", parameters_json='{"properties": {"a": {}, "b": {}}, "minProperties": 1}')
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    ids = byte_ids(call, load_vocabulary(smollm2_dir))
    engine.script = [admitted(), sampled(*ids, 2), finished()]
    assert list((await finished_of(stub, asking(tool))).warnings) == [
        "not enforced: minProperties of tools.f",
        "call 0 is not valid: minProperties of tools.f",
    ]


async def test_a_schema_that_cannot_be_checked_is_named(stub: Any, engine: ScriptedEngine, smollm2_dir: Path) -> None:
    tool = cpb.Tool(name="f", parameters_json='{"properties": {"a": {}}, "minProperties": "one"}')
    ids = byte_ids('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', load_vocabulary(smollm2_dir))
    engine.script = [admitted(), sampled(*ids, 2), finished()]
    warnings = (await finished_of(stub, asking(tool))).warnings
    assert warnings[-1] == 'call 0 is not checked against the schema of tools.f: "one" is not of type "integer"'


def broken(keyword: str) -> float:
    return REGISTRY.get_sample_value("fencepost_tokenizer_broken_keywords_total", {"keyword": keyword}) or 0


def relaxed_count(keyword: str) -> float:
    return REGISTRY.get_sample_value("fencepost_tokenizer_relaxed_keywords_total", {"keyword": keyword}) or 0


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
