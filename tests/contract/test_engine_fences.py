"""Fences of requests on real gRPC: a tiny random model says only what it is allowed to, on every path."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from fencepost.engine.v1 import engine_pb2 as pb
from fencepost.engine.v1 import fence_pb2

from services import rpc
from services.vocabulary import Vocabulary, load_vocabulary
from tests.contract.engine_client import Answer, EngineClient, run_engine, write_tiny_engine_model

SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "maxLength": 12},
        "line": {"type": "integer", "minimum": 0, "maximum": 99},
        "mode": {"enum": ["read", "write"]},
    },
    "required": ["path", "line", "mode"],
    "additionalProperties": False,
}
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_engine_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def vocabulary(model: Path) -> Vocabulary:
    return load_vocabulary(model)


@pytest.fixture
async def engine(model: Path) -> AsyncGenerator[EngineClient]:
    async with run_engine(model) as client:
        yield client


def value(schema: dict[str, Any], **more: Any) -> fence_pb2.Program:
    """An answer that is one JSON value."""
    node = fence_pb2.Node(value=fence_pb2.Value(json_schema=json.dumps(schema), canonical=True))
    return fence_pb2.Program(nodes=[node], **more)


def sampling(**fields: Any) -> pb.Sampling:
    merged: dict[str, Any] = {"temperature": 1.0, "seed": 1, "max_tokens": 400, **fields}
    return pb.Sampling(**merged)


def text_of(ids: tuple[int, ...], vocabulary: Vocabulary) -> str:
    """Without the end token."""
    assert ids[-1] == 2
    return b"".join(vocabulary.spell(token_id) for token_id in ids[:-1]).decode()


def is_valid(answer: Answer, vocabulary: Vocabulary) -> bool:
    found = json.loads(text_of(answer.ids, vocabulary))
    assert text_of(answer.ids, vocabulary) == json.dumps(found, ensure_ascii=False)
    return (
        set(found) == {"path", "line", "mode"}
        and len(found["path"]) <= 12
        and 0 <= found["line"] <= 99
        and found["mode"] in ("read", "write")
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_an_answer_fits_its_schema_and_drafts_change_nothing(
    engine: EngineClient, vocabulary: Vocabulary, temperature: float
) -> None:
    for seed in range(6):
        asked = sampling(seed=seed, temperature=temperature)
        drafted = await engine.generate(PROMPT, sampling=asked, fence=value(SCHEMA))
        plain = await engine.generate(PROMPT, sampling=asked, fence=value(SCHEMA), draft=pb.DRAFT_OFF)
        assert drafted.ids == plain.ids
        assert drafted.finished.reason == pb.FINISH_REASON_STOP
        assert is_valid(drafted, vocabulary)
        assert drafted.usage.drafted_tokens > 0
        assert plain.usage.drafted_tokens == 0


async def test_choices_have_fences_of_their_own(engine: EngineClient, vocabulary: Vocabulary) -> None:
    answer = await engine.generate(PROMPT, sampling=sampling(choices=4), fence=value(SCHEMA))
    texts = {text_of(tuple(ids), vocabulary) for ids in answer.ids_by_choice.values()}
    assert len(texts) > 1
    for text in texts:
        assert set(json.loads(text)) == {"path", "line", "mode"}


async def test_stops_are_suspended_inside_and_a_limit_is_not(engine: EngineClient, vocabulary: Vocabulary) -> None:
    whole = await engine.generate(PROMPT, sampling=sampling(), fence=value(SCHEMA))
    stopped = sampling(stop_texts=[b"path", b'"'], stop_token_ids=list(set(whole.ids)))
    assert (await engine.generate(PROMPT, sampling=stopped, fence=value(SCHEMA))).ids == whole.ids
    cut = await engine.generate(PROMPT, sampling=sampling(max_tokens=5), fence=value(SCHEMA))
    assert (cut.finished.reason, cut.ids) == (pb.FINISH_REASON_LENGTH, whole.ids[:5])


async def test_a_fence_holds_beside_others_and_through_preemption(model: Path, vocabulary: Vocabulary) -> None:
    # Room for about one and a half of the answers.
    async with run_engine(model, vram_bytes=40 * 16 * 512, max_running=4) as engine:
        long = {"type": "string", "minLength": 250, "maxLength": 260}
        answers = await asyncio.gather(
            *(
                engine.generate([seed + 5] * 40, sampling=sampling(seed=seed, max_tokens=550), fence=value(long))
                for seed in range(4)
            )
        )
        alone = [
            await engine.generate([seed + 5] * 40, sampling=sampling(seed=seed, max_tokens=550), fence=value(long))
            for seed in range(4)
        ]
    for answer, expected in zip(answers, alone, strict=True):
        assert 250 <= len(json.loads(text_of(answer.ids, vocabulary))) <= 260
        assert answer.ids == expected.ids


async def test_what_cannot_be_enforced_is_named(engine: EngineClient, vocabulary: Vocabulary) -> None:
    schema = {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": 9},
        "maxItems": 3,
        "uniqueItems": True,
    }
    answer = await engine.generate(PROMPT, sampling=sampling(), fence=value(schema))
    assert len(json.loads(text_of(answer.ids, vocabulary))) <= 3
    assert [one.keyword for one in answer.finished.warnings] == ["uniqueItems"]


async def test_the_fence_begins_behind_the_thinking(engine: EngineClient, vocabulary: Vocabulary) -> None:
    answer = await engine.generate(
        [5, 6, 8],
        sampling=sampling(),
        fence=value(SCHEMA, reasoning_gate=True),
        reasoning=pb.Reasoning(start_id=8, end_id=9, budget_tokens=20),
    )
    end = answer.ids.index(9)
    assert end <= 20
    assert set(json.loads(text_of(answer.ids[end + 1 :], vocabulary))) == {"path", "line", "mode"}


@pytest.mark.parametrize(
    "program",
    [
        fence_pb2.Program(),
        fence_pb2.Program(nodes=[fence_pb2.Node()]),
        fence_pb2.Program(nodes=[fence_pb2.Node(sequence=fence_pb2.Sequence(nodes=[7]))]),
        fence_pb2.Program(nodes=[fence_pb2.Node(mark=fence_pb2.Mark(token_id=10**6))]),
        fence_pb2.Program(nodes=[fence_pb2.Node(grammar=fence_pb2.Grammar(text="x"))]),
        value(SCHEMA, reasoning_gate=True),
        value(SCHEMA, entry=3),
    ],
)
async def test_a_program_that_cannot_be_meant_is_refused(engine: EngineClient, program: fence_pb2.Program) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await engine.generate(PROMPT, sampling=sampling(), fence=program)
    failure = rpc.failure_of(refused.value)
    assert failure.code is grpc.StatusCode.INVALID_ARGUMENT
    assert failure.message.startswith("fence")
    assert len((await engine.generate(PROMPT, 3)).ids) == 3
