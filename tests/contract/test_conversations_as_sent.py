"""What agents send beside text and calls: pictures, files, reminders, formats, namespaces, prefills, odd histories."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from dialogue import Dialogue, byte_ids, results, says, text_part, tokenizer_at, user
from fencepost.tokenizer.v1 import conversation_pb2 as cpb
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb
from scripted_engine import ScriptedEngine

from services.identity import tokenizer_fingerprint
from services.vocabulary import Vocabulary, load_vocabulary
from tests.unit.tokenizer.templates import ALTERNATING, ASKED, SYSTEM_FIRST, THINKING

pytestmark = pytest.mark.asyncio(loop_scope="module")

END = 2
ANSWER_PROMPT = "<|im_start|>assistant\n"
TOOLS = [cpb.Tool(name="read", parameters_json='{"type": "object"}')]
CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a b", "n":1e5}}\n</tool_call>'
PICTURE = "[image/png image, not shown: this model takes text only]"
ADVICE = "Write your answer as one JSON object and nothing else: no text around it, no code fence."
SCHEMA_ADVICE = "Write your answer as JSON of this JSON Schema and nothing else: no text around it, no code fence.\n"
_tenants = count()


@pytest.fixture(scope="module")
def vocabulary(smollm2_dir: Path) -> Vocabulary:
    return load_vocabulary(smollm2_dir)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(smollm2_dir: Path) -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(tokenizer_fingerprint(smollm2_dir), context_tokens=100_000).serving() as scripted:
        yield scripted


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stub(smollm2_dir: Path, engine: ScriptedEngine) -> AsyncIterator[Any]:
    async with tokenizer_at(smollm2_dir, engine.address) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stub_by_template(
    smollm2_dir: Path, engine: ScriptedEngine, stub: Any, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[str, Any]]:
    """The same vocabulary with templates that take less."""
    stubs = {"chatml": stub}
    templates = {"system first": SYSTEM_FIRST, "alternating": ALTERNATING, "asked": ASKED, "native": THINKING}
    async with AsyncExitStack() as stack:
        for name, template in templates.items():
            target = tmp_path_factory.mktemp("model") / "m"
            target.mkdir()
            for file in ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"):
                (target / file).symlink_to(smollm2_dir / file)
            (target / "chat_template.jinja").write_text(template)
            stubs[name] = await stack.enter_async_context(tokenizer_at(target, engine.address))
        yield stubs


def begun(*messages: cpb.Message, tools: Sequence[cpb.Tool] = ()) -> Dialogue:
    return Dialogue([says(cpb.ROLE_SYSTEM, "s"), *messages], tools, f"tenant {next(_tenants)}")


async def prompt_text(stub: Any, dialogue: Dialogue) -> str:
    """The prompt; all calls have the same one."""
    ids = await dialogue.encode(stub)
    assert await dialogue.count(stub) == len(ids)
    pair = pb.ConversationPair(left=dialogue.conversation, right=dialogue.conversation)
    explained = await stub.ExplainPrefix(pb.ExplainPrefixRequest(model="m", routing=dialogue.routing, pair=pair))
    assert not explained.HasField("at_token")
    token_ids = b"".join(one.to_bytes(4, "little") for one in ids)
    return (await stub.Decode(pb.DecodeRequest(model="m", token_ids=token_ids))).text


def chatml(*turns: tuple[str, str]) -> str:
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in (("system", "s"), *turns))


PNG = cpb.Part(image=cpb.ImagePart(media_type="image/png", data=b"\x89PNG"))
PDF = cpb.Part(document=cpb.DocumentPart(media_type="application/pdf", title="a.pdf", data=b"%PDF"))
NOTES = cpb.Part(document=cpb.DocumentPart(media_type="text/plain", title="notes.txt", text="Buy milk.\n"))


async def test_pictures_and_files_are_placeholders_and_text(stub: Any, engine: ScriptedEngine) -> None:
    asked = cpb.Message(role=cpb.ROLE_USER, parts=[text_part("Look:"), PNG, PDF, NOTES])
    call = cpb.Message(role=cpb.ROLE_ASSISTANT, calls=[cpb.Call(call_id="1", name="read", arguments="{}")])
    shown = cpb.Message(role=cpb.ROLE_TOOL, call_id="1", parts=[PNG])
    dialogue = begun(asked, call, shown)
    text = await prompt_text(stub, dialogue)
    pdf = '[application/pdf document "a.pdf", not shown: this model takes text only]'
    assert (
        text
        == chatml(
            ("user", f"Look:\n{PICTURE}\n{pdf}\nnotes.txt\nBuy milk.\n"),
            ("assistant", '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'),
            ("user", f"<tool_response>\n{PICTURE}\n</tool_response>"),
        )
        + ANSWER_PROMPT
    )
    turn = await dialogue.ask(stub, engine, [END])
    assert turn.prompt == await dialogue.encode(stub)
    # The same picture in another form, as clients echo it.
    asked.parts[1].image.CopyFrom(cpb.ImagePart(media_type="image/png", uri="https://files/1.png"))
    assert await prompt_text(stub, dialogue) == text


@pytest.mark.parametrize(
    ("asked_for", "advice"),
    [
        (cpb.OutputFormat(json_object=cpb.JsonObject()), ADVICE),
        (
            cpb.OutputFormat(json_schema=cpb.JsonSchema(name="n", schema_json='{"b" :1e5,"a":{}}', strict=True)),
            SCHEMA_ADVICE + '{"b" :1e5,"a":{}}',
        ),
        (cpb.OutputFormat(json_schema=cpb.JsonSchema(name="n")), ADVICE),
    ],
)
async def test_an_output_format_is_advice_at_the_end(
    asked_for: cpb.OutputFormat, advice: str, stub: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    dialogue = begun(user("q"))
    free = await dialogue.ask(stub, engine, [*byte_ids("a", vocabulary), END])
    assert list(free.finished.warnings) == []
    dialogue.output_format = asked_for
    assert await prompt_text(stub, dialogue) == chatml(("user", f"q\n\n{advice}")) + ANSWER_PROMPT
    turn = await dialogue.ask(stub, engine, [*byte_ids("{}", vocabulary), END])
    # Enforced besides.
    assert list(turn.finished.warnings) == []
    assert turn.prompt == await dialogue.encode(stub)
    # Everything before what is asked last is as it is without.
    dialogue.add(turn.message(), user("again"))
    following = await prompt_text(stub, dialogue)
    assert following == chatml(("user", "q"), ("assistant", "{}"), ("user", f"again\n\n{advice}")) + ANSWER_PROMPT
    dialogue.output_format = None
    assert following.replace(f"\n\n{advice}", "") == await prompt_text(stub, dialogue)


async def test_an_output_format_goes_behind_a_result_and_before_a_prefill(stub: Any) -> None:
    call = cpb.Message(role=cpb.ROLE_ASSISTANT, calls=[cpb.Call(call_id="1", name="read", arguments="{}")])
    dialogue = begun(user("q"), call, *results(call))
    dialogue.output_format = cpb.OutputFormat(json_object=cpb.JsonObject())
    behind = f"<tool_response>\ndone\n\n{ADVICE}\n</tool_response>"
    assert (await prompt_text(stub, dialogue)).endswith(f"{behind}<|im_end|>\n{ANSWER_PROMPT}")
    dialogue.add(says(cpb.ROLE_ASSISTANT, "{"))
    assert (await prompt_text(stub, dialogue)).endswith(f"{behind}<|im_end|>\n{ANSWER_PROMPT}{{")
    alone = Dialogue([says(cpb.ROLE_SYSTEM, "s")], output_format=dialogue.output_format)
    assert await prompt_text(stub, alone) == f"<|im_start|>system\ns\n\n{ADVICE}<|im_end|>\n{ANSWER_PROMPT}"


async def test_forbidden_calls_change_nothing_in_the_prompt_and_reach_nobody(
    stub: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    dialogue = begun(user("q"), tools=TOOLS)
    allowed = await dialogue.encode(stub)
    dialogue.tool_mode = cpb.TOOL_CHOICE_MODE_NONE
    ids = [*byte_ids(f"Well.\n{CALL}", vocabulary), END]
    for step in (1, 1000):
        turn = await dialogue.ask(stub, engine, ids, step)
        assert turn.prompt == allowed
        assert turn.text == "Well."
        assert {event.WhichOneof("event") for event in turn.events} == {"admitted", "text_delta", "finished"}
        assert turn.finished.reason == pb.FINISH_REASON_STOP
        assert list(turn.finished.warnings) == ["a call of read was left out: the request allows no calls"]
    # What was sampled stands in the next prompt all the same.
    dialogue.add(turn.message(), user("And now?"))
    assert (await dialogue.encode(stub))[: len(allowed) + len(ids)] == allowed + ids
    # Without tools there are no calls: markup is text.
    plain = await begun(user("q")).ask(stub, engine, ids)
    assert plain.text == f"Well.\n{CALL}"


@pytest.mark.parametrize("is_flat", [False, True])
async def test_a_namespace_is_flattened_for_the_model_and_comes_back(
    is_flat: bool, stub: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    tools = [
        cpb.Tool(namespace="mcp__files", name="read", parameters_json='{"type": "object"}'),
        cpb.Tool(namespace="mcp__mail", name="read", parameters_json='{"type": "object"}'),
        cpb.Tool(namespace="edit", name="patch", kind=cpb.CALL_KIND_CUSTOM),
        *TOOLS,
    ]
    dialogue = begun(user("q"), tools=tools)
    prompt = await prompt_text(stub, dialogue)
    for name in ("mcp__files__read", "mcp__mail__read", "edit__patch", "read"):
        assert f'"name": "{name}"' in prompt
    patch = '*** "a\\n"\n+<b>\n'
    written = (
        '<tool_call>\n{"name": "mcp__mail__read", "arguments": {"n":1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "edit__patch", "arguments": {"input":"*** \\"a\\\\n\\"\\n+<b>\\n"}}\n</tool_call>'
    )
    ids = [*byte_ids(written, vocabulary), END]
    turn = await dialogue.ask(stub, engine, ids)
    started = [event.call_started for event in turn.events if event.HasField("call_started")]
    assert [(one.namespace, one.name, one.kind) for one in started] == [
        ("mcp__mail", "read", cpb.CALL_KIND_FUNCTION),
        ("edit", "patch", cpb.CALL_KIND_CUSTOM),
    ]
    deltas = [event.call_delta for event in turn.events if event.HasField("call_delta")]
    assert "".join(one.fragment for one in deltas if one.index == 1) == patch
    said = turn.message()
    assert said.calls[1].arguments == patch
    if is_flat:
        # As clients do that know no namespaces.
        for call in said.calls:
            call.name = f"{call.namespace}__{call.name}"
            call.ClearField("namespace")
    dialogue.add(said, *results(said))
    assert (await dialogue.encode(stub))[: len(turn.prompt) + len(ids)] == turn.prompt + ids


async def test_a_tool_without_a_namespace_has_none(stub: Any, engine: ScriptedEngine, vocabulary: Vocabulary) -> None:
    turn = await begun(user("q"), tools=TOOLS).ask(stub, engine, [*byte_ids(CALL, vocabulary), END])
    (started,) = [event.call_started for event in turn.events if event.HasField("call_started")]
    assert (started.HasField("namespace"), started.name) == (False, "read")


async def test_a_custom_calls_echo_is_the_same_bytes_without_a_record(stub: Any) -> None:
    patch = '*** "a\\n"\n+<b> é\n'
    tools = [cpb.Tool(name="patch", kind=cpb.CALL_KIND_CUSTOM)]
    call = cpb.Call(call_id="1", name="patch", kind=cpb.CALL_KIND_CUSTOM, arguments=patch)
    said = cpb.Message(role=cpb.ROLE_ASSISTANT, calls=[call])
    text = await prompt_text(stub, begun(user("q"), said, *results(said), tools=tools))
    assert '{"name": "patch", "arguments": {"input": "*** \\"a\\\\n\\"\\n+<b> é\\n"}}' in text


async def test_an_answer_that_was_begun_goes_on(stub: Any, engine: ScriptedEngine, vocabulary: Vocabulary) -> None:
    dialogue = begun(user("q"), says(cpb.ROLE_ASSISTANT, "The answer is <|im_end|> "))
    text = await prompt_text(stub, dialogue)
    assert text == chatml(("user", "q")) + f"{ANSWER_PROMPT}The answer is <|im_end|> "
    turn = await dialogue.ask(stub, engine, [*byte_ids("42.", vocabulary), END])
    assert turn.prompt == await dialogue.encode(stub)
    # Whoever joins the two has a history that goes on from there.
    dialogue.messages[-1] = says(cpb.ROLE_ASSISTANT, "The answer is <|im_end|> 42.")
    assert (await prompt_text(stub, dialogue.add(user("Why?")))).startswith(f"{text}42.<|im_end|>\n")
    # After calls, or nothing at all, there is nothing to go on with.
    call = cpb.Message(role=cpb.ROLE_ASSISTANT, calls=[cpb.Call(call_id="1", name="read", arguments="{}")])
    for last in (call, says(cpb.ROLE_ASSISTANT, ""), cpb.Message(role=cpb.ROLE_ASSISTANT)):
        assert (await prompt_text(stub, begun(user("q"), last))).endswith(f"<|im_end|>\n{ANSWER_PROMPT}")


async def test_a_prefill_of_a_whole_answer_keeps_its_ids(
    stub: Any, engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    dialogue, ids = begun(user("q")), byte_ids("An answer.", vocabulary)
    turn = await dialogue.ask(stub, engine, [*ids, END])
    assert await dialogue.add(turn.message()).encode(stub) == turn.prompt + ids


def system(text: str) -> cpb.Message:
    return says(cpb.ROLE_SYSTEM, text)


@pytest.mark.parametrize("name", ["chatml", "system first", "alternating", "asked"])
async def test_reminders_and_odd_histories_keep_every_token(
    name: str, stub_by_template: dict[str, Any], engine: ScriptedEngine, vocabulary: Vocabulary
) -> None:
    stub = stub_by_template[name]
    stray = cpb.Message(role=cpb.ROLE_TOOL, call_id="nobody's", parts=[text_part("r")])
    failed = cpb.Message(role=cpb.ROLE_TOOL, call_id="nobody's", is_error=True)
    following: list[list[cpb.Message]] = [
        [says(cpb.ROLE_DEVELOPER, "d"), user("a"), system("Mind the time.")],
        [stray, failed, stray],
        [system("It is late."), user("b"), user(""), user("c")],
        [user("d"), cpb.Message(role=cpb.ROLE_USER, parts=[text_part(""), PNG, text_part("")])],
        [system("Two."), system("Three.")],
    ]
    dialogue, previous = begun(tools=TOOLS), list[int]()
    for index, messages in enumerate(following):
        written = f"{index}.\n{CALL}" if index % 2 else f"{index}."
        ids = [*byte_ids(written, vocabulary), END]
        turn = await dialogue.add(*messages).ask(stub, engine, ids)
        assert turn.prompt[: len(previous)] == previous
        assert turn.prompt == await dialogue.encode(stub)
        assert await dialogue.count(stub) == len(turn.prompt)
        previous = turn.prompt + ids
        said = turn.message()
        dialogue.add(said, *reversed(results(said)))


@pytest.mark.parametrize("name", ["chatml", "system first", "alternating", "asked", "native"])
async def test_no_odd_conversation_is_refused(name: str, stub_by_template: dict[str, Any]) -> None:
    stub = stub_by_template[name]
    answer = says(cpb.ROLE_ASSISTANT, "x")
    call = cpb.Message(
        role=cpb.ROLE_ASSISTANT,
        calls=[cpb.Call(call_id=one, name="read", arguments="{}") for one in ("1", "2")],
    )
    first, second = results(call)
    silent = cpb.Message(role=cpb.ROLE_TOOL, call_id="1")
    for messages in (
        [system("s")],
        [system("s"), says(cpb.ROLE_DEVELOPER, "d")],
        [answer],
        [answer, user("q")],
        [system("s"), answer, answer],
        [user("q"), answer],
        [user("q"), call],
        [user("q"), call, second, first, first],
        [user("q"), call, silent],
        [user("q"), first],
        [first],
        [user(""), user("")],
        [cpb.Message(role=cpb.ROLE_USER)],
        [user("q"), cpb.Message(role=cpb.ROLE_ASSISTANT), system("")],
        [user("q"), system("r"), call, system("r"), first, system("r"), second, system("r"), answer],
    ):
        dialogue = Dialogue(messages, TOOLS, f"tenant {next(_tenants)}")
        assert await prompt_text(stub, dialogue) == await prompt_text(stub, dialogue)
