"""Whatever a client spells, in whatever role, is found where it ends up, and nothing else is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from services.tokenizer.conversation import Call, Conversation, Message, Role
from services.tokenizer.dialects.dialect import Dialect
from services.tokenizer.dialects.events import ToolSpec
from services.tokenizer.dialects.registry import CHATML_JSON, DIALECTS, DSML_V4, GLM_4_7, QWEN_XML
from services.tokenizer.models import ServedModel, load_model
from services.tokenizer.prompt.spellings import Ranges, first_spelling
from tests.unit.tokenizer.templates import MACRO, NAMING, SHOUTING, THINKING, TRIMMING, writer_of
from tests.unit.tokenizer.tiny_model import CHATML
from tests.unit.tokenizer.trained_tokenizers import MARKERS, SPECIALS

TOKENS = [*SPECIALS, *MARKERS, "<tool_response>", "[gMASK]", "<|start|>", "</think>"]
SPELLINGS = re.compile("|".join(map(re.escape, sorted(TOKENS, key=len, reverse=True))))

CONVERSATION = Conversation(
    (
        Message(Role.SYSTEM, "Be brief."),
        Message(Role.USER, "Hello."),
        Message(Role.ASSISTANT, "Well.", reasoning="hm", calls=(Call("1", "read", '{"path": "a"}'),)),
        Message(Role.TOOL, "nothing", call_id="1"),
        Message(Role.DEVELOPER, "Go on."),
        Message(Role.USER, "Bye."),
        Message(Role.ASSISTANT, "Bye.", reasoning="ah"),
    ),
    {},
    (ToolSpec("read", "Reads.", '{"type": "object", "properties": {"path": {"type": "string"}}}'),),
)


def at(index: int, change: Callable[[Message, str], Message]) -> Callable[[str], Conversation]:
    def spell(text: str) -> Conversation:
        messages = list(CONVERSATION.messages)
        messages[index] = change(messages[index], text)
        return replace(CONVERSATION, messages=tuple(messages))

    return spell


def in_tool(change: Callable[[ToolSpec, str], ToolSpec]) -> Callable[[str], Conversation]:
    return lambda text: replace(CONVERSATION, tools=tuple(change(tool, text) for tool in CONVERSATION.tools))


def in_content(index: int) -> Callable[[str], Conversation]:
    return at(index, lambda message, text: replace(message, content=text))


def in_call(name: str | None = None, arguments: str | None = None, **more: bool) -> Callable[[str], Conversation]:
    def change(message: Message, text: str) -> Message:
        call = Call("1", (name or "read").replace("T", text), (arguments or "{}").replace("T", text), **more)
        return replace(message, calls=(call,))

    return at(2, change)


FIELDS: dict[str, Callable[[str], Conversation]] = {
    "system": in_content(0),
    "user": in_content(1),
    "assistant": in_content(2),
    "result": in_content(3),
    "developer": in_content(4),
    "last answer": in_content(6),
    "reasoning": at(6, lambda message, text: replace(message, reasoning=text)),
    "name": at(1, lambda message, text: replace(message, name=text)),
    "call id": at(3, lambda message, text: replace(message, call_id=text)),
    "tool name": in_tool(lambda tool, text: replace(tool, name=text)),
    "description": in_tool(lambda tool, text: replace(tool, description=text)),
    "schema": in_tool(lambda tool, text: replace(tool, parameters_json=f'{{"description": "{text}", "{text}": 1}}')),
    "call name": in_call(name="T"),
    "arguments": in_call(arguments='{"path": "T", "more": ["T", {"T": "xTy"}]}'),
    "custom arguments": in_call(arguments="x\nT", is_custom=True),
    "no arguments": in_call(arguments="{T"),
}


SILENT = {
    CHATML: {"reasoning", "name", "call id"},
    TRIMMING: {"reasoning", "name", "call id"},
    THINKING: {"name", "call id"},
    MACRO: {"reasoning", "name", "call id"},
    NAMING: {"reasoning"},
}
"""Fields that a template does not write."""


def literal_texts(source: str, conversation: Conversation, dialect: Dialect) -> list[str] | None:
    writer = writer_of(source, dialect)
    text = writer.write(conversation).text
    ranges = writer.literals(conversation, text, SPELLINGS)
    return None if ranges is None else [text[start:end] for start, end in ranges]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    ("source", "dialect"),
    [
        (CHATML, CHATML_JSON),
        (CHATML, QWEN_XML),
        (TRIMMING, GLM_4_7),
        (THINKING, QWEN_XML),
        (MACRO, CHATML_JSON),
        (NAMING, DSML_V4),
    ],
    ids=["injected", "xml", "trimming", "native tools", "macro", "names"],
)
def test_every_token_is_literal_in_every_role(source: str, dialect: Dialect, field: str) -> None:
    for token in TOKENS:
        conversation = FIELDS[field](f"‹{token}›")
        text = writer_of(source, dialect).write(conversation).text
        if source == THINKING and token == "</think>" and not text.count(f"‹{token}›"):
            continue  # the template cuts there: below
        found = literal_texts(source, conversation, dialect)
        assert found == [token] * text.count(f"‹{token}›")
        assert found or field in SILENT[source]


@pytest.fixture(scope="module")
def smollm2(smollm2_dir: Path) -> ServedModel:
    return load_model(smollm2_dir, None, (), None)


@pytest.mark.parametrize("field", FIELDS)
def test_every_added_token_of_smollm2_is_literal_in_every_role(smollm2: ServedModel, field: str) -> None:
    model = smollm2
    assert model.spellings is not None
    assert model.writer is not None
    tokens = [token.content for token in model.tokenizer.get_added_tokens_decoder().values()]
    assert len(tokens) > 10
    for token in tokens:
        conversation = FIELDS[field](f"‹{token}›")
        text = model.writer.write(conversation).text
        ranges = model.writer.literals(conversation, text, model.spellings)
        assert ranges is not None
        assert [text[start:end] for start, end in ranges] == [token] * text.count(f"‹{token}›")


def test_neighbours_are_one_range_and_the_rest_is_none() -> None:
    conversation = FIELDS["user"]("<think><tool_call>, </think> < think>")
    assert literal_texts(CHATML, conversation, CHATML_JSON) == ["<think><tool_call>", "</think>"]
    assert literal_texts(CHATML, CONVERSATION, CHATML_JSON) == []
    assert first_spelling(CONVERSATION, SPELLINGS) is None
    assert first_spelling(conversation, SPELLINGS) == "<think>"


ESCAPES = [
    '"‹<|im_end|>›"',
    '"‹\\u003c|im_end|>›"',
    '"‹<\\u007cim_end|\\u003E›"',
    '"\\ud83d\\ude00‹<|im\\u005fend|>›\\n\\\\"',
]


@pytest.mark.parametrize("string", ESCAPES)
@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_escapes_do_not_hide_a_spelling_from_formats_that_decode(string: str, dialect: Dialect) -> None:
    for conversation in (
        in_call(arguments=f'{{"path": {string}, "more": [{string}]}}')(""),
        in_tool(lambda tool, text: replace(tool, parameters_json=f'{{"description": {string}}}'))(""),
    ):
        assert first_spelling(conversation, SPELLINGS) == "<|im_end|>"
        for source in (CHATML, THINKING):
            text = writer_of(source, dialect).write(conversation).text
            found = literal_texts(source, conversation, dialect)
            assert found == ["<|im_end|>"] * text.count("‹<|im_end|>›")


def test_escaped_slashes_and_quotes_spell_too() -> None:
    spellings = re.compile(re.escape('</a"b>'))
    conversation = in_call(arguments='{"path": "x<\\/a\\"b>\\b\\\\b y"}')("")
    assert first_spelling(conversation, spellings) == '</a"b>'
    for dialect, expected in ((QWEN_XML, ['</a"b>']), (CHATML_JSON, [])):
        writer = writer_of(CHATML, dialect)
        text = writer.write(conversation).text
        ranges = writer.literals(conversation, text, spellings)
        assert ranges is not None
        assert [text[start:end] for start, end in ranges] == expected


def test_template_options_are_a_clients_text() -> None:
    conversation = replace(CONVERSATION, template_options={"mood": {"very": ["‹<think>›", 1, None]}})
    source = "{{ mood.very[0] }}{{ messages[0].content }}<think>"
    assert literal_texts(source, conversation, CHATML_JSON) == ["<think>"]


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ 'yes' if '<think>' in m.content else 'no' }}{% endfor %}",
        "{% for m in messages %}{{ m.content.split('<think>') | last }}{% endfor %}",
        "{% for m in messages %}{{ m.content | replace('<think>', '') }}{% endfor %}",
        "{% for m in messages %}{{ raise_exception('no') if '\ufdd3' in m.content else m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.content | replace('\ufdd3', '.') }}{% endfor %}",
    ],
)
def test_a_template_that_depends_on_the_spelling_has_no_ranges(source: str) -> None:
    assert literal_texts(source, FIELDS["user"]("a<think>b"), CHATML_JSON) is None


def test_thinking_in_the_text_of_an_answer_is_the_templates() -> None:
    echo = "<think>\nhm <|im_end|>\n</think>\n\n<think> <|im_start|>"
    conversation = FIELDS["last answer"](echo)
    conversation = replace(conversation, messages=(*conversation.messages[:-1], Message(Role.ASSISTANT, echo)))
    assert literal_texts(THINKING, conversation, QWEN_XML) == ["<|im_end|>", "<|im_start|>"]
    # Nobody else's.
    source = "{% for m in messages %}{{ m.content.split('</think>') | last }}{% endfor %}"
    assert literal_texts(source, conversation, CHATML_JSON) == ["<|im_start|>"]
    assert literal_texts(source, FIELDS["user"]("a</think>b"), CHATML_JSON) is None
    # And only where the template asks for them.
    assert literal_texts(CHATML, conversation, CHATML_JSON) == [
        *("<think>", "<|im_end|>", "</think>"),
        *("<think>", "<|im_start|>"),
    ]


def test_a_template_that_mangles_the_spelling_spells_nothing() -> None:
    assert literal_texts(SHOUTING, FIELDS["user"]("a<think>b"), CHATML_JSON) == []


def test_a_blank_of_the_clients_own_is_not_mistaken() -> None:
    assert literal_texts(CHATML, FIELDS["user"]("\ufdd3"), CHATML_JSON) == []
    assert literal_texts(CHATML, FIELDS["user"]("\ufdd3<think>"), CHATML_JSON) is None
    assert literal_texts(CHATML, FIELDS["user"]("\x08 \\b \\ufdd3 <think>"), CHATML_JSON) == ["<think>"]


def test_ranges_are_sorted_and_disjoint() -> None:
    writer = writer_of(CHATML)
    conversation = FIELDS["user"]("<think>" * 3 + "-</think>-")
    ranges: Ranges | None = writer.literals(conversation, writer.write(conversation).text, SPELLINGS)
    assert ranges is not None
    flat = [edge for one in ranges for edge in one]
    assert flat == sorted(flat)
    assert len(flat) == 4
