"""After a turn that ends with calls the tokenizer tells the engine that served it what the client now waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from dialogue import Dialogue, byte_ids, tokenizer_at, user
from fencepost.engine.v1 import engine_pb2
from fencepost.tokenizer.v1 import conversation_pb2 as cpb
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from scripted_engine import RefusalError, ScriptedEngine, admitted, finished, sampled

from services.identity import tokenizer_fingerprint
from services.tokenizer.wait_classes import wait_class
from services.vocabulary import Vocabulary, load_vocabulary
from tests.unit.tokenizer.tiny_model import write_tiny_model

TOOLS = [
    cpb.Tool(name="read", parameters_json='{"type":"object"}'),
    cpb.Tool(name="read", namespace="mcp", parameters_json='{"type":"object"}'),
]


@dataclass
class ListeningEngine(ScriptedEngine):
    """Records hints, and does ``then`` with them: nothing, refuse, or never answer."""

    then: Exception | None = None
    hangs: bool = False
    hints: asyncio.Queue[engine_pb2.AnnotateRequest] = field(default_factory=asyncio.Queue)
    is_told: asyncio.Event = field(default_factory=asyncio.Event)
    deadline_of_hint_s: float = 0.0

    async def Annotate(self, request: engine_pb2.AnnotateRequest, context: Any) -> engine_pb2.AnnotateResponse:
        self.deadline_of_hint_s = context.time_remaining()
        self.hints.put_nowait(request)
        self.is_told.set()
        if self.then is not None:
            raise self.then
        if self.hangs:
            await asyncio.Event().wait()
        return engine_pb2.AnnotateResponse()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def vocabulary(model_dir: Path) -> Vocabulary:
    return load_vocabulary(model_dir)


@asynccontextmanager
async def listening(model_dir: Path, **settings: Any) -> AsyncGenerator[ListeningEngine]:
    engine = ListeningEngine(tokenizer_fingerprint(model_dir), context_tokens=100_000, **settings)
    async with engine.serving():
        yield engine


def call(name: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'


def dialogue() -> Dialogue:
    return Dialogue([user("hello")], tools=TOOLS, tenant="t", cache_scope="scope")


async def asked(model_dir: Path, engine: ListeningEngine, text: str, **settings: Any) -> pb.Finished:
    async with tokenizer_at(model_dir, engine.address, dialect="chatml_json", **settings) as stub:
        turn = await dialogue().ask(stub, engine, [*byte_ids(text, load_vocabulary(model_dir)), 2])
        if turn.finished.reason == pb.FINISH_REASON_CALLS:
            async with asyncio.timeout(5):
                await engine.is_told.wait()
        return turn.finished


async def test_each_tool_that_was_called_is_a_class_of_waits(model_dir: Path):
    async with listening(model_dir) as engine:
        end = await asked(model_dir, engine, "ok " + "\n".join(map(call, ("read", "mcp__read", "read"))))
        assert end.reason == pb.FINISH_REASON_CALLS
        hint = engine.hints.get_nowait()
        assert (hint.cache_scope, hint.conversation_key) == ("scope", engine.requests[-1].conversation_key)
        assert set(hint.wait_classes) == {wait_class(None, "read"), wait_class("mcp", "read")}
        assert len(hint.wait_classes) == 2
        assert not any("read" in name for name in hint.wait_classes)
        assert 0 < engine.deadline_of_hint_s < 3
        assert engine.hints.empty()


async def test_a_turn_without_calls_is_not_annotated(model_dir: Path):
    async with listening(model_dir) as engine:
        end = await asked(model_dir, engine, "hello")
        assert end.reason == pb.FINISH_REASON_STOP
        assert engine.hints.empty()


@pytest.mark.parametrize("trouble", [{"then": RefusalError("no")}, {"hangs": True}], ids=["refuses", "hangs"])
async def test_an_answer_is_whole_whatever_becomes_of_the_hint(model_dir: Path, trouble: dict[str, Any]):
    async with listening(model_dir, **trouble) as engine:
        end = await asked(model_dir, engine, call("read"))
        assert end.reason == pb.FINISH_REASON_CALLS
        assert engine.hints.qsize() == 1


async def test_the_engine_that_served_the_turn_is_told(model_dir: Path, vocabulary: Vocabulary):
    script = [admitted(), sampled(*byte_ids(call("read"), vocabulary), 2), finished()]
    async with (
        listening(model_dir, script=script) as one,
        listening(model_dir, script=script) as two,
        tokenizer_at(model_dir, one.address, two.address, dialect="chatml_json") as stub,
    ):
        for number in range(8):
            routing = pb.Routing(tenant="t", conversation_key=f"k{number}")
            request = pb.GenerateRequest(model="m", conversation=dialogue().conversation, routing=routing)
            before = len(one.requests)
            async for _ in stub.Generate(request, timeout=20):
                pass
            served, spared = (one, two) if len(one.requests) > before else (two, one)
            async with asyncio.timeout(5):
                hint = await served.hints.get()
            assert (hint.cache_scope, hint.conversation_key) == ("t", f"k{number}")
            assert spared.hints.empty()
    assert one.requests
    assert two.requests
