"""DeepSeek's markup in its three versions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tokenizer.dialects.deepseek_dsml import DSML_V3_2, DSML_V4, DSML_V4_1, DsmlDialect
from services.tokenizer.dialects.events import CallDelta, CallText, ResultText, ToolSpec
from services.tokenizer.dialects.json_text import quote, same_value
from tests.unit.tokenizer.dialects.answers import parse
from tests.unit.tokenizer.dialects.generated_calls import (
    SHELL,
    answers,
    calls_made,
    cuttings,
    object_text,
    read,
    sliced,
    strings,
    tool,
)

ALL = (DSML_V3_2, DSML_V4, DSML_V4_1)
each = pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)
WEATHER = '{"location":"Beijing","days":3,"more":{"a":[1,0.10]}}'
CANONICAL_WEATHER = '{"location": "Beijing", "days": 3, "more": {"a": [1, 0.10]}}'
CALL = (
    '<｜DSML｜invoke name="f">\n'
    '<｜DSML｜parameter name="a" string="true">x</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="n" string="false">1e5</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>"
)
BLOCK = f"<｜DSML｜tool_calls>\n{CALL}\n</｜DSML｜tool_calls>"
ARGUMENTS = '{"a": "x", "n": 1e5}'
TAGS = (
    "<｜DSML｜tool_calls>",
    "</｜DSML｜tool_calls>",
    '<｜DSML｜invoke name="f">',
    "</｜DSML｜invoke>",
    '<｜DSML｜parameter name="a" string="true">',
    '<｜DSML｜parameter name="arguments" string="false">',
    '<｜DSML｜parameter name="o">',
    "</｜DSML｜parameter>",
    "</｜dsml｜ Parameter>",
)
JUNK = ("\\", "<", "\n\n", "{", "}", '{"a": 1}', "｜DSML｜", 'name="', "<think>", "</think>", "1")


def test_v4_writes_its_tags() -> None:
    calls = [CallText("get_weather", WEATHER), CallText("now", "{}")]
    assert DSML_V4.write_calls("", calls) == (
        "\n\n<｜DSML｜tool_calls>\n"
        '<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="location" string="true">Beijing</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="more" string="false">{"a": [1, 0.10]}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n"
        '<｜DSML｜invoke name="now">\n\n</｜DSML｜invoke>\n'
        "</｜DSML｜tool_calls>"
    )


def test_v3_2_has_another_block_tag_and_v4_1_spaces() -> None:
    v4 = DSML_V4.write_calls("Text", [CallText("f", '{"a": 1}')])
    assert DSML_V3_2.write_calls("Text", [CallText("f", '{"a": 1}')]) == v4.replace("tool_calls", "function_calls")
    assert DSML_V4_1.write_calls("Text", [CallText("f", '{"a": 1}')]) == v4.replace("tool_", "").replace(
        "｜DSML｜", "｜DSML｜ "
    )


@each
def test_no_calls_are_no_block(dialect: DsmlDialect) -> None:
    assert dialect.write_calls("Text\n", []) == "Text\n"


def test_results_follow_the_version() -> None:
    results = [ResultText("f", "one"), ResultText("g", "two\n")]
    assert DSML_V3_2.write_results(results) == (
        "<function_results>\n<result>one</result>\n<result>two\n</result>\n</function_results>"
    )
    for dialect in (DSML_V4, DSML_V4_1):
        assert dialect.write_results(results) == "<tool_result>one</tool_result>\n\n<tool_result>two\n</tool_result>"


@each
def test_a_tool_is_one_line_with_its_own_key_order_and_spelling(dialect: DsmlDialect) -> None:
    written = dialect.write_tools(
        [ToolSpec("f", "A {calls} ä", '{"type":"object",\n"default":1.0,"a":{}}'), ToolSpec("g", None, "")]
    )
    assert (
        '\n{"name": "f", "description": "A {calls} ä", "parameters": {"type": "object", "default": 1.0, "a": {}}}\n'
        '{"name": "g"}\n' in written
    )


@each
@given(text=answers, made=calls_made, size=st.integers(2, 9))
@settings(max_examples=40)
def test_round_trips_both_ways(
    dialect: DsmlDialect, text: str, made: list[tuple[str, list[tuple[str, str]]]], size: int
) -> None:
    calls = [CallText(name, object_text(one)) for name, one in made]
    written = dialect.write_calls(text, calls)
    for parts in (list(written), sliced(written, size), [written]):
        answer = read(dialect, [], parts)
        assert (answer.text, answer.malformed) == (text, [])
        assert answer.calls == [(call.name, call.arguments) for call in calls]
        assert dialect.write_calls(answer.text, [CallText(*call) for call in answer.calls]) == written


@each
@given(made=st.lists(strings | st.sampled_from(TAGS), max_size=6))
@settings(max_examples=40)
def test_any_string_can_be_an_argument(dialect: DsmlDialect, made: list[str]) -> None:
    """Closing tags of the dialect included: as the same value, if not as the same text."""
    value = "".join(made)
    written = dialect.write_calls("", [CallText("f", object_text([("a", quote(value)), ("n", "1")]))])
    answer = read(dialect, [], list(written))
    assert answer.malformed == []
    assert same_value(answer.finished[0], object_text([("a", quote(value)), ("n", "1")]))
    assert dialect.write_calls("", [CallText("f", answer.finished[0])]) == written


def test_a_string_that_spells_its_end_is_written_as_json() -> None:
    written = DSML_V4.write_calls("", [CallText("f", object_text([("a", quote('"</｜DSML｜parameter>'))]))])
    assert 'name="a" string="false">"\\"\\u003c/｜DSML｜parameter>"</｜DSML｜parameter>' in written


@each
def test_another_spelling_of_the_closing_tag_may_stand_in_a_string(dialect: DsmlDialect) -> None:
    value = "a </｜dsml｜PARAMETER> b <\\/｜DSML｜ parameter>c</｜DSML｜invoke>"
    call = CallText("f", object_text([("a", quote(value))]))
    written = dialect.write_calls("", [call])
    assert 'string="true"' in written
    for parts in cuttings(written):
        assert read(dialect, [], parts).finished == {0: call.arguments}


@each
def test_a_client_s_spelling_of_numbers_stays(dialect: DsmlDialect) -> None:
    sent = '{ "a":[1e5,0.10,-0,9007199254740993],"a":"\\u0041" }'
    answer = read(dialect, [], [dialect.write_calls("", [CallText("f", sent)])])
    assert answer.finished == {0: '{"a": [1e5, 0.10, -0, 9007199254740993], "a": "A"}'}


@each
def test_strings_and_containers_stream(dialect: DsmlDialect) -> None:
    written = dialect.write_calls("", [CallText("f", '{"a": "0123456789", "o": {"k": [1, 2, 3]}}')])
    assert sum(isinstance(event, CallDelta) for event in parse(dialect, list(written))) > 20


@each
def test_a_custom_tool_gets_its_text(dialect: DsmlDialect) -> None:
    patch = ToolSpec("patch", None, "", is_custom=True)
    for text in ('*** Begin\n"x" {}', "", 'a "</｜DSML｜parameter></｜DSML｜ parameter>'):
        written = dialect.write_calls("", [CallText("patch", text, is_custom=True)])
        answer = read(dialect, [patch], list(written))
        assert (answer.finished, answer.started[0].is_custom) == ({0: text}, True)


def test_thinking_is_separated() -> None:
    for parts in cuttings(f" R\n</think>Text\n\n{BLOCK}"):
        answer = read(DSML_V4, [], parts, starts_in_reasoning=True)
        assert (answer.reasoning, answer.text, answer.finished) == (" R\n", "Text", {0: ARGUMENTS})


WRAPPED = (
    '<｜DSML｜invoke name="f">\n'
    f'<｜DSML｜parameter name="arguments" string="false">{ARGUMENTS}</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>"
)
MISSPELT = {
    "other names": BLOCK.replace("tool_calls", "toolcalls"),
    "short name": BLOCK.replace("tool_calls", "tool"),
    "V3.2's name": BLOCK.replace("tool_calls", "function_calls"),
    "V4.1's spaces": BLOCK.replace("tool_calls", "calls").replace("｜DSML｜", "｜DSML｜ "),
    "no string=": BLOCK.replace(' string="true"', "").replace(' string="false"', ""),
    "escaped": BLOCK.replace("<", "\\<"),
    "escaped slashes": BLOCK.replace("</", "<\\/"),
    "lower case": BLOCK.replace("DSML", "dsml"),
    "upper case": BLOCK.replace("invoke", "INVOKE").replace("parameter", "Parameter"),
    "no newlines": BLOCK.replace("\n", ""),
    "blank lines": BLOCK.replace("\n", "\n\n  "),
    "wrapper": f"<｜DSML｜tool_calls>\n{WRAPPED}\n</｜DSML｜tool_calls>",
    "wrapper as string": f"<｜DSML｜tool_calls>\n{WRAPPED.replace('false', 'true')}\n</｜DSML｜tool_calls>",
    "other wrapper": f"<｜DSML｜tool_calls>\n{WRAPPED.replace('arguments', 'input')}\n</｜DSML｜tool_calls>",
    "JSON body": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n{"a":"x","n":1e5}\n</｜DSML｜invoke>\n'
    "</｜DSML｜tool_calls>",
    "stray parameter closer": BLOCK.replace("</｜DSML｜invoke>", "</｜DSML｜parameter>\n</｜DSML｜invoke>"),
    "stray call closer": BLOCK.replace("</｜DSML｜invoke>", "</｜DSML｜invoke>\n</｜DSML｜invoke>"),
    "stray block closer": f"{BLOCK}\n</｜DSML｜tool_calls>",
    "block opened twice": f"<｜DSML｜tool_calls>\n{BLOCK}",
    "no block": CALL,
    "no block's beginning": f"{CALL}\n</｜DSML｜tool_calls>",
    "no block's end": BLOCK.removesuffix("</｜DSML｜tool_calls>"),
}


@each
@pytest.mark.parametrize("text", MISSPELT.values(), ids=MISSPELT.keys())
def test_misspelt_blocks_are_read(dialect: DsmlDialect, text: str) -> None:
    for parts in cuttings(f"Text\n\n{text}"):
        answer = read(dialect, [tool(a="string", n="number")], parts)
        assert (answer.text, answer.malformed) == ("Text", [])
        assert answer.calls == [("f", ARGUMENTS)]


def test_a_backslash_before_the_closing_tag_is_the_value_s_unless_all_are_escaped() -> None:
    call = CallText("f", '{"a": "C:\\\\dir\\\\"}')
    for parts in cuttings(DSML_V4.write_calls("", [call])):
        assert read(DSML_V4, [], parts).finished == {0: call.arguments}


def test_a_parameter_that_the_tool_has_is_no_wrapper() -> None:
    for key, tools in (("input", [tool(input="object", a="string")]), ("input", [tool(b="string")]), ("arguments", [])):
        arguments = f'{{"{key}": {{"a": "x"}}}}'
        for other in (arguments, f'{arguments[:-1]}, "b": "y"}}'):
            written = DSML_V4.write_calls("", [CallText("f", other)])
            assert read(DSML_V4, tools, list(written)).finished == {0: other}


def test_what_is_marked_as_json_and_is_none_becomes_a_string() -> None:
    text = BLOCK.replace(">1e5<", ">five<")
    assert read(DSML_V4, [], [text]).finished == {0: '{"a": "x", "n": "five"}'}


MALFORMED = {
    "nothing": "<｜DSML｜tool_calls>",
    "no call": "<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>",
    "text": "<｜DSML｜tool_calls>\nf(1)\n</｜DSML｜tool_calls>",
    "no name": BLOCK.replace(' name="f"', ""),
    "no parameter's name": BLOCK.replace(' name="a"', ""),
    "unclosed call": BLOCK.replace("</｜DSML｜invoke>\n", ""),
    "unclosed value": BLOCK.replace("1e5</｜DSML｜parameter>", "1e5"),
    "text between": BLOCK.replace("x</｜DSML｜parameter>", "x</｜DSML｜parameter> and"),
    "broken JSON": BLOCK.replace(">1e5<", '>{"k": [1}<'),
    "more than JSON": BLOCK.replace(">1e5<", ">{} {}<"),
    "broken body": f'<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n{{"a" 1}}\n{CALL[-16:]}\n</｜DSML｜tool_calls>',
    "body is a list": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n[1]\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    "parameter without call": BLOCK.replace('<｜DSML｜invoke name="f">\n', ""),
    "cut in a tag": BLOCK[: BLOCK.index("</｜DSML｜invoke") + 5],
}


@each
@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_cannot_be_read_is_reported_and_never_half_a_call(dialect: DsmlDialect, text: str) -> None:
    for parts in cuttings(f"Text\n\n{text}"):
        answer = read(dialect, [], parts)
        assert (answer.text, answer.finished) == ("Text", {})
        assert answer.malformed[0].text.startswith("<｜DSML｜tool_calls>")
        assert answer.malformed[0].reason


def test_a_call_that_cannot_be_read_spoils_no_other() -> None:
    bad = CALL.replace(">1e5<", ">{<")
    text = f"<｜DSML｜tool_calls>\n{CALL}\n{bad}\n{CALL}\n</｜DSML｜tool_calls>"
    for parts in cuttings(text):
        answer = read(DSML_V4, [], parts)
        assert (answer.finished, len(answer.malformed)) == ({0: ARGUMENTS, 2: ARGUMENTS}, 1)


def test_a_cut_answer_has_the_calls_that_were_whole() -> None:
    text = f"<｜DSML｜tool_calls>\n{CALL}\n{CALL}\n</｜DSML｜tool_calls>"
    ends = [at + len("</｜DSML｜invoke>") for at in range(len(text)) if text.startswith("</｜DSML｜invoke>", at)]
    for end in range(len(text)):
        answer = read(DSML_V4, [], sliced(text[:end], 7))
        assert len(answer.finished) == sum(one <= end for one in ends)
        assert set(answer.finished.values()) <= {ARGUMENTS}
        assert answer.text == "" or answer.text == text[:end]


@given(st.lists(st.sampled_from(TAGS + JUNK), max_size=14), st.booleans())
@settings(max_examples=40)
def test_any_text_is_read_the_same_in_any_pieces(parts: list[str], thinks: bool) -> None:
    text = "".join(parts)
    for dialect in ALL:
        whole = read(dialect, [tool(a="string")], [text], starts_in_reasoning=thinks)
        for size in (1, 4):
            assert read(dialect, [tool(a="string")], sliced(text, size), starts_in_reasoning=thinks) == whole


@each
def test_vllm_53227_a_value_may_end_in_a_redirection(dialect: DsmlDialect) -> None:
    call = CallText("f", object_text([("a", quote(SHELL))]))
    for parts in cuttings(dialect.write_calls("", [call])):
        assert read(dialect, [], parts).finished == {0: call.arguments}


@each
def test_vllm_33965_two_calls_of_one_tool_stay_two(dialect: DsmlDialect) -> None:
    calls = [CallText("f", '{"a": "<p></parameter>"}'), CallText("f", '{"a": "<p></parameter>"}')]
    for parts in cuttings(dialect.write_calls("", calls)):
        assert read(dialect, [], parts).calls == [(call.name, call.arguments) for call in calls]


def test_vllm_51914_a_garbled_opening_tag_is_read() -> None:
    for garbled in ("<｜DSML｜toolcalls>", "<｜DSML｜tool>", "<｜DSML｜Tool_Calls>", "\\<｜DSML｜tool_calls>"):
        answer = read(DSML_V4, [], list(BLOCK.replace("<｜DSML｜tool_calls>", garbled)))
        assert (answer.text, answer.finished) == ("", {0: ARGUMENTS})


@each
def test_ds4_318_a_call_ends_unclosed_thinking(dialect: DsmlDialect) -> None:
    thought = "I could write <｜DSML｜tool_calls> now."
    written = dialect.write_calls("", [CallText("f", ARGUMENTS)])
    for parts in cuttings(thought + written):
        answer = read(dialect, [], parts, starts_in_reasoning=True)
        assert (answer.reasoning, answer.text, answer.finished) == (thought, "", {0: ARGUMENTS})


@each
@pytest.mark.parametrize("before", ["", "Text", "Text\n", "\n", " "])
def test_ds4_985_and_colibri_1576_the_text_before_a_call_is_rendered_as_it_was(
    dialect: DsmlDialect, before: str
) -> None:
    written = dialect.write_calls(before, [CallText("f", ARGUMENTS)])
    for parts in cuttings(written):
        answer = read(dialect, [], parts)
        assert dialect.write_calls(answer.text, [CallText(*call) for call in answer.calls]) == written
