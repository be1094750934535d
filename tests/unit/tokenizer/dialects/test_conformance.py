import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tokenizer.dialects.call_free import CallFreeParser
from services.tokenizer.dialects.events import CallText, ResultText, Text, ToolSpec, Withheld, flat_name
from tests.unit.tokenizer.dialects.answers import add_up, merged, parse, pieces
from tests.unit.tokenizer.dialects.conformance import (
    CASES,
    FRAGMENTS,
    Case,
    check_chunking,
    check_cut_off,
    check_never_raises,
    check_round_trip,
    check_text_is_prompt,
    turns,
)

TOOLS = (
    ToolSpec("f", None, '{"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}'),
    ToolSpec("patch", None, "", is_custom=True),
)
SOUP = (
    *FRAGMENTS,
    '{"name": "f", "arguments": {',
    '"name": "f"',
    '"arguments": ',
    '"parameters": ',
    '"{\\"a\\": 1}"',
    '"\\ud83d\\ude00\\u',
    '{"name": "patch", "arguments": {"input": "a\\nb"}}',
    ", ",
    ": ",
    "1e5",
    "```json\n",
    "f>",
    "<function=f>\n<parameter=s>\n",
    "<function=patch>",
    "<parameter=input>\n",
    "\n</parameter>\n",
    "<arg_value>",
    "</arg_key>",
    '<｜DSML｜invoke name="f">\n',
    '<｜DSML｜parameter name="s" string="true">',
    "</｜DSML｜invoke>",
    "</｜DSML｜tool_calls>",
)

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
quick = settings(max_examples=20, deadline=None)


@each_case
@quick
@given(data=st.data())
def test_turns_survive_rendering_and_parsing_both_ways(case: Case, data: st.DataObject):
    check_round_trip(case, data.draw(turns(case)))


@each_case
@quick
@given(data=st.data())
def test_streamed_events_equal_those_of_the_whole_text(case: Case, data: st.DataObject):
    turn = data.draw(turns(case))
    rendered = case.dialect.write_calls(turn.text, turn.calls)
    check_chunking(case, rendered, turn.tools, data.draw(st.lists(st.integers(0, len(rendered)))))


@each_case
@quick
@given(data=st.data())
def test_a_cut_answer_never_has_half_a_call(case: Case, data: st.DataObject):
    turn = data.draw(turns(case))
    rendered = case.dialect.write_calls(turn.text, turn.calls)
    check_cut_off(case, turn, data.draw(st.integers(0, len(rendered))))
    check_cut_off(case, turn, len(rendered))


@each_case
@quick
@given(data=st.data())
def test_text_is_held_only_while_it_may_become_a_block(case: Case, data: st.DataObject):
    check_text_is_prompt(case, data.draw(turns(case)))


@each_case
@settings(max_examples=50, deadline=None)
@given(parts=st.lists(st.sampled_from(SOUP) | st.text(max_size=3), max_size=14), starts_in_reasoning=st.booleans())
def test_any_text_is_read_without_an_exception(case: Case, parts: list[str], starts_in_reasoning: bool):
    check_never_raises(case, "".join(parts), TOOLS, starts_in_reasoning=starts_in_reasoning)


@each_case
def test_calls_to_one_tool_stay_apart_at_every_pair_of_cuts(case: Case):
    calls = [CallText("f", '{"s": "a </x> 2>&1", "n": 1}'), CallText("f", '{"s": "b", "n": 2}')]
    rendered = case.dialect.write_calls("Both.", calls)
    whole = merged(parse(case.dialect, [rendered], TOOLS))
    for first in range(len(rendered)):
        assert merged(parse(case.dialect, pieces(rendered, [first, first + 3]), TOOLS)) == whole


@each_case
def test_arguments_that_are_no_object_can_be_rendered(case: Case):
    for arguments in ("", " ", "ls -la", "[1]", "{", '"x"', "null", "{'a': 1}"):
        rendered = case.dialect.write_calls("", [CallText("f", arguments)])
        check_never_raises(case, rendered, TOOLS, starts_in_reasoning=False)


@each_case
@pytest.mark.parametrize(
    "text",
    [
        "*** Begin Patch\n*** Update File: a.py\n@@\n-print(\"a\\n\")\n+print('<b>')\n*** End Patch\n",
        '{"input": "this is no JSON to anybody"}',
        '"quoted"',
        "null",
        "",
        "\n",
        "  \\u00e9 é 😀",
    ],
)
def test_a_custom_tools_text_arrives_as_it_is_and_is_written_again(case: Case, text: str):
    tools = [ToolSpec("patch", "Applies a patch.", "", is_custom=True)]
    assert '"input"' in case.dialect.write_tools(tools)
    rendered = case.dialect.write_calls("Now.", [CallText("patch", text, is_custom=True)])
    for parts in ([rendered], list(rendered)):
        answer = add_up(parse(case.dialect, parts, tools))
        assert (answer.text, answer.calls, answer.arguments) == ("Now.", [("patch", text)], [text])
        assert [call.is_custom for call in answer.started] == [True]
        echoed = [CallText("patch", answer.finished[0], is_custom=True)]
        assert case.dialect.write_calls(answer.text, echoed) == rendered


@each_case
def test_a_tool_in_a_namespace_is_called_by_one_name(case: Case):
    tool = ToolSpec(flat_name("mcp__files", "read"), None, '{"type": "object"}', namespace="mcp__files")
    assert (tool.name, tool.bare_name) == ("mcp__files__read", "read")
    assert '"mcp__files__read"' in case.dialect.write_tools([tool])
    rendered = case.dialect.write_calls("", [CallText(tool.name, '{"a": 1}')])
    assert add_up(parse(case.dialect, [rendered], [tool])).calls == [("mcp__files__read", '{"a": 1}')]


@each_case
def test_calls_are_withheld_where_none_are_allowed(case: Case):
    rendered = case.dialect.write_calls("Both.", [CallText("f", '{"s": "a"}'), CallText("patch", "x", is_custom=True)])
    for parts in ([rendered], list(rendered)):
        parser = CallFreeParser(case.dialect.parser(TOOLS, starts_in_reasoning=False))
        events = [event for part in parts for event in parser.push(part)] + parser.finish()
        assert "".join(event.text for event in events if isinstance(event, Text)) == "Both."
        assert [event for event in events if not isinstance(event, Text)] == [Withheld("f"), Withheld("patch")]


@each_case
def test_results_and_tools_are_written_in_order(case: Case):
    results = case.dialect.write_results([ResultText("f", "first"), ResultText("f", "second", is_error=True)])
    assert results.index("first") < results.index("second")
    schema = '{"z": 1e5, "a": {"type" : "object"}}'
    assert '{"z": 1e5, "a": {"type": "object"}}' in case.dialect.write_tools([ToolSpec("f", "Does f.", schema)])
