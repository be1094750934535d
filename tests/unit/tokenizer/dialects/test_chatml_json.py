import json

import pytest

from services.tokenizer.dialects.chatml_json import ChatmlJson
from services.tokenizer.dialects.events import (
    CallDelta,
    CallFinished,
    CallStarted,
    CallText,
    Malformed,
    Reasoning,
    ResultText,
    Text,
    ToolSpec,
)
from services.tokenizer.dialects.json_text import quote
from tests.unit.tokenizer.dialects.answers import add_up, answer_of, merged, parse

DIALECT = ChatmlJson()
TWO_CALLS = (
    'Looking.\n<tool_call>\n{"name": "f", "arguments": {"a": 1e5, "b": "</tool_call>"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
)


def call(arguments: str, name: str = "f") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_the_canonical_form_is_written():
    calls = [CallText("f", '{"a":1e5,"b" : "</tool_call>"}'), CallText("g", "{}")]
    assert DIALECT.write_calls("Looking.", calls) == TWO_CALLS
    assert DIALECT.write_calls("Just text.\n", []) == "Just text.\n"
    assert DIALECT.write_calls("", calls[1:]) == call("{}", "g")


def test_the_canonical_form_is_read():
    assert merged(parse(DIALECT, [TWO_CALLS])) == [
        Text("Looking."),
        CallStarted(0, "f"),
        CallDelta(0, '{"a": 1e5, "b": "</tool_call>"}'),
        CallFinished(0, '{"a": 1e5, "b": "</tool_call>"}'),
        CallStarted(1, "g"),
        CallDelta(1, "{}"),
        CallFinished(1, "{}"),
    ]


def test_arguments_stream_as_they_arrive():
    parser = DIALECT.parser((), starts_in_reasoning=False)
    assert parser.push('<tool_call>\n{"name": "f') == []
    assert parser.push('", "arg') == [CallStarted(0, "f")]
    assert parser.push('uments": {"a": "one ') == [CallDelta(0, '{"a": "one ')]
    assert parser.push("two") == [CallDelta(0, "two")]
    assert parser.push('"}') == [CallDelta(0, '"}')]
    assert parser.push("}") == [CallFinished(0, '{"a": "one two"}')]
    assert parser.push("\n</tool_call>") == []
    assert parser.finish() == []


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
        '<tool_call>\n\n{ "name" :"f","arguments":{"a": 1} }\n</tool_call>\n\n',
        '<tool_call>\n{"name": "f", "parameters": {"a": 1}}\n</tool_call>',
        '<tool_call>\n{"arguments": {"a": 1}, "name": "f"}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": "{\\"a\\": 1}"}\n</tool_call>',
        '<tool_call>\n{"id": [{}], "name": "f", "arguments": {"a": 1}, "type": "function"}\n</tool_call>',
        '<tool_call>\n```json\n{"name": "f", "arguments": {"a": 1}}\n```\n</tool_call>',
        '<tool_call>\n[{"name": "f", "arguments": {"a": 1}}]\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n',
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_ca',
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}',
    ],
)
def test_malformed_calls_that_are_whole_are_calls(text: str):
    answer = answer_of(DIALECT, text)
    assert (answer.text, answer.calls, answer.malformed) == ("", [("f", '{"a": 1}')], [])


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n{"name": "g", "arguments": {}}\n</tool_call>',
        '<tool_call>\n[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call><tool_call>{"name": "g"}</tool_call>',
    ],
)
def test_several_calls_are_kept_apart(text: str):
    assert answer_of(DIALECT, text).calls == [("f", '{"a": 1}'), ("g", "{}")]


@pytest.mark.parametrize("arguments", ["null", '""', '" "', "{}"])
def test_no_arguments_are_an_empty_object(arguments: str):
    assert answer_of(DIALECT, call(arguments)).calls == [("f", "{}")]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n</tool_call>",
        "<tool_call>",
        "<tool_call>\nf(a=1)\n</tool_call>",
        '<tool_call>\n{"arguments": {"a": 1}}\n</tool_call>',
        '<tool_call>\n{"name": 1, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "name": "g"}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {}, "parameters": {}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": "ls -la"}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": "{} {}"}\n</tool_call>',
        "<tool_call>\n{'name': 'f', 'arguments': {}}\n</tool_call>",
        '<tool_call>\n{"name": "f", "arguments": {"a": tru}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"a": "two\nlines"}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"a": 1',
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}',
    ],
)
def test_what_is_no_whole_call_is_reported_and_never_finished(text: str):
    answer = answer_of(DIALECT, text)
    assert (answer.text, answer.calls) == ("", [])
    assert [one.text for one in answer.malformed] == [text]


def test_the_answer_goes_on_behind_a_broken_block():
    broken = '<tool_call>\n{"name": "f", "arguments": {"a": x}}\n</tool_call>'
    answer = answer_of(DIALECT, f"{broken}\n{call('{}', 'g')}\nDone.")
    assert answer.calls == [("g", "{}")]
    assert answer.text == "\nDone."
    assert [one.text for one in answer.malformed] == [broken]


def test_a_bare_object_and_a_call_in_prose_are_text():
    for text in ('{"name": "f", "arguments": {}}', '[Tool call: f({"a": 1})]', "```\nf(1)\n```\n"):
        assert merged(parse(DIALECT, [text])) == [Text(text)]


def test_history_shows_calls_as_calls_and_not_as_prose():
    """A model imitates what it sees: prose about calls in history would come back as prose."""
    turn = DIALECT.write_calls("", [CallText("f", '{"a": 1}')])
    assert turn.startswith("<tool_call>")
    assert answer_of(DIALECT, turn).calls == [("f", '{"a": 1}')]


def test_a_tool_nobody_declared_is_a_call():
    assert answer_of(DIALECT, call("{}", "unknown"), [ToolSpec("f", None, "{}")]).calls == [("unknown", "{}")]


def test_no_byte_of_a_block_is_in_text_or_reasoning():
    answer = answer_of(DIALECT, f"<think>\nHm.\n</think>\n\n{TWO_CALLS}\n\n")
    assert (answer.reasoning, answer.text) == ("Hm.", "Looking.")
    late = answer_of(DIALECT, call("{}") + " and on </tool_call></think>")
    assert late.text == " and on "


def test_unclosed_thinking_ends_at_the_call():
    answer = answer_of(DIALECT, f"I call f.\n{call('{}')}", starts_in_reasoning=True)
    assert (answer.reasoning, answer.text, answer.calls) == ("I call f.\n", "", [("f", "{}")])


def test_a_call_that_ended_the_thinking_streams():
    parser = DIALECT.parser((), starts_in_reasoning=True)
    events = parser.push('Hm.<tool_call>\n{"name": "f", "arguments": {"a": ')
    assert events == [Reasoning("Hm."), CallStarted(0, "f"), CallDelta(0, '{"a": ')]


@pytest.mark.parametrize("value", ["ls 2>&1", "a </tool_call> b", "</", "<tool_call>\n{", "x\n", ""])
def test_a_value_like_a_tag_is_delivered_exactly_at_any_chunking(value: str):
    arguments = f'{{"command": {quote(value)}}}'
    assert answer_of(DIALECT, call(arguments)).calls == [("f", arguments)]


def test_deltas_add_up_to_the_arguments_of_every_call():
    arguments = ['{"h2": "三大核心改进", "n": [1, {"a": -0}]}', '{"h2": "2>&1"}', '{"h2": "2>&1"}']
    text = "\n".join(map(call, arguments))
    answer = add_up(parse(DIALECT, list(text)))
    assert answer.arguments == arguments == [arguments for _, arguments in answer.calls]


def test_spelling_survives_the_round_trip():
    arguments = '{"z": 1e5, "a": 0.10, "n": -0, "i": 9007199254740993, "s": "\\u0041\\/", "a": null}'
    answer = answer_of(DIALECT, call(arguments))
    assert answer.calls == [("f", arguments)]
    assert DIALECT.write_calls("", [CallText("f", arguments)]) == call(arguments)


CUSTOM = (ToolSpec("patch", "Applies a patch.", "", is_custom=True),)


def test_a_custom_tool_takes_free_text():
    patch = '*** Begin\n-"a"\\n😀\n'
    turn = DIALECT.write_calls("", [CallText("patch", patch, is_custom=True)])
    answer = answer_of(DIALECT, turn, CUSTOM)
    assert answer.started == [CallStarted(0, "patch", is_custom=True)]
    assert answer.calls == [("patch", patch)]
    for arguments in (json.dumps({"input": patch}), json.dumps(patch), json.dumps({"x": 1, "input": patch})):
        assert answer_of(DIALECT, call(arguments, "patch"), CUSTOM).calls == [("patch", patch)]


@pytest.mark.parametrize("arguments", ["{}", "null", '{"input": 1}', "[]"])
def test_a_custom_call_without_its_text_is_malformed(arguments: str):
    answer = answer_of(DIALECT, call(arguments, "patch"), CUSTOM)
    assert (answer.calls, len(answer.malformed)) == ([], 1)


def test_a_custom_tools_text_streams():
    parser = DIALECT.parser(CUSTOM, starts_in_reasoning=False)
    parser.push('<tool_call>\n{"name": "patch", "arguments": {"inp')
    assert parser.push('ut": "one\\') == [CallDelta(0, "one")]
    assert parser.push("ntwo") == [CallDelta(0, "\ntwo")]
    assert isinstance(parser.finish()[-1], Malformed)


def test_results_follow_one_another():
    written = DIALECT.write_results([ResultText("f", "one\n"), ResultText(None, "two")])
    assert written == ("<tool_response>\none\n\n</tool_response>\n<tool_response>\ntwo\n</tool_response>")


def test_tools_stand_one_a_line_in_the_order_and_spelling_they_came_in():
    tools = [ToolSpec("f", 'Says "hi".', '{\n  "type": "object",\n  "a": 1e5\n}'), ToolSpec("g", None, ""), *CUSTOM]
    lines = DIALECT.write_tools(tools).split("<tools>\n")[1].split("\n</tools>")[0].split("\n")
    assert lines[0] == (
        '{"type": "function", "function": {"name": "f", "description": "Says \\"hi\\".", '
        '"parameters": {"type": "object", "a": 1e5}}}'
    )
    assert [json.loads(line)["function"]["name"] for line in lines] == ["f", "g", "patch"]
    assert json.loads(lines[2])["function"]["parameters"]["required"] == ["input"]
