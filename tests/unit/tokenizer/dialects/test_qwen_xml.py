import pytest

from services.tokenizer.dialects.events import CallDelta, CallFinished, CallStarted, CallText, Text, ToolSpec
from services.tokenizer.dialects.qwen_xml import QwenXml
from tests.unit.tokenizer.dialects.answers import add_up, answer_of, merged, parse

DIALECT = QwenXml()
PYTHON = QwenXml(has_python_scalars=True)
TOOLS = (
    ToolSpec(
        "f",
        None,
        '{"properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"}, '
        '"o": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "r": {"$ref": "#/$defs/R"}}, '
        '"$defs": {"R": {"enum": ["x", "1"]}}}',
    ),
    ToolSpec("patch", None, "", is_custom=True),
)
TURN = """Looking.

<tool_call>
<function=f>
<parameter=s>
ls 2>&1

</parameter>
<parameter=n>
1e5
</parameter>
<parameter=a>
[1, {"b": "</parameter>"}]
</parameter>
</function>
</tool_call>
<tool_call>
<function=g>
</function>
</tool_call>"""
ARGUMENTS = '{"s": "ls 2>&1\\n", "n": 1e5, "a": [1, {"b": "</parameter>"}]}'


def call(*parameters: tuple[str, str], name: str = "f") -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def test_the_canonical_form_is_written():
    calls = [CallText("f", ARGUMENTS.replace(", ", ",")), CallText("g", "")]
    assert DIALECT.write_calls("Looking.", calls) == TURN


def test_the_canonical_form_is_read():
    assert merged(parse(DIALECT, [TURN], TOOLS)) == [
        Text("Looking."),
        CallStarted(0, "f"),
        CallDelta(0, ARGUMENTS),
        CallFinished(0, ARGUMENTS),
        CallStarted(1, "g"),
        CallDelta(1, "{}"),
        CallFinished(1, "{}"),
    ]


def test_strings_stream_as_they_arrive():
    parser = DIALECT.parser(TOOLS, starts_in_reasoning=False)
    parser.push("<tool_call>\n<function=f>\n<parameter=s>\n")
    assert parser.push('one "') == [CallDelta(0, '{"s": "'), CallDelta(0, 'one \\"')]
    assert parser.push("two\n</par") == [CallDelta(0, "two")]
    assert parser.push("x") == [CallDelta(0, "\\n</parx")]
    assert parser.push("\n</parameter>\n</function>") == [
        CallDelta(0, '"'),
        CallDelta(0, "}"),
        CallFinished(0, '{"s": "one \\"two\\n</parx"}'),
    ]


def test_a_string_streams_from_where_it_can_be_nothing_else():
    parser = DIALECT.parser(TOOLS, starts_in_reasoning=False)
    parser.push("<tool_call>\n<function=f>\n<parameter=o>\n")
    assert parser.push("nul") == []
    assert parser.push("lify ") == [CallDelta(0, '{"o": "'), CallDelta(0, "nullify ")]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("s", "1", '"1"'),
        ("s", '"quoted"', '"\\"quoted\\""'),
        ("s", "", '""'),
        ("n", "1", "1"),
        ("n", "one", '"one"'),
        ("n", " 1 ", "1"),
        ("b", "true", "true"),
        ("b", "True", "true"),
        ("n", "None", "null"),
        ("o", "null", "null"),
        ("o", "None", '"None"'),
        ("o", "5", '"5"'),
        ("o", " null", '" null"'),
        ("r", "1", '"1"'),
        ("undeclared", "1", "1"),
        ("undeclared", "1 2", '"1 2"'),
        ("undeclared", " 1", '" 1"'),
        ("undeclared", "1\n", '"1\\n"'),
        ("undeclared", '\n{"a": 1}\n', '{"a": 1}'),
        ("undeclared", '"1"', '"\\"1\\""'),
        ("undeclared", "True", '"True"'),
        ("undeclared", '{"a":1}', '{"a":1}'),
        ("undeclared", "{'a': 1}", "\"{'a': 1}\""),
    ],
)
def test_the_schema_decides_what_a_value_is(key: str, value: str, expected: str):
    assert answer_of(DIALECT, call((key, value)), TOOLS).calls == [("f", f'{{"{key}": {expected}}}')]


def test_scalars_in_pythons_form_survive_where_the_model_writes_them():
    text = call(("b", "True"), ("x", "None"), ("s", "False"))
    answer = answer_of(PYTHON, text, TOOLS)
    assert answer.calls == [("f", '{"b": true, "x": null, "s": "False"}')]
    assert PYTHON.write_calls("", [CallText(*answer.calls[0])]) == text


@pytest.mark.parametrize(
    "value",
    [
        "echo 2>&1",
        "a </parameter> b",
        "a\n</parameter>\nb",
        "</",
        "\n",
        "\n\n",
        "<parameter=x>",
        "</function>",
        "</tool_call>",
    ],
)
def test_a_value_like_a_tag_is_delivered_exactly_at_any_chunking(value: str):
    text = call(("s", value), ("n", "1"))
    answer = answer_of(DIALECT, text, TOOLS)
    assert len(answer.calls) == 1
    assert DIALECT.write_calls("", [CallText(*answer.calls[0])]) == text


def test_two_calls_to_one_tool_stay_apart():
    text = call(("s", "one")) + "\n" + call(("s", "two"))
    assert answer_of(DIALECT, text, TOOLS).calls == [("f", '{"s": "one"}'), ("f", '{"s": "two"}')]


def test_deltas_add_up_to_the_arguments_of_every_call():
    answer = add_up(parse(DIALECT, list(TURN), TOOLS))
    assert answer.arguments == [ARGUMENTS, "{}"] == [arguments for _, arguments in answer.calls]


def test_a_tag_in_a_container_is_escaped_where_it_would_end_the_value():
    inside = "</parameter></function>"
    turn = DIALECT.write_calls("", [CallText("f", f'{{"a": ["{inside}"]}}')])
    assert answer_of(DIALECT, turn, TOOLS).calls == [("f", f'{{"a": ["{inside}"]}}'.replace("<", "\\u003c"))]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call><function=f><parameter=n>1</parameter></function></tool_call>",
        "<tool_call>\n\n<function=f>\n\n<parameter=n>\n1\n</parameter>\n\n</function>\n\n</tool_call>\n",
        "<function=f>\n<parameter=n>\n1\n</parameter>\n</function>",
        "<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>",
        "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool",
        "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</tool_call>",
    ],
)
def test_malformed_calls_that_are_whole_are_calls(text: str):
    answer = answer_of(DIALECT, text, TOOLS)
    assert (answer.text, answer.calls, answer.malformed) == ("", [("f", '{"n": 1}')], [])


def test_several_functions_in_one_block_are_calls():
    text = "<tool_call>\n<function=f>\n</function>\n<function=g>\n</function>\n</tool_call>"
    assert answer_of(DIALECT, text).calls == [("f", "{}"), ("g", "{}")]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f\n</function>\n</tool_call>",
        '<tool_call>\n{"name": "f"}\n</tool_call>',
        "<tool_call>\n<function=f>\nwith\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=s>\nabc",
        "<tool_call>\n<function=f>\n<parameter=s>\nabc\n</parameter>\n",
        "<tool_call>\n<function=patch>\n</function>\n</tool_call>",
        "<function=f",
    ],
)
def test_what_is_no_whole_call_is_reported_and_never_finished(text: str):
    answer = answer_of(DIALECT, text, TOOLS)
    assert (answer.text, answer.calls) == ("", [])
    assert [one.text for one in answer.malformed] == [text]


def test_the_answer_goes_on_behind_a_broken_block():
    broken = "<tool_call>\n<function=f>\nwith\n</function>\n</tool_call>"
    answer = answer_of(DIALECT, f"{broken}\n{call(name='g')}\nDone.")
    assert (answer.calls, answer.text) == ([("g", "{}")], "\nDone.")


def test_a_call_behind_prose_about_its_tag_is_one():
    answer = answer_of(
        DIALECT, f"The tag <function= is\n<function=> or:\n{call().removeprefix('<tool_call>')[1:]}", TOOLS
    )
    assert (answer.text, answer.calls) == ("The tag ", [("f", "{}")])
    assert [one.text for one in answer.malformed] == ["<function= is\n", "<function=> or:\n"]


def test_unclosed_thinking_ends_at_the_call():
    answer = answer_of(DIALECT, f"I use <tool_call> now.\n{call()}", TOOLS, starts_in_reasoning=True)
    assert (answer.reasoning, answer.text, answer.calls) == ("I use <tool_call> now.\n", "", [("f", "{}")])


def test_a_custom_tool_takes_free_text():
    patch = '*** Begin\n-"a"\\n😀 </parameter>\n'
    turn = DIALECT.write_calls("Now.", [CallText("patch", patch, is_custom=True)])
    answer = answer_of(DIALECT, turn, TOOLS)
    assert answer.started == [CallStarted(0, "patch", is_custom=True)]
    assert (answer.text, answer.calls) == ("Now.", [("patch", patch)])
