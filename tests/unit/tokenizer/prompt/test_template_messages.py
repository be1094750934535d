"""Conversations as agents send them, in templates that take less: never refused, never moved, never unsaid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import pytest

from services.tokenizer.conversation import Call, Conversation, Message, Role
from services.tokenizer.dialects.deepseek_dsml import DSML_V3_2, DSML_V4, DSML_V4_1, DsmlDialect
from services.tokenizer.dialects.deepseek_encode import END as DEEPSEEK_END
from services.tokenizer.dialects.events import ToolSpec
from services.tokenizer.prompt.appending import AppendingWriter, AppendLimits
from services.tokenizer.prompt.encoder_template import DeepseekTemplate
from services.tokenizer.prompt.layout import PromptWriter
from tests.unit.tokenizer.templates import (
    ALTERNATING,
    ASKED,
    DROPPING,
    HOISTING,
    MACRO,
    SYSTEM_FIRST,
    THINKING,
    TRIMMING,
    writer_of,
)
from tests.unit.tokenizer.tiny_model import CHATML

READ = ToolSpec("read", None, '{"type": "object"}')
REMINDED = "<system-reminder>\nMind the time.\n</system-reminder>"


def system(text: str) -> Message:
    return Message(Role.SYSTEM, text)


def developer(text: str) -> Message:
    return Message(Role.DEVELOPER, text)


def user(text: str) -> Message:
    return Message(Role.USER, text)


def says(text: str) -> Message:
    return Message(Role.ASSISTANT, text)


def calls(*call_ids: str, text: str = "") -> Message:
    return Message(Role.ASSISTANT, text, calls=tuple(Call(call_id, "read", "{}") for call_id in call_ids))


def result(call_id: str | None, text: str, *, is_error: bool = False) -> Message:
    return Message(Role.TOOL, text, call_id=call_id, is_error=is_error)


def turns(source: str, *messages: Message, tools: tuple[ToolSpec, ...] = ()) -> list[tuple[str, str]]:
    """Role and content of every message in the prompt, without the generation prompt."""
    text = writer_of(source).write(Conversation(messages, {}, tools)).text
    assert text.endswith("<|im_start|>assistant\n")
    written = [turn.removesuffix("<|im_end|>\n") for turn in text.split("<|im_start|>")[1:-1]]
    pairs = [turn.split("\n", 1) for turn in written]
    return [(role, content) for role, content in pairs]


@pytest.mark.parametrize("source", [CHATML, MACRO, ASKED])
def test_where_the_template_takes_them_system_messages_stay(source: str) -> None:
    found = turns(source, system("a"), developer("b"), user("c"), system("d"), says("e"), developer("f"), user("g"))
    assert found == [
        ("system", "a"),
        ("system", "b"),
        ("user", "c"),
        ("system", "d"),
        ("assistant", "e"),
        ("system", "f"),
        ("user", "g"),
    ]


@pytest.mark.parametrize("source", [SYSTEM_FIRST, DROPPING, HOISTING])
def test_elsewhere_they_are_reminders_in_the_users_turn(source: str) -> None:
    mind = system("Mind the time.")
    assert turns(source, system("a"), user("b"), mind, says("c"), mind, user("d")) == [
        ("system", "a"),
        ("user", f"b\n\n{REMINDED}"),
        ("assistant", "c"),
        ("user", f"{REMINDED}\n\nd"),
    ]
    assert turns(source, user("b"), says("c"), mind, says("d"), developer("Mind the time.")) == [
        ("user", "b"),
        ("assistant", "c"),
        ("user", REMINDED),
        ("assistant", "d"),
        ("user", REMINDED),
    ]
    assert turns(source, user("b"), mind, mind, system(""), user("c")) == [
        ("user", f"b\n\n{REMINDED}\n\n{REMINDED}"),
        ("user", "c"),
    ]


def test_a_reminder_behind_a_result_belongs_to_the_result() -> None:
    """So that it begins no question: thinking is kept only behind the last one."""
    answered = [user("b"), calls("1", text="Well."), result("1", "r"), system("Mind the time.")]
    assert turns(SYSTEM_FIRST, *answered, tools=(READ,))[-1] == (
        "user",
        f"<tool_response>\nr\n</tool_response>\n\n{REMINDED}",
    )
    assert turns(NATIVE_SYSTEM_FIRST, *answered, tools=(READ,))[-1] == ("tool", f"r\n\n{REMINDED}")


NATIVE_SYSTEM_FIRST = "{%- for tool in tools or [] %}{% set shown = tool | tojson %}{% endfor %}" + SYSTEM_FIRST


def test_several_system_messages_at_the_beginning_are_one() -> None:
    for source in (SYSTEM_FIRST, DROPPING):
        assert turns(source, system("a"), developer("b"), user("c")) == [("system", "a\n\nb"), ("user", "c")]
    assert turns(HOISTING, system("a"), developer("b"), user("c")) == [
        ("system", "a"),
        ("system", "b"),
        ("user", "c"),
    ]


def test_without_a_system_role_its_text_begins_the_first_question() -> None:
    assert turns(ALTERNATING, system("a"), system("b"), user("c"), says("d"), user("e")) == [
        ("user", "a\n\nb\n\nc"),
        ("assistant", "d"),
        ("user", "e"),
    ]
    assert turns(ALTERNATING, system("a"), says("d"), user("e"))[0] == ("user", "a")
    role, content = turns(ALTERNATING, user("c"), tools=(READ,))[0]
    assert role == "user"
    assert content.startswith("# Tools\n\n")
    assert content.endswith("\n\nc")


def test_questions_in_a_row_are_one_where_they_must_alternate() -> None:
    asked = (user("a"), user("b"), user(""), says("c"), says("d"), user("e"))
    assert turns(ALTERNATING, *asked) == [
        ("user", "a\n\nb"),
        ("assistant", "c"),
        ("user", ""),
        ("assistant", "d"),
        ("user", "e"),
    ]
    assert turns(CHATML, *asked) == [
        ("user", "a"),
        ("user", "b"),
        ("user", ""),
        ("assistant", "c"),
        ("assistant", "d"),
        ("user", "e"),
    ]


def test_a_conversation_need_not_begin_with_a_question() -> None:
    assert turns(CHATML, says("a"), user("b")) == [("assistant", "a"), ("user", "b")]
    assert turns(ALTERNATING, says("a"), user("b")) == [("user", ""), ("assistant", "a"), ("user", "b")]
    assert turns(ASKED, system("s"), calls("1", text="a"), user("b"))[:2] == [("system", "s"), ("user", "")]
    assert turns(CHATML, system("s")) == [("system", "s")]
    assert turns(ASKED, system("s")) == [("system", "s"), ("user", "")]
    assert turns(ALTERNATING, system("s")) == [("user", "s")]


def test_results_stand_as_they_came() -> None:
    """In their order, however many for one call, and of calls that nobody made."""
    messages = (
        user("a"),
        calls("1", "2"),
        result("2", "second"),
        result("1", "first"),
        result("1", "again"),
        result("9", "whose?"),
        result(None, ""),
        result("1", "", is_error=True),
        result("2", "no such file", is_error=True),
    )
    texts = ["second", "first", "again", "whose?", "", "[the call failed]", "no such file"]
    blocks = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in texts)
    assert turns(CHATML, *messages, tools=(READ,))[-1] == ("user", blocks)
    assert turns(ALTERNATING, *messages, tools=(READ,))[-1] == ("user", blocks)
    native = turns(THINKING, *messages, tools=(READ,))[-1]
    assert native == ("user", blocks)
    assert turns(NATIVE_SYSTEM_FIRST, *messages, tools=(READ,))[2:] == [("tool", text) for text in texts]


def test_results_need_no_calls_before_them() -> None:
    block = "<tool_response>\nr\n</tool_response>"
    assert turns(CHATML, result("1", "r")) == [("user", block)]
    assert turns(ALTERNATING, user("a"), result("1", "r"), user("b")) == [("user", f"a\n\n{block}\n\nb")]
    assert turns(ALTERNATING, system("s"), result("1", "r")) == [("user", f"s\n\n{block}")]


def test_results_go_into_the_users_turn_where_the_template_has_no_role_for_them() -> None:
    source = "{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}" + ALTERNATING
    text = writer_of(source).write(Conversation((user("a"), calls("1"), result("1", "r")), {}, (READ,))).text
    assert "<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>" in text


def deepseek(dialect: DsmlDialect) -> PromptWriter:
    return PromptWriter(DeepseekTemplate(dialect), dialect, DEEPSEEK_END)


WRITERS = {
    **{
        name: writer_of(source)
        for name, source in {
            "chatml": CHATML,
            "trimming": TRIMMING,
            "macro": MACRO,
            "system first": SYSTEM_FIRST,
            "native, system first": NATIVE_SYSTEM_FIRST,
            "dropping": DROPPING,
            "alternating": ALTERNATING,
            "asked": ASKED,
        }.items()
    },
    "deepseek v3.2": deepseek(DSML_V3_2),
    "deepseek v4": deepseek(DSML_V4),
    "deepseek v4.1": deepseek(DSML_V4_1),
}
AGENTS = {
    "reminders": [
        system("You are an agent."),
        developer("Be brief."),
        user("a"),
        system("Mind the time."),
        says("one"),
        system("It is late."),
        user("b"),
        calls("1", "2", text="two"),
        result("2", "second"),
        result("1", "first"),
        system("Two files are open."),
        says("three"),
        user("c"),
        user("d"),
        says("four"),
        developer("No more questions."),
        says("five"),
    ],
    "no question": [system("s"), says("one"), user("a"), says("two"), result("x", "r"), says("three")],
    "only a system message": [system("s"), says("one"), says("two"), system("t"), says("three")],
    "odd results": [user("a"), calls("1"), result("9", ""), result("1", "r"), calls("2"), result("2", "s"), says("x")],
}


def prompts(writer: PromptWriter | AppendingWriter, messages: Sequence[Message]) -> list[tuple[str, str]]:
    """The prompt in front of each answer, and with the answer."""
    tools = (READ,)
    found: list[tuple[str, str]] = []
    for index, message in enumerate(messages):
        if message.role is not Role.ASSISTANT or index == 0:
            continue
        before = Conversation(tuple(messages[:index]), {}, tools, enable_thinking=False)
        text = writer.write(before, "k").text if isinstance(writer, AppendingWriter) else writer.write(before).text
        found.append((text, message.content))
    return found


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("name", WRITERS)
def test_each_prompt_goes_on_from_the_one_before_and_its_answer(name: str, agent: str) -> None:
    writer = WRITERS[name]
    following = prompts(writer, AGENTS[agent])
    for (prompt, answer), (next_prompt, _) in pairwise(following):
        assert next_prompt.startswith(prompt + answer)
    # And incrementally.
    assert prompts(AppendingWriter(writer, AppendLimits(min_chars=0)), AGENTS[agent]) == following


@pytest.mark.parametrize("name", [name for name in WRITERS if not name.startswith("deepseek")])
def test_every_message_is_said_once_and_in_order(name: str) -> None:
    messages = [
        Message(message.role, f"[{index}]", calls=message.calls, call_id=message.call_id)
        for index, message in enumerate(AGENTS["reminders"])
    ]
    text = WRITERS[name].write(Conversation(tuple(messages), {}, (READ,))).text
    assert re.findall(r"\[\d+\]", text) == [message.content for message in messages]
