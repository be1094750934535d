"""ExplainPrefix and miss reasons: where a prompt left the nearest earlier one, and which part is to blame."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from fencepost.tokenizer.v1 import conversation_pb2 as conv
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from fencepost.tokenizer.v1 import tokenizer_pb2_grpc

from services import rpc
from services.tokenizer.assembly import build
from services.tokenizer.config import TokenizerSettings
from tests.contract.engine_client import run_engine, write_tiny_engine_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine_model(tmp_path_factory.mktemp("model") / "tiny", vocab_size=265)


@pytest.fixture
async def tokenizer(model: Path) -> AsyncGenerator[Any]:
    async with run_engine(model) as engine:
        server = rpc.new_server()
        settings = TokenizerSettings(model=model, model_name="tiny", engines=(engine.address,))
        async with build(settings, server):
            port = rpc.bind(server, "127.0.0.1:0")
            await server.start()
            async with rpc.open_channel(f"127.0.0.1:{port}") as channel:
                yield tokenizer_pb2_grpc.TokenizerServiceStub(channel)
            await server.stop(1)


def conversation(*texts: str, tools: tuple[str, ...] = ()) -> conv.Conversation:
    """Alternating user and assistant messages behind a system message."""
    roles = [conv.ROLE_SYSTEM, *[conv.ROLE_USER, conv.ROLE_ASSISTANT] * len(texts)]
    messages = [
        conv.Message(role=role, parts=[conv.Part(text=conv.TextPart(text=text))])
        for role, text in zip(roles, texts, strict=False)
    ]
    kinds = [conv.Tool(name=name, kind=conv.CALL_KIND_FUNCTION, parameters_json="{}") for name in tools]
    return conv.Conversation(messages=messages, tools=kinds)


async def generate(stub: Any, source: conv.Conversation, response_id: str, tenant: str = "t") -> pb.Usage:
    request = pb.GenerateRequest(
        model="tiny",
        conversation=source,
        sampling=pb.Sampling(temperature=0, max_tokens=4),
        routing=pb.Routing(tenant=tenant, response_id=response_id),
    )
    usage = pb.Usage()
    async for event in stub.Generate(request):
        if event.HasField("finished"):
            usage = event.finished.usage
    return usage


async def explain(stub: Any, response_id: str, tenant: str = "t") -> pb.ExplainPrefixResponse:
    request = pb.ExplainPrefixRequest(model="tiny", routing=pb.Routing(tenant=tenant), response_id=response_id)
    return await stub.ExplainPrefix(request)


async def test_the_first_differing_token_its_texts_and_its_segment(tokenizer: Any):
    await generate(tokenizer, conversation("be brief", "hello world", "yes", "and now?"), "one")
    usage = await generate(tokenizer, conversation("be brief", "hello there", "yes", "and now?"), "two")
    found = await explain(tokenizer, "two")
    assert found.segment.kind == pb.SEGMENT_KIND_MESSAGE
    assert found.segment.index == 1
    assert found.left.before == found.right.before
    assert found.left.before.endswith("hello ") or found.left.before.endswith("hello")
    assert found.left.after.strip().startswith("there")
    assert found.right.after.strip().startswith("world")
    assert usage.cached.miss.reason == "forked"
    assert usage.cached.miss.at_token == found.at_token
    assert usage.cached.miss.segment == "message 1"
    assert found.cached == usage.cached


async def test_a_changed_tool_is_blamed_on_the_tools(tokenizer: Any):
    await generate(tokenizer, conversation("be brief", "hello", tools=("alpha",)), "one")
    usage = await generate(tokenizer, conversation("be brief", "hello", tools=("beta",)), "two")
    assert usage.cached.miss.segment == "tools"
    assert (await explain(tokenizer, "two")).segment.kind == pb.SEGMENT_KIND_TOOLS


async def test_a_continuation_has_no_fork(tokenizer: Any):
    await generate(tokenizer, conversation("be brief", "hello"), "one")
    await generate(tokenizer, conversation("be brief", "hello", "x" * 3, "more"), "two")
    found = await explain(tokenizer, "one")
    assert not found.HasField("at_token")
    assert found.cached.miss.reason == "cold"


async def test_two_conversations_are_compared_without_asking_an_engine(tokenizer: Any):
    pair = pb.ConversationPair(left=conversation("a", "same", "old", "x"), right=conversation("a", "same", "new", "x"))
    request = pb.ExplainPrefixRequest(model="tiny", routing=pb.Routing(tenant="t"), pair=pair)
    found = await tokenizer.ExplainPrefix(request)
    assert (found.segment.kind, found.segment.index) == (pb.SEGMENT_KIND_MESSAGE, 2)
    assert found.left.after.startswith("old")
    assert found.right.after.startswith("new")


async def test_no_tenant_sees_another_ones_prompts(tokenizer: Any):
    await generate(tokenizer, conversation("be brief", "secret"), "one", tenant="t")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await explain(tokenizer, "one", tenant="other")
    assert rpc.failure_of(caught.value).reason == "RESPONSE_NOT_FOUND"
    await generate(tokenizer, conversation("be brief", "secrets"), "two", tenant="other")
    assert not (await explain(tokenizer, "two", tenant="other")).right.before


async def test_a_near_miss_is_logged_with_its_segment(tokenizer: Any, caplog: pytest.LogCaptureFixture):
    long = "word " * 450
    await generate(tokenizer, conversation("be brief", long, "an answer", "thanks"), "one")
    with caplog.at_level(logging.INFO, "services.tokenizer.answering"):
        await generate(tokenizer, conversation("be brief", long, "Another", "thanks"), "two")
    messages = [record.getMessage() for record in caplog.records]
    assert any("near miss" in text and text.endswith("they part in message 2") for text in messages)
