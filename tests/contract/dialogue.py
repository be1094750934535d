"""A conversation with a tokenizer whose engine plays a script, and a client that echoes answers in its own style."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from fencepost.tokenizer.v1 import conversation_pb2 as cpb
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from fencepost.tokenizer.v1 import tokenizer_pb2_grpc
from prometheus_client import REGISTRY
from scripted_engine import ScriptedEngine, admitted, finished, sampled

from services import rpc
from services.kvstore import server as kvstore
from services.kvstore.config import Config
from services.tokenizer.assembly import build
from services.tokenizer.config import TokenizerSettings
from services.vocabulary import Vocabulary

Echo = Callable[[str], str]
"""A call's arguments as the client sends them back."""


@asynccontextmanager
async def tokenizer_at(model_dir: Path, *engines: str, **settings: Any) -> AsyncGenerator[Any]:
    """A stub of a new tokenizer with an empty memory."""
    config = TokenizerSettings(model=model_dir, model_name="m", engines=engines, **settings)
    server = rpc.new_server()
    async with build(config, server):
        port = rpc.bind(server, "127.0.0.1:0")
        await server.start()
        async with rpc.open_channel(f"127.0.0.1:{port}") as channel:
            yield tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        await server.stop(None)


@asynccontextmanager
async def kvstore_at(data_dir: Path) -> AsyncGenerator[str]:
    """The address of a new kvstore."""
    server = rpc.new_server()
    async with kvstore.build(Config(data_dir=data_dir, disk_reserve_bytes=0), server):
        port = rpc.bind(server, "127.0.0.1:0")
        await server.start()
        yield f"127.0.0.1:{port}"
        await server.stop(None)


@dataclass(frozen=True)
class Turn:
    """What one request sent to the engine, and what the client got back."""

    prompt: list[int]
    sampled: list[int]
    events: list[pb.GenerateResponse]

    @property
    def text(self) -> str:
        return "".join(event.text_delta.text for event in self.events)

    @property
    def reasoning(self) -> str:
        return "".join(event.reasoning_delta.text for event in self.events)

    @property
    def capsules(self) -> list[bytes]:
        """Of the thinking: one, where there was any."""
        return [event.reasoning_finished.capsule for event in self.events if event.HasField("reasoning_finished")]

    @property
    def finished(self) -> pb.Finished:
        return self.events[-1].finished

    def message(self, echo: Echo = str, reasoning: cpb.ReasoningPart | None = None) -> cpb.Message:
        """The answer as a client sends it back; without thinking, as most do, unless ``reasoning`` has some."""
        started = [event.call_started for event in self.events if event.HasField("call_started")]
        whole = {e.call_finished.index: e.call_finished.arguments for e in self.events if e.HasField("call_finished")}
        calls = [
            cpb.Call(
                call_id=call.call_id,
                namespace=call.namespace if call.HasField("namespace") else None,
                name=call.name,
                kind=call.kind,
                arguments=echo(whole[call.index]),
            )
            for call in started
        ]
        parts = [] if reasoning is None else [cpb.Part(reasoning=reasoning)]
        parts += [text_part(self.text)] if self.text else []
        return cpb.Message(role=cpb.ROLE_ASSISTANT, parts=parts, calls=calls)


@dataclass
class Dialogue:
    """One client's history."""

    messages: list[cpb.Message] = field(default_factory=list[cpb.Message])
    tools: Sequence[cpb.Tool] = ()
    tenant: str = "t"
    cache_scope: str = ""
    thinking: cpb.ReasoningMode.ValueType = cpb.REASONING_MODE_UNSPECIFIED
    output_format: cpb.OutputFormat | None = None
    tool_mode: cpb.ToolChoiceMode.ValueType = cpb.TOOL_CHOICE_MODE_AUTO

    @property
    def conversation(self) -> cpb.Conversation:
        reasoning = cpb.ReasoningOptions(mode=self.thinking)
        return cpb.Conversation(
            messages=self.messages,
            tools=self.tools,
            tool_choice=cpb.ToolChoice(mode=self.tool_mode),
            reasoning=reasoning,
            output_format=self.output_format,
        )

    @property
    def routing(self) -> pb.Routing:
        return pb.Routing(tenant=self.tenant, cache_scope=self.cache_scope)

    def add(self, *messages: cpb.Message) -> Dialogue:
        self.messages += messages
        return self

    def copy(self) -> Dialogue:
        return replace(self, messages=list(self.messages))

    async def ask(self, stub: Any, engine: ScriptedEngine, ids: Iterable[int], step: int = 3) -> Turn:
        """One answer, of exactly these ids; they arrive ``step`` at a time."""
        ids = list(ids)
        pieces = [sampled(*ids[start : start + step]) for start in range(0, len(ids), step)]
        engine.script = [admitted(), *pieces, finished()]
        request = pb.GenerateRequest(model="m", conversation=self.conversation, routing=self.routing)
        events = [event async for event in stub.Generate(request, timeout=20)]
        return Turn(prompt_of(engine), ids, events)

    async def encode(self, stub: Any) -> list[int]:
        """The prompt, unanswered."""
        request = pb.EncodeRequest(model="m", conversation=self.conversation, routing=self.routing)
        return read_ids((await stub.Encode(request, timeout=20)).token_ids)

    async def count(self, stub: Any) -> int:
        """What CountTokens says of the prompt."""
        request = pb.CountTokensRequest(model="m", conversation=self.conversation, routing=self.routing)
        response = await stub.CountTokens(request, timeout=20)
        assert sum(segment.tokens for segment in response.segments) == response.tokens
        return response.tokens


def read_ids(data: bytes) -> list[int]:
    return np.frombuffer(data, "<i4").tolist()


def prompt_of(engine: ScriptedEngine) -> list[int]:
    """The last prompt that the engine got."""
    return read_ids(engine.requests[-1].token_ids)


def text_part(text: str) -> cpb.Part:
    return cpb.Part(text=cpb.TextPart(text=text))


def says(role: cpb.Role.ValueType, text: str) -> cpb.Message:
    return cpb.Message(role=role, parts=[text_part(text)])


def user(text: str) -> cpb.Message:
    return says(cpb.ROLE_USER, text)


def results(answer: cpb.Message, text: str = "done") -> list[cpb.Message]:
    """A result for each of an answer's calls."""
    return [
        cpb.Message(role=cpb.ROLE_TOOL, call_id=call.call_id, name=call.name, parts=[text_part(text)])
        for call in answer.calls
    ]


def byte_ids(text: str, vocabulary: Vocabulary) -> list[int]:
    """One id for each byte: spells the text, and is never how the tokenizer would encode it."""
    return [vocabulary.token_bytes.index(bytes([byte])) for byte in text.encode()]


def respelled(arguments: str) -> str:
    """The same JSON with other spacing, the keys of the outermost object the other way round, numbers as they are."""
    raw = json.loads(arguments, parse_float=_Number, parse_int=_Number)
    pairs = list(raw.items())[::-1]
    return "{\n" + " ,\n".join(f"\t{json.dumps(key)} :{_dump(value)}" for key, value in pairs) + "}"


def parsed_and_dumped(arguments: str) -> str:
    """What a client sends that has kept an object."""
    return json.dumps(json.loads(arguments))


def segments(outcome: str) -> float:
    """How many of an assistant's segments had this outcome, whatever the reason."""
    samples = [sample for metric in REGISTRY.collect() for sample in metric.samples]
    return sum(
        sample.value
        for sample in samples
        if sample.name == "fencepost_tokenizer_segments_total" and sample.labels["outcome"] == outcome
    )


class _Number(float):
    """A number that remembers how it was written."""

    text: str

    def __new__(cls, text: str) -> _Number:
        number = super().__new__(cls, text)
        number.text = text
        return number


def _dump(value: Any) -> str:
    if isinstance(value, _Number):
        return value.text
    if isinstance(value, dict):
        members: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
        return "{" + ",".join(f"{json.dumps(key)}:{_dump(member)}" for key, member in members.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_dump, value)) + "]"  # pyright: ignore[reportUnknownArgumentType]
    return json.dumps(value)
