"""The next prompt begins with exactly what the model read and wrote, however the client writes it down."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from dialogue import (
    Dialogue,
    Echo,
    Turn,
    byte_ids,
    kvstore_at,
    parsed_and_dumped,
    read_ids,
    respelled,
    results,
    says,
    segments,
    tokenizer_at,
    user,
)
from fencepost.tokenizer.v1 import conversation_pb2 as cpb
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from scripted_engine import ScriptedEngine, admitted, finished, sampled
from thinking_model import write_thinking_model
from tokenizers import Tokenizer

from services.identity import tokenizer_fingerprint
from services.vocabulary import Vocabulary, load_vocabulary

pytestmark = pytest.mark.asyncio(loop_scope="module")

END = 2
SCHEMA = '{"type":"object","properties":{"path":{"type":"string"},"n":{"type":"number"}}}'
TOOLS = [
    cpb.Tool(name="read", description="Reads a file.", parameters_json=SCHEMA),
    cpb.Tool(name="apply", kind=cpb.CALL_KIND_CUSTOM, description="Applies a patch."),
]
ARGUMENTS = '{"path": "a b/grün 🦊.txt",  "n": 1e5, "deep": {"z": [1, 2.50, -0.0], "<a>": null}}'
TEXT = "Grüße, 世界! The fox 🦊 is 1,234 years old.\n\nYes."
ONE_CALL = f'<tool_call>\n{{"name": "read", "arguments": {ARGUMENTS}}}\n</tool_call>'
TEXT_AND_CALLS = (
    "I look at both.\n"
    f'<tool_call>\n{{"name":"read", "arguments":{ARGUMENTS}}}\n</tool_call>\n'
    '<tool_call>\n{"arguments": {"n": 12345678901234567890, "path": ""}, "name": "read"}\n</tool_call>'
)
ANSWERS = {"text": TEXT, "a call": ONE_CALL, "text and parallel calls": TEXT_AND_CALLS}
_tenants = count()
ECHOES: dict[str, Echo] = {"verbatim": str, "respelled": respelled, "parsed": parsed_and_dumped}


@pytest.fixture(scope="module")
def vocabulary(smollm2_dir: Path) -> Vocabulary:
    return load_vocabulary(smollm2_dir)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(smollm2_dir: Path) -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(tokenizer_fingerprint(smollm2_dir), context_tokens=100_000).serving() as scripted:
        yield scripted


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def records(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with kvstore_at(tmp_path_factory.mktemp("kv") / "kv") as address:
        yield address


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stub(smollm2_dir: Path, engine: ScriptedEngine, records: str) -> AsyncIterator[Any]:
    async with tokenizer_at(smollm2_dir, engine.address, records=records) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def canonical(smollm2_dir: Path) -> AsyncIterator[Any]:
    """A tokenizer that remembers nothing."""
    async with tokenizer_at(smollm2_dir, transcript_mode="canonical") as found:
        yield found


def begun() -> Dialogue:
    """Of a tenant of its own: nobody has said anything before."""
    messages = [says(cpb.ROLE_SYSTEM, "Be brief."), user("Hello, what is there?")]
    return Dialogue(messages, TOOLS, f"tenant {next(_tenants)}")


def chatml(dialogue: Dialogue) -> str:
    """The prompt of a conversation without tools."""
    names = {cpb.ROLE_SYSTEM: "system", cpb.ROLE_USER: "user", cpb.ROLE_ASSISTANT: "assistant"}
    turns = [f"<|im_start|>{names[one.role]}\n{one.parts[0].text.text}<|im_end|>\n" for one in dialogue.messages]
    return "".join(turns) + "<|im_start|>assistant\n"


@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("answer", ANSWERS)
async def test_what_was_sampled_stands_in_the_next_prompt(
    answer: str, echo: str, stub: Any, canonical: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    dialogue = begun()
    ids = [*byte_ids(ANSWERS[answer], vocabulary), END]
    first = await dialogue.ask(stub, engine, ids)
    assert first.finished.reason == (pb.FINISH_REASON_STOP if answer == "text" else pb.FINISH_REASON_CALLS)
    said = first.message(ECHOES[echo])
    dialogue.add(said, *results(said), user("And now?"))
    spliced = segments("spliced")
    second = await dialogue.ask(stub, engine, ids)
    assert second.prompt[: len(first.prompt) + len(ids)] == first.prompt + ids
    assert segments("spliced") == spliced + 1
    assert await dialogue.encode(canonical) != second.prompt


async def test_a_restart_and_another_replica_go_on_with_the_same_ids(
    smollm2_dir: Path, stub: Any, engine: ScriptedEngine, records: str, vocabulary: Vocabulary
) -> None:
    """They know only what the store knows."""
    begun_before: list[tuple[Dialogue, list[int], Echo, Turn]] = []
    for answer in ANSWERS.values():
        for echo in ECHOES.values():
            dialogue, ids = begun(), [*byte_ids(answer, vocabulary), END]
            first = await dialogue.ask(stub, engine, ids)
            said = first.message(echo)
            second = await dialogue.add(said, *results(said), user("And now?")).ask(stub, engine, ids)
            begun_before.append((dialogue, ids, echo, second))
    async with tokenizer_at(smollm2_dir, engine.address, records=records) as restarted:
        for dialogue, ids, echo, second in begun_before:
            assert await dialogue.encode(restarted) == second.prompt
            said = second.message(echo)
            third = await dialogue.add(said, *results(said), user("Go on.")).ask(restarted, engine, ids)
            assert third.prompt[: len(second.prompt) + len(ids)] == second.prompt + ids
            # The first one runs on beside it, and learns from the store too.
            said = third.message(echo)
            fourth = await dialogue.add(said, *results(said), user("Go on.")).ask(stub, engine, ids)
            assert fourth.prompt[: len(third.prompt) + len(ids)] == third.prompt + ids
            assert await dialogue.encode(restarted) == fourth.prompt


async def test_two_replicas_take_turns(
    smollm2_dir: Path, stub: Any, engine: ScriptedEngine, records: str, vocabulary: Vocabulary
) -> None:
    dialogue, previous = begun(), list[int]()
    async with tokenizer_at(smollm2_dir, engine.address, records=records) as other:
        for index in range(6):
            ids = [*byte_ids(f"{TEXT_AND_CALLS if index % 2 else TEXT}"[index:], vocabulary), END]
            turn = await dialogue.ask(other if index % 3 == 1 else stub, engine, ids)
            assert turn.prompt[: len(previous)] == previous
            previous = turn.prompt + ids
            said = turn.message(parsed_and_dumped)
            dialogue.add(said, *results(said), user(f"{index}?"))


async def test_calls_are_the_same_in_whatever_order_they_come_back(
    stub: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    dialogue = begun()
    ids = [*byte_ids(TEXT_AND_CALLS, vocabulary), END]
    first = await dialogue.ask(stub, engine, ids)
    said = first.message()
    swapped = cpb.Message(role=said.role, parts=said.parts, calls=[said.calls[1], said.calls[0]])
    second = await dialogue.add(swapped, *results(said)).ask(stub, engine, ids)
    assert second.prompt[: len(first.prompt) + len(ids)] == first.prompt + ids


async def test_a_custom_calls_text_is_compared_as_text(
    stub: Any, engine: ScriptedEngine, canonical: Any, vocabulary: Vocabulary
) -> None:
    patch = '*** Begin\n-"a\\b"\n+<|im_end|> 🦊\n'
    call = json.dumps({"name": "apply", "arguments": {"input": patch}})
    ids = [*byte_ids(f"<tool_call>\n{call}\n</tool_call>", vocabulary), END]
    dialogue = begun()
    first = await dialogue.ask(stub, engine, ids)
    said = first.message()
    assert (said.calls[0].kind, said.calls[0].arguments) == (cpb.CALL_KIND_CUSTOM, patch)
    echoed = dialogue.copy().add(said, *results(said))
    assert (await echoed.encode(stub))[: len(first.prompt) + len(ids)] == first.prompt + ids
    changed = dialogue.copy().add(first.message(lambda text: text + " "), *results(said))
    assert await changed.encode(stub) == await changed.encode(canonical)


async def test_canonical_mode_encodes_anew(
    smollm2_dir: Path, engine: ScriptedEngine, records: str, vocabulary: Vocabulary
) -> None:
    whole = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    dialogue = Dialogue(begun().messages, tenant="canonical")
    async with tokenizer_at(smollm2_dir, engine.address, records=records, transcript_mode="canonical") as stub:
        first = await dialogue.ask(stub, engine, byte_ids(TEXT, vocabulary))
        second = await dialogue.add(first.message(), user("And?")).ask(stub, engine, [END])
    assert second.prompt == whole.encode(chatml(dialogue)).ids


@pytest.mark.parametrize("change", ["earlier text", "the answer", "an argument", "a call's name", "one call less"])
async def test_an_edited_history_is_encoded_anew(
    change: str, stub: Any, canonical: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    dialogue = begun()
    ids = [*byte_ids(TEXT_AND_CALLS, vocabulary), END]
    said = (await dialogue.ask(stub, engine, ids)).message()
    match change:
        case "earlier text":
            dialogue.messages[1] = user("Hello, what is there!")
        case "the answer":
            said.parts[0].text.text += "."
        case "an argument":
            said.calls[0].arguments = said.calls[0].arguments.replace("2.50", "2.51")
        case "a call's name":
            said.calls[0].name = "write"
        case _:
            del said.calls[1]
    before = {outcome: segments(outcome) for outcome in ("spliced", "rendered", "diverged")}
    dialogue.add(said, *results(said), user("And now?"))
    assert await dialogue.encode(stub) == await dialogue.encode(canonical)
    counted = {outcome: segments(outcome) - count for outcome, count in before.items()}
    assert counted == {"spliced": 0, "rendered": 0, "diverged": 1}


async def test_an_edit_spares_what_stands_before_it(
    stub: Any, canonical: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    dialogue, turns = begun(), list[Turn]()
    for _ in range(3):
        turn = await dialogue.ask(stub, engine, [*byte_ids(TEXT, vocabulary), END])
        turns.append(turn)
        dialogue.add(turn.message(), user("Go on."))
    dialogue.messages[5] = user("Go on!")
    spliced, rendered = segments("spliced"), segments("rendered")
    ids = await dialogue.encode(stub)
    assert (segments("spliced") - spliced, segments("rendered") - rendered) == (2, 1)
    kept = turns[1].prompt + turns[1].sampled
    assert ids[: len(kept)] == kept
    plain = await dialogue.encode(canonical)
    start = [index for index, one in enumerate(plain) if one == END][-4]
    assert ids[len(kept) - 1 :] == plain[start:]


@pytest.mark.parametrize(("tenant", "scope"), [("other", ""), ("", "elsewhere"), ("other", "shared")])
async def test_nobody_elses_ids_are_spliced(
    tenant: str, scope: str, smollm2_dir: Path, stub: Any, canonical: Any, engine: ScriptedEngine, records: str,
    vocabulary: Vocabulary,
) -> None:  # fmt: skip
    dialogue = begun()
    dialogue.cache_scope = "shared" if scope == "shared" else ""
    said = (await dialogue.ask(stub, engine, [*byte_ids(TEXT_AND_CALLS, vocabulary), END])).message()
    dialogue.add(said, *results(said))
    plain = await dialogue.encode(canonical)
    assert await dialogue.encode(stub) != plain
    dialogue.tenant, dialogue.cache_scope = tenant or dialogue.tenant, scope
    async with tokenizer_at(smollm2_dir, records=records) as restarted:
        for one in (stub, restarted):
            assert await dialogue.encode(one) == plain


async def test_an_answers_ids_are_its_own_conversations(
    stub: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    """Two conversations of one tenant got one text, spelt with different ids."""
    here, there = begun(), begun()
    there.tenant = here.tenant
    there.messages[1] = user("Something else.")
    turns: list[Turn] = []
    for seed, dialogue in enumerate((here, there)):
        turns.append(await dialogue.ask(stub, engine, [*cuts(TEXT, vocabulary, random.Random(seed)), END]))
    assert turns[0].sampled != turns[1].sampled
    for dialogue, turn in zip((here, there), turns, strict=True):
        prompt = await dialogue.add(turn.message(), user("Go on.")).encode(stub)
        assert prompt[: len(turn.prompt) + len(turn.sampled)] == turn.prompt + turn.sampled


async def test_an_answer_without_its_end_token_is_spliced_too(
    stub: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    """As one that ran into max_tokens."""
    dialogue, ids = begun(), byte_ids("cut sho", vocabulary)
    first = await dialogue.ask(stub, engine, ids)
    second = await dialogue.add(first.message(), user("Go on.")).ask(stub, engine, [END])
    assert second.prompt[: len(first.prompt) + len(ids) + 1] == [*first.prompt, *ids, END]


async def test_half_a_character_at_the_end_is_not_made_up(
    stub: Any, canonical: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    """The client gets U+FFFD for it; if it sends that back, the ids are still those that were sampled."""
    dialogue, ids = begun(), byte_ids("fox 🦊", vocabulary)[:-2]
    first = await dialogue.ask(stub, engine, ids)
    assert first.text == "fox \ufffd"
    second = await dialogue.add(first.message(), user("Go on.")).ask(stub, engine, [END])
    assert second.prompt[: len(first.prompt) + len(ids)] == first.prompt + ids


async def test_counting_is_what_generating_sends(stub: Any, engine: ScriptedEngine, vocabulary: Vocabulary) -> None:
    plain = Dialogue([user("Hello")], tenant="plain")
    dialogue = begun()
    for one in (plain, dialogue):
        ids = [*byte_ids(TEXT if one is plain else TEXT_AND_CALLS, vocabulary), END]
        for _ in range(3):
            count = await one.count(stub)
            turn = await one.ask(stub, engine, ids)
            assert count == len(turn.prompt)
            said = turn.message(respelled)
            one.add(said, *results(said), user("<|im_end|> and 🦊?"))
    # Without routing nothing is remembered.
    request = pb.CountTokensRequest(model="m", conversation=dialogue.conversation)
    assert (await stub.CountTokens(request)).tokens < await dialogue.count(stub)


def cuts(text: str, vocabulary: Vocabulary, source: random.Random) -> list[int]:
    """Ids whose edges fall anywhere, between the bytes of characters too."""
    data, ids = text.encode(), list[int]()
    token_by_bytes = {spelt: one for one, spelt in enumerate(vocabulary.token_bytes) if spelt}
    while data:
        ends = [end for end in range(1, min(6, len(data)) + 1) if data[:end] in token_by_bytes]
        end = source.choice(ends)
        ids.append(token_by_bytes[data[:end]])
        data = data[end:]
    return ids


@pytest.mark.parametrize("step", [1, 2, 7])
async def test_characters_are_streamed_whole_and_once(
    step: int, stub: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    text = "Ünïcödé 世界 🦊👩\u200d👧 e\u0301 नमस्ते <tool ca <tool_cal> \ufffd ende"
    arguments = json.dumps({"path": text}, ensure_ascii=False)
    answer = f'{text}\n<tool_call>\n{{"name": "read", "arguments": {arguments}}}\n</tool_call>'
    for seed in range(6):
        ids = cuts(answer, vocabulary, random.Random(seed))
        dialogue = begun()
        turn = await dialogue.ask(stub, engine, [*ids, END], step)
        assert turn.text == text
        fragments = "".join(event.call_delta.fragment for event in turn.events)
        assert fragments == turn.message().calls[0].arguments == arguments
        # What has been sent is never taken back: only the text's own replacement character is one.
        assert [e.text_delta.text.count("\ufffd") for e in turn.events if "\ufffd" in e.text_delta.text] == [1]
        dialogue.add(turn.message(parsed_and_dumped), *results(turn.message()))
        assert (await dialogue.encode(stub))[: len(turn.prompt) + len(ids)] == turn.prompt + ids


async def test_plain_text_with_control_tokens_grows_through_the_cache(
    stub: Any, engine: ScriptedEngine, smollm2_dir: Path
) -> None:
    whole = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    text = "".join(f"<|im_start|>user\nQuestion {index} about 世界?<|im_end|>\n" for index in range(150))
    assert len(text) > 4096
    paths, encoded = list[int](), list[int]()
    for _ in range(3):
        response = await stub.Encode(pb.EncodeRequest(model="m", text=text, routing=pb.Routing(tenant="t")))
        paths.append(response.path)
        encoded.append(response.encoded_tokens)
        ids = read_ids(response.token_ids)
        assert ids == whole.encode(text).ids
        engine.script = [admitted(), sampled(END), finished()]
        request = pb.GenerateRequest(model="m", text=text, routing=pb.Routing(tenant="t"))
        assert [event async for event in stub.Generate(request)]
        assert read_ids(engine.requests[-1].token_ids) == ids
        assert (await stub.CountTokens(pb.CountTokensRequest(model="m", text=text))).tokens == len(ids)
        text += "<|im_start|>assistant\nAn answer.<|im_end|>\n<file_sep>"
    assert paths == [pb.ENCODE_PATH_FULL, pb.ENCODE_PATH_DELTA, pb.ENCODE_PATH_DELTA]
    assert all(tokens < encoded[0] / 20 for tokens in encoded[1:])


async def test_concurrent_prompts_do_not_disturb_each_other(stub: Any, canonical: Any) -> None:
    def prompt(index: int) -> Dialogue:
        words = random.Random(index).choices(["fox", "世界", "🦊", "<|im_end|>", "\n\n", " 12 "], k=300 + 60 * index)
        return Dialogue([user(" ".join(words))])

    prompts = [prompt(index) for index in range(32)]
    together = await asyncio.gather(*(one.encode(stub) for one in prompts))
    assert together == [await one.encode(canonical) for one in prompts]
    again = await asyncio.gather(*(one.encode(stub) for one in prompts))
    assert again == together


async def test_tools_stand_in_the_prompt_as_they_came(stub: Any) -> None:
    """In the order of the request, keys in their order, numbers as they are written."""
    schemas = [
        '{"type":"object","properties":{"z":{"type":"number","maximum":1e5},"a":{"minimum":0.10}}}',
        '{"properties": {"a": {"minimum": 0.10}, "z": {"type": "number", "maximum": 1e5}}, "type": "object"}',
        '{ "type" : "object",\n"properties":{"z":{"type":"number","maximum":1e5},"a":{"minimum":0.10}}}',
    ]
    prompts: list[list[int]] = []
    for schema in schemas:
        tools = [cpb.Tool(name="zip", parameters_json=schema), cpb.Tool(name="add", parameters_json=schema)]
        prompts.append(await Dialogue([user("Hi")], tools).encode(stub))
    decoded = await stub.Decode(pb.DecodeRequest(model="m", token_ids=_bytes(prompts[0])))
    assert '"z": {"type": "number", "maximum": 1e5}, "a": {"minimum": 0.10}' in decoded.text
    assert decoded.text.index('"zip"') < decoded.text.index('"add"')
    # The order of keys is the client's; its spacing is nobody's.
    assert prompts[0] == prompts[2] != prompts[1]


EMPTY_BLOCK = "<think>\n\n</think>\n\n"


@pytest.fixture
def thinking_dir(tmp_path: Path, smollm2_dir: Path) -> Path:
    """A model that thinks."""
    return write_thinking_model(tmp_path / "thinking", smollm2_dir)


async def test_a_block_that_stands_only_in_the_generation_prompt_forks_there(
    thinking_dir: Path, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    """That turn is encoded anew, and counted; everything before it is as it was."""
    whole = Tokenizer.from_file(str(thinking_dir / "tokenizer.json"))
    dialogue = begun()
    dialogue.tools = ()
    ids = [*byte_ids(TEXT, vocabulary), END]
    async with tokenizer_at(thinking_dir, engine.address) as stub:
        dialogue.thinking = cpb.REASONING_MODE_OFF
        first = await dialogue.ask(stub, engine, ids)
        assert first.prompt == whole.encode(chatml(dialogue) + EMPTY_BLOCK).ids
        before = {outcome: segments(outcome) for outcome in ("spliced", "rendered", "diverged")}
        second = await dialogue.add(first.message(), user("And?")).ask(stub, engine, ids)
        counted = {outcome: segments(outcome) - count for outcome, count in before.items()}
        assert counted == {"spliced": 0, "rendered": 1, "diverged": 0}
        assert second.prompt == whole.encode(chatml(dialogue) + EMPTY_BLOCK).ids
        kept = len(first.prompt) - len(whole.encode(EMPTY_BLOCK).ids)
        assert second.prompt[:kept] == first.prompt[:kept]
        # Without the block turns are faithful again.
        dialogue.thinking = cpb.REASONING_MODE_ON
        third = await dialogue.add(second.message(), user("More?")).ask(stub, engine, ids)
        fourth = await dialogue.add(third.message(), user("End?")).ask(stub, engine, ids)
        assert fourth.prompt[: len(third.prompt) + len(ids)] == third.prompt + ids


async def test_thinking_that_no_client_sends_back_returns_where_the_template_keeps_it(
    thinking_dir: Path, engine: ScriptedEngine, records: str, vocabulary: Vocabulary
) -> None:
    """From the memory, and from the store after a restart."""
    dialogue = begun()
    ids = [*byte_ids(f"<think>\nHm, 🦊?\n</think>\n\n{ONE_CALL}", vocabulary), END]
    turns: list[Turn] = []
    async with tokenizer_at(thinking_dir, engine.address, records=records) as stub:
        for _ in range(4):
            turn = await dialogue.ask(stub, engine, ids)
            assert turn.text == ""
            assert turn.reasoning == "Hm, 🦊?"
            turns.append(turn)
            said = turn.message(parsed_and_dumped)
            dialogue.add(said, *results(said))
        for previous, following in pairwise(turns):
            assert following.prompt[: len(previous.prompt) + len(ids)] == previous.prompt + ids
        prompt = await dialogue.encode(stub)
    async with (
        tokenizer_at(thinking_dir, engine.address, records=records) as restarted,
        tokenizer_at(thinking_dir, transcript_mode="canonical") as canonical,
    ):
        spliced = segments("spliced")
        assert await dialogue.encode(restarted) == prompt
        assert segments("spliced") == spliced + 4
        # Behind what the user says next the template drops it, and says so.
        diverged = segments("diverged")
        forked = await dialogue.add(user("Thanks.")).encode(restarted)
        assert segments("diverged") > diverged
        assert forked == await dialogue.encode(canonical)


def _bytes(ids: list[int]) -> bytes:
    return b"".join(one.to_bytes(4, "little") for one in ids)


async def test_thinking_sent_back_inside_the_text_is_the_same_turn(
    thinking_dir: Path, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    """Clients that do not know thinking keep it in the content."""
    dialogue = begun()
    ids = [*byte_ids(f"<think>\nHm.\n</think>\n\n{ONE_CALL}", vocabulary), END]
    async with tokenizer_at(thinking_dir, engine.address) as stub:
        first = await dialogue.ask(stub, engine, ids)
        said = first.message()
        echo = says(cpb.ROLE_ASSISTANT, f"<think>\nHm.\n</think>\n\n{first.text}")
        echo.calls.extend(said.calls)
        second = await dialogue.add(echo, *results(said)).ask(stub, engine, ids)
    assert second.prompt[: len(first.prompt) + len(ids)] == first.prompt + ids
