"""GLM's markup in both forms."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tokenizer.dialects.events import CallDelta, CallText, ResultText, ToolSpec
from services.tokenizer.dialects.glm_xml import GLM_4_5, GLM_4_7, GlmDialect
from services.tokenizer.dialects.json_text import quote, same_value
from tests.unit.tokenizer.dialects.answers import parse
from tests.unit.tokenizer.dialects.generated_calls import (
    SHELL,
    answers,
    calls_made,
    cuttings,
    object_text,
    read,
    schema_of,
    sliced,
    strings,
    tool,
)

both = pytest.mark.parametrize("dialect", [GLM_4_5, GLM_4_7], ids=lambda dialect: dialect.name)


def test_4_5_writes_newlines_between_tags() -> None:
    calls = [CallText("f", '{"a":"x\\ny","n":1e5,"o":{"k":[1,0.10]}}'), CallText("g", "{}")]
    assert GLM_4_5.write_calls("\nText", calls) == (
        "\nText\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x\ny</arg_value>\n<arg_key>n</arg_key>\n"
        '<arg_value>1e5</arg_value>\n<arg_key>o</arg_key>\n<arg_value>{"k": [1, 0.10]}</arg_value>\n</tool_call>'
        "\n<tool_call>g\n</tool_call>"
    )


def test_4_7_writes_nothing_between_tags() -> None:
    calls = [CallText("f", '{"a":"x","n":-0}'), CallText("g", "")]
    assert GLM_4_7.write_calls("Text", calls) == (
        "Text<tool_call>f<arg_key>a</arg_key><arg_value>x</arg_value><arg_key>n</arg_key><arg_value>-0</arg_value>"
        "</tool_call><tool_call>g</tool_call>"
    )


def test_results_follow_the_form() -> None:
    results = [ResultText("f", "one\n"), ResultText("g", "")]
    assert GLM_4_5.write_results(results) == (
        "\n<tool_response>\none\n\n</tool_response>\n<tool_response>\n\n</tool_response>"
    )
    assert GLM_4_7.write_results(results) == "<tool_response>one\n</tool_response><tool_response></tool_response>"


@both
def test_tools_keep_their_key_order_and_spelling(dialect: GlmDialect) -> None:
    written = dialect.write_tools([ToolSpec("f", "D {example}", '{"required":["z"],"default":1.0}')])
    assert (
        '{"type": "function", "function": {"name": "f", "description": "D {example}", '
        '"parameters": {"required": ["z"], "default": 1.0}}}' in written
    )


@both
@given(text=answers, made=calls_made, size=st.integers(1, 9))
@settings(max_examples=40)
def test_round_trips_both_ways(
    dialect: GlmDialect, text: str, made: list[tuple[str, list[tuple[str, str]]]], size: int
) -> None:
    # Each call gets a tool of its own, since a tool has one schema.
    tools = [ToolSpec(f"{name}_{index}", None, schema_of(one)) for index, (name, one) in enumerate(made)]
    calls = [CallText(tool.name, object_text(one)) for tool, (_, one) in zip(tools, made, strict=True)]
    written = dialect.write_calls(text, calls)
    for cut in (sliced(written, 1), sliced(written, size), [written]):
        answer = read(dialect, tools, cut)
        assert (answer.text, answer.malformed) == (text, [])
        assert answer.calls == [(call.name, call.arguments) for call in calls]
        assert dialect.write_calls(answer.text, [CallText(*call) for call in answer.calls]) == written


@both
@given(value=strings)
@settings(max_examples=40)
def test_a_declared_string_is_read_back_whatever_it_looks_like(dialect: GlmDialect, value: str) -> None:
    call = CallText("f", object_text([("a", quote(value))]))
    answer = read(dialect, [tool(a="string")], sliced(dialect.write_calls("", [call]), 5))
    assert answer.finished == {0: call.arguments}


@both
@pytest.mark.parametrize(
    ("declared", "value", "expected"),
    [
        ("string", "5", '"5"'),
        ("string", "null", '"null"'),
        ("integer", "5", "5"),
        ("integer", "five", '"five"'),
        ("object", '{"k":1}', '{"k":1}'),
        (["string", "null"], "null", "null"),
        (["string", "null"], "5", '"5"'),
        (None, "5", "5"),
        (None, '{"a": 1e5}', '{"a": 1e5}'),
        (None, "text", '"text"'),
        (None, '"quoted"', '"\\"quoted\\""'),
    ],
)
def test_the_schema_decides_the_type(dialect: GlmDialect, declared: object, value: str, expected: str) -> None:
    tools = [tool() if declared is None else tool(a=declared)]
    text = f"<tool_call>f<arg_key>a</arg_key><arg_value>{value}</arg_value></tool_call>"
    for cut in cuttings(text):
        assert read(dialect, tools, cut).finished == {0: f'{{"a": {expected}}}'}


@both
def test_strings_and_containers_stream(dialect: GlmDialect) -> None:
    call = CallText("f", '{"a": "0123456789", "o": {"k": [1, 2, 3]}}')
    written = dialect.write_calls("", [call])
    events = parse(dialect, list(written), [tool(a="string", o="object")])
    assert sum(isinstance(event, CallDelta) for event in events) > 20


@both
def test_a_value_may_spell_its_closing_tag(dialect: GlmDialect) -> None:
    value = "say </arg_value> and <arg_value></arg_value>, then </tool_call>"
    call = CallText("f", object_text([("a", quote(value))]))
    written = dialect.write_calls("", [call])
    for cut in cuttings(written):
        assert read(dialect, [tool(a="string")], cut).finished == {0: call.arguments}


@both
def test_a_json_value_that_spells_what_ends_it_is_sheltered(dialect: GlmDialect) -> None:
    arguments = '{"o": ["</arg_value></tool_call>"]}'
    answer = read(dialect, [tool(o="array")], [dialect.write_calls("", [CallText("f", arguments)])])
    assert same_value(answer.finished[0], arguments)


@both
def test_duplicate_keys_stay(dialect: GlmDialect) -> None:
    call = CallText("f", '{"a": "1", "a": "2"}')
    assert read(dialect, [tool(a="string")], [dialect.write_calls("", [call])]).finished == {0: call.arguments}


@both
def test_a_custom_tool_gets_its_text(dialect: GlmDialect) -> None:
    text = '*** Begin\n"x" </arg_value> {}'
    written = dialect.write_calls("", [CallText("patch", text, is_custom=True)])
    answer = read(dialect, [ToolSpec("patch", None, "", is_custom=True)], sliced(written, 3))
    assert answer.finished == {0: text}


def test_one_form_is_read_by_the_other() -> None:
    call = CallText("f", '{"a": "x", "n": 1}')
    for writer, reader in ((GLM_4_5, GLM_4_7), (GLM_4_7, GLM_4_5)):
        assert read(reader, [], sliced(writer.write_calls("", [call]), 2)).finished == {0: call.arguments}


def test_thinking_and_its_whitespace_are_separated() -> None:
    written = "\n<think>R</think>\nText" + GLM_4_5.write_calls("", [CallText("f", "{}")])
    for cut in cuttings(written):
        answer = read(GLM_4_5, [], cut)
        assert (answer.reasoning, answer.text, answer.finished) == ("R", "Text", {0: "{}"})


def test_vllm_53227_a_value_may_end_in_a_redirection() -> None:
    call = CallText("f", object_text([("a", quote(SHELL))]))
    for dialect in (GLM_4_5, GLM_4_7):
        for cut in cuttings(dialect.write_calls("", [call])):
            assert read(dialect, [tool(a="string")], cut).finished == {0: call.arguments}


def test_vllm_33965_two_calls_of_one_tool_stay_two() -> None:
    calls = [CallText("f", '{"a": "<p></parameter>"}'), CallText("f", '{"a": "2"}')]
    for dialect in (GLM_4_5, GLM_4_7):
        for cut in cuttings(dialect.write_calls("", calls)):
            assert read(dialect, [tool(a="string")], cut).finished == {0: calls[0].arguments, 1: calls[1].arguments}


def test_ds4_318_a_call_ends_unclosed_thinking() -> None:
    written = "I think about <tool_call> tags.\n<tool_call>f\n</tool_call>"
    for cut in cuttings(written):
        answer = read(GLM_4_5, [], cut, starts_in_reasoning=True)
        assert answer.reasoning.rstrip("\n") == "I think about <tool_call> tags."
        assert answer.finished == {0: "{}"}


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("<tool_call>", {}),
        ("<tool_call></tool_call>", {}),
        ("<tool_call>f", {}),
        ("<tool_call>f<arg_key>a</arg_key>", {}),
        ("<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>", {}),
        ("<tool_call>f<arg_key>a</arg_key>1</tool_call>", {}),
        ("<tool_call>f<arg_key>a</tool_call><tool_call>g</tool_call>", {}),
        ("<tool_call>f\njunk</tool_call>", {}),
        ("<tool_call>f\n<tool_call>g</tool_call>", {1: "{}"}),
        ("<tool_call>f\njunk<arg_key></tool_call><tool_call>g</tool_call>", {1: "{}"}),
        ('<tool_call>f<arg_key>o</arg_key><arg_value>{"k":</arg_value></tool_call>', {}),
        ("<tool_call>" + "n" * 300 + "</tool_call><tool_call>g</tool_call>", {0: "{}"}),
    ],
)
def test_what_cannot_be_read_is_reported_and_never_half_a_call(text: str, finished: dict[int, str]) -> None:
    for cut in cuttings(text):
        answer = read(GLM_4_7, [tool(o="object")], cut)
        assert answer.finished == finished
        assert answer.malformed
        assert answer.malformed[0].text.startswith("<tool_call>")
        assert answer.text == ""


@both
@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
                                 "</arg_value>", "f", "a", "\n", "{", "1", "<", "<think>", "</think>"]), max_size=14),
       st.booleans())  # fmt: skip
@settings(max_examples=60)
def test_any_text_is_read_the_same_in_any_sliced(dialect: GlmDialect, parts: list[str], thinks: bool) -> None:
    text = "".join(parts)
    whole = read(dialect, [tool(a="string")], [text], starts_in_reasoning=thinks)
    for size in (1, 4):
        again = read(dialect, [tool(a="string")], sliced(text, size), starts_in_reasoning=thinks)
        assert again == whole
