"""Thinking that comes back: in full, as a capsule, as both, changed, broken, or not at all."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from dialogue import Dialogue, Turn, byte_ids, kvstore_at, parsed_and_dumped, results, says, tokenizer_at, user
from fencepost.engine.v1 import engine_pb2
from fencepost.tokenizer.v1 import conversation_pb2 as cpb
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from scripted_engine import ScriptedEngine, admitted, finished, sampled
from thinking_model import write_thinking_model

from services.identity import tokenizer_fingerprint
from services.vocabulary import Vocabulary, load_vocabulary

pytestmark = pytest.mark.asyncio(loop_scope="module")

END = 2
THOUGHT = "Hm, 🦊?"
BLOCK = f"<think>\n{THOUGHT}\n</think>"
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a b", "n":1e5}}\n</tool_call>'
TOOLS = [cpb.Tool(name="read", parameters_json='{"type": "object"}')]
DAMAGED = "ignored a capsule of thinking that this server did not make for this caller"
OTHER_TEXT = "ignored a capsule of thinking: other text came back with it"
_tenants = count()

Serve = partial[AbstractAsyncContextManager[Any]]


@pytest.fixture(scope="module")
def vocabulary(smollm2_dir: Path) -> Vocabulary:
    return load_vocabulary(smollm2_dir)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(smollm2_dir: Path) -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(tokenizer_fingerprint(smollm2_dir), context_tokens=100_000).serving() as scripted:
        yield scripted


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory, smollm2_dir: Path, engine: ScriptedEngine) -> Serve:
    """Starts a tokenizer with an empty memory; all of them have one key."""
    path = tmp_path_factory.mktemp("thinking")
    keys = path / "keys"
    keys.write_text(f"k1:{base64.b64encode(bytes(32)).decode()}\n")
    return partial(tokenizer_at, write_thinking_model(path / "model", smollm2_dir), engine.address, capsule_keys=keys)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stub(serve: Serve) -> AsyncIterator[Any]:
    async with serve() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def forgetful(serve: Serve) -> AsyncIterator[Any]:
    """A tokenizer that has not seen any of these conversations."""
    async with serve() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def canonical(serve: Serve) -> AsyncIterator[Any]:
    """A tokenizer that remembers nothing and opens nothing."""
    async with serve(transcript_mode="canonical") as found:
        yield found


def begun() -> Dialogue:
    """Of a tenant of its own."""
    return Dialogue([says(cpb.ROLE_SYSTEM, "Be brief."), user("Hello?")], TOOLS, f"tenant {next(_tenants)}")


def reasoning(echo: str, turn: Turn) -> cpb.ReasoningPart | None:
    """What a client sends back of a turn's thinking."""
    (capsule,) = turn.capsules
    match echo:
        case "text and capsule":
            return cpb.ReasoningPart(text=turn.reasoning, capsule=capsule)
        case "capsule":
            return cpb.ReasoningPart(capsule=capsule)
        case "text":
            return cpb.ReasoningPart(text=turn.reasoning)
        case _:
            return None


def kinds(turn: Turn) -> list[str]:
    """Of the events behind Admitted, repetitions left out."""
    found: list[str] = []
    for event in turn.events[1:]:
        kind = event.WhichOneof("event") or ""
        if not found or kind != found[-1]:
            found.append(kind)
    return found


async def decoded(stub: Any, ids: list[int]) -> str:
    request = pb.DecodeRequest(model="m", token_ids=b"".join(one.to_bytes(4, "little") for one in ids))
    return (await stub.Decode(request)).text


@pytest.mark.parametrize("step", [1, 3, 1000])
async def test_the_capsule_comes_between_thinking_and_answer(
    step: int, stub: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    text = await begun().ask(stub, engine, [*byte_ids(f"{BLOCK}\n\nYes.", vocabulary), END], step)
    assert kinds(text) == ["reasoning_delta", "reasoning_finished", "text_delta", "finished"]
    assert (text.reasoning, text.text) == (THOUGHT, "Yes.")
    call = await begun().ask(stub, engine, [*byte_ids(f"{BLOCK}\n\n{CALL}", vocabulary), END], step)
    assert kinds(call)[:3] == ["reasoning_delta", "reasoning_finished", "call_started"]
    cut = await begun().ask(stub, engine, byte_ids(f"<think>\n{THOUGHT}", vocabulary), step)
    assert kinds(cut) == ["reasoning_delta", "reasoning_finished", "finished"]
    for turn in (text, call, cut):
        assert len(turn.capsules) == 1
        thinking = f"<think>\n{THOUGHT}" if turn is cut else BLOCK
        assert turn.events[-1].finished.usage.reasoning_tokens == len(byte_ids(thinking, vocabulary))
        assert THOUGHT.encode() not in turn.capsules[0]
    for written in ("Yes.", CALL, "<think>\n\n</think>\n\nYes."):
        assert (await begun().ask(stub, engine, [*byte_ids(written, vocabulary), END], step)).capsules == []


async def test_every_choice_has_its_capsule(stub: Any, engine: ScriptedEngine, vocabulary: Vocabulary) -> None:
    dialogue = begun()
    ends = [finished(), finished()]
    ends[1].finished.choice = 1
    thoughts = [byte_ids(f"<think>\n{one}\n</think>\n\nYes.", vocabulary) for one in "ab"]
    engine.script = [admitted(), *(sampled(*ids, choice=choice) for choice, ids in enumerate(thoughts)), *ends]
    request = pb.GenerateRequest(
        model="m", conversation=dialogue.conversation, routing=dialogue.routing, sampling=pb.Sampling(choices=2)
    )
    events = [
        event.reasoning_finished async for event in stub.Generate(request) if event.HasField("reasoning_finished")
    ]
    assert [event.choice for event in events] == [0, 1]
    for text, event in zip("ab", events, strict=True):
        part = cpb.Part(reasoning=cpb.ReasoningPart(capsule=event.capsule))
        asked = dialogue.copy().add(cpb.Message(role=cpb.ROLE_ASSISTANT, parts=[part]), tool_result())
        assert f"<think>\n{text}\n</think>" in await decoded(stub, await asked.encode(stub))


def tool_result() -> cpb.Message:
    return cpb.Message(role=cpb.ROLE_TOOL, call_id="c", parts=[cpb.Part(text=cpb.TextPart(text="done"))])


@pytest.mark.parametrize("echo", ["text and capsule", "capsule", "text", "call ids"])
async def test_the_next_prompt_has_every_token_of_the_turn(
    echo: str, stub: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    dialogue, previous = begun(), list[int]()
    for number in range(4):
        ids = [*byte_ids(f"{BLOCK}\n\n{number}.\n{CALL}", vocabulary), END]
        turn = await dialogue.ask(stub, engine, ids)
        assert turn.prompt[: len(previous)] == previous
        assert list(turn.finished.warnings) == []
        assert await dialogue.count(stub) == len(turn.prompt)
        previous = turn.prompt + ids
        said = turn.message(parsed_and_dumped, reasoning(echo, turn))
        dialogue.add(said, *results(said))


@pytest.mark.parametrize("echo", ["text and capsule", "capsule", "text", "call ids"])
async def test_after_a_restart_the_store_has_the_turn(
    echo: str, serve: Serve, tmp_path: Path, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    dialogue = begun()
    ids = [*byte_ids(f"{BLOCK}\n\nLook.\n{CALL}", vocabulary), END]
    async with kvstore_at(tmp_path / "kv") as records:
        async with serve(records=records) as before:
            first = await dialogue.ask(before, engine, ids)
        said = first.message(parsed_and_dumped, reasoning(echo, first))
        dialogue.add(said, *results(said))
        async with serve(records=records) as after:
            second = await dialogue.ask(after, engine, [END])
    assert second.prompt[: len(first.prompt) + len(ids)] == first.prompt + ids


@pytest.mark.parametrize("echo", ["text and capsule", "capsule"])
async def test_without_the_record_the_capsule_has_the_thinkings_ids(
    echo: str, stub: Any, serve: Serve, canonical: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    dialogue = begun()
    turns, prompt = list[Turn](), list[int]()
    async with serve() as after:
        for number in range(3):
            ids = [*byte_ids(f"{BLOCK}\n\n{number}.\n{CALL}", vocabulary), END]
            # Answered here, asked about there: no other has a record of it.
            turn = await dialogue.ask(stub, engine, ids)
            turns.append(turn)
            said = turn.message(str, reasoning(echo, turn))
            dialogue.add(said, *results(said))
            prompt = await dialogue.encode(after)
            assert await dialogue.encode(after) == prompt
    thinking = byte_ids(BLOCK, vocabulary)
    assert prompt[: len(turns[0].prompt) + len(thinking)] == turns[0].prompt + thinking
    # As often as there were turns: what stands between is encoded anew.
    text = ",".join(map(str, prompt))
    assert text.count(",".join(map(str, thinking))) == 3
    full = dialogue.copy()
    full.messages = [with_text(message) for message in dialogue.messages]
    assert await decoded(stub, prompt) == await decoded(stub, await full.encode(canonical))


def with_text(message: cpb.Message) -> cpb.Message:
    """With the thinking in plain text."""
    copied = cpb.Message()
    copied.CopyFrom(message)
    for part in copied.parts:
        if part.HasField("reasoning"):
            part.reasoning.CopyFrom(cpb.ReasoningPart(text=THOUGHT))
    return copied


@pytest.mark.parametrize("step", [1, 1000])
async def test_thinking_that_was_cut_off_comes_back_too(
    step: int, stub: Any, forgetful: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    dialogue = begun()
    ids = byte_ids(f"<think>\n{THOUGHT}", vocabulary)
    first = await dialogue.ask(stub, engine, ids, step)
    dialogue.add(first.message(str, reasoning("capsule", first)), tool_result())
    prompt = await dialogue.encode(forgetful)
    assert prompt[: len(first.prompt) + len(ids)] == first.prompt + ids
    assert (await decoded(stub, prompt[len(first.prompt) :])).startswith(f"{BLOCK}\n\n<|im_end|>")


async def test_other_text_than_the_capsules_counts(
    stub: Any, forgetful: Any, canonical: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    """With a record of the turn as without."""
    dialogue = begun()
    first = await dialogue.ask(stub, engine, [*byte_ids(f"{BLOCK}\n\n{CALL}", vocabulary), END])
    for text in ("Something else.", f"{THOUGHT} And more."):
        said = first.message(str, cpb.ReasoningPart(text=text, capsule=first.capsules[0]))
        plain = first.message(str, cpb.ReasoningPart(text=text))
        changed, expected = (dialogue.copy().add(one, *results(one)) for one in (said, plain))
        prompt = await expected.encode(canonical)
        assert f"<think>\n{text}\n</think>" in await decoded(stub, prompt)
        for one in (stub, forgetful):
            second = await changed.ask(one, engine, [END])
            assert second.prompt == prompt
            assert list(second.finished.warnings) == [OTHER_TEXT]


@pytest.mark.parametrize("fault", ["damaged", "no capsule", "another tenant's"])
@pytest.mark.parametrize("text", ["", THOUGHT])
async def test_a_capsule_that_does_not_open_is_as_none(
    fault: str, text: str, stub: Any, forgetful: Any, canonical: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    dialogue = begun()
    first = await dialogue.ask(stub, engine, [*byte_ids(f"{BLOCK}\n\n{CALL}", vocabulary), END])
    capsule = first.capsules[0]
    match fault:
        case "damaged":
            capsule = capsule[:-1] + bytes([capsule[-1] ^ 1])
        case "no capsule":
            capsule = b"gAAAAABl"
        case _:
            dialogue.tenant += "'s neighbour"
    said = first.message(str, cpb.ReasoningPart(text=text, capsule=capsule))
    plain = first.message(str, cpb.ReasoningPart(text=text) if text else None)
    second = await dialogue.copy().add(said, *results(said)).ask(forgetful, engine, [END])
    assert second.prompt == await dialogue.copy().add(plain, *results(plain)).encode(canonical)
    assert list(second.finished.warnings) == [DAMAGED]
    if fault != "another tenant's":
        # Where the turn is known, its call ids are enough.
        prompt = await dialogue.copy().add(said, *results(said)).encode(stub)
        assert prompt[: len(first.prompt) + len(first.sampled)] == first.prompt + first.sampled


async def test_several_faults_are_one_warning_each(forgetful: Any, engine: ScriptedEngine) -> None:
    broken = cpb.Part(reasoning=cpb.ReasoningPart(capsule=b"x"))
    dialogue = begun()
    for _ in range(3):
        dialogue.add(cpb.Message(role=cpb.ROLE_ASSISTANT, parts=[broken, *says(cpb.ROLE_USER, "a").parts]), user("b"))
    turn = await dialogue.ask(forgetful, engine, [END])
    assert list(turn.finished.warnings) == [
        "ignored 3 capsules of thinking that this server did not make for this caller"
    ]


async def test_a_mode_that_remembers_nothing_makes_no_capsules(
    canonical: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    turn = await begun().ask(canonical, engine, [*byte_ids(f"{BLOCK}\n\nYes.", vocabulary), END])
    assert turn.capsules == [b""]


async def test_a_stop_text_may_end_the_thinking(stub: Any, engine: ScriptedEngine, vocabulary: Vocabulary) -> None:
    dialogue = begun()
    stopped = finished(engine_pb2.FINISH_REASON_STOP_TEXT, 0)
    engine.script = [admitted(), sampled(*byte_ids("<think>\nHm. STOP", vocabulary)), stopped]
    request = pb.GenerateRequest(
        model="m",
        conversation=dialogue.conversation,
        routing=dialogue.routing,
        sampling=pb.Sampling(stop_texts=[" STOP"]),
    )
    turn = Turn([], [], [event async for event in stub.Generate(request)])
    assert kinds(turn) == ["reasoning_delta", "reasoning_finished", "finished"]
    assert turn.reasoning == "Hm."
    assert turn.finished.stop_text == " STOP"
