"""Programs of calls allow exactly what their dialect writes, and no call that a tool's schema forbids."""

from __future__ import annotations

import dataclasses
import json
import string
from collections.abc import Sequence
from functools import cache
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from services.tokenizer.dialects.events import CallFinished, CallText, Malformed, ToolGrammar, ToolSpec
from services.tokenizer.dialects.registry import DIALECTS
from services.tokenizer.fence.callable import CallableTool, callable_tool
from services.tokenizer.fence.calls import CallRules, Thinking
from services.tokenizer.fence.program import GrammarSyntax, ProgramDraft, Relaxed
from tests.unit.tokenizer.dialects.answers import parse
from tests.unit.tokenizer.fence.agent_tools import CALLS, TOOLS, WRONG_CALLS, Schema, call, fields, text, tool, whole
from tests.unit.tokenizer.fence.walker import accepts

AUTO = CallRules(is_required=False, max_calls=None, thinking=Thinking.OVER, follows_text=False)
REQUIRED = CallRules(is_required=True, max_calls=None, thinking=Thinking.OVER, follows_text=False)
ONE_CALL = CallRules(is_required=True, max_calls=1, thinking=Thinking.OVER, follows_text=False)
PYTHON = "qwen_xml_python"
TYPED = ("qwen", "glm")
"""Dialects in which nothing marks a value's type."""

each_dialect = pytest.mark.parametrize("name", DIALECTS)


@cache
def _fenced(name: str, one: ToolSpec) -> CallableTool | None:
    return callable_tool(DIALECTS[name], one)


def program(name: str, tools: Sequence[ToolSpec], rules: CallRules = AUTO) -> ProgramDraft:
    fenced = [_fenced(name, one) for one in tools]
    draft = DIALECTS[name].fence([one for one in fenced if one is not None], rules)
    assert draft is not None
    return draft


def written(name: str, *calls: CallText, before: str = "") -> str:
    return DIALECTS[name].write_calls(before, calls)


@each_dialect
def test_calls_of_agents_are_allowed_as_they_are_written(name: str):
    auto, required = program(name, TOOLS), program(name, TOOLS, REQUIRED)
    calls = [one for one in CALLS if name != PYTHON or '"coords": null' not in one.arguments]
    for one in calls:
        assert accepts(required, written(name, one)), one
        assert accepts(auto, written(name, one)), one
        assert accepts(auto, written(name, one, before="I look into it: <b>.")), one
    assert accepts(required, written(name, *calls))
    assert accepts(auto, written(name, *calls, before="All."))


@each_dialect
def test_calls_that_no_schema_allows_are_not(name: str):
    auto, required = program(name, TOOLS), program(name, TOOLS, REQUIRED)
    for one in WRONG_CALLS:
        assert not accepts(required, written(name, one)), one
        assert not accepts(auto, written(name, CALLS[0], one, before="Both.")), one


@pytest.mark.parametrize("name", ["qwen_xml", PYTHON])
def test_a_call_without_its_tags_is_one_that_the_parser_reads(name: str):
    auto, one_call = program(name, TOOLS), program(name, TOOLS, dataclasses.replace(AUTO, max_calls=1))
    tagged = written(name, *CALLS[1:3])
    assert tagged.count("<tool_call>\n") == 2
    first, second = (
        tagged.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>").split("\n</tool_call>\n<tool_call>\n")
    )
    for closing, opening, end in product(("", "\n</tool_call>"), ("\n", "\n<tool_call>\n"), ("", "\n</tool_call>")):
        answer = f"Both.{first}{closing}{opening}{second}{end}"
        assert accepts(auto, answer), answer
        assert not accepts(one_call, answer)
        assert accepts(one_call, f"One.{first}{closing}")
        assert not accepts(program(name, TOOLS, REQUIRED), first + closing)
        for turn in (answer, f"One.{first}{closing}"):
            read = parse(DIALECTS[name], [turn], TOOLS)
            calls = [event.arguments for event in read if isinstance(event, CallFinished)]
            assert calls == [one.arguments for one in CALLS[1:3]][: len(calls)]
            assert len(calls) == turn.count("<function=")
            assert not any(isinstance(event, Malformed) for event in read)
    for wrong in ("\n", " ", "x", "\n</tool_call>\n", "\n</tool_call></tool_call>", "\n<tool_call>", "\n\n" + second):
        assert not accepts(auto, first + wrong)
    names = {one.name for one in TOOLS}
    for one in WRONG_CALLS:
        # What no tool is called is text.
        assert accepts(auto, written(name, one).removeprefix("<tool_call>\n")) is (one.name not in names), one


@each_dialect
def test_free_text_is_allowed_where_calls_are_not_required(name: str):
    assert accepts(program(name, TOOLS), "Just text.")
    assert not accepts(program(name, TOOLS, REQUIRED), "Just text.")
    assert not accepts(program(name, TOOLS, REQUIRED), written(name, CALLS[0], before="Text first."))
    assert not accepts(program(name, TOOLS, REQUIRED), "")


@each_dialect
def test_nothing_follows_the_last_call(name: str):
    for rules in (AUTO, REQUIRED):
        for after in ("\n", " ", "Done.", "</tool_call>"):
            assert not accepts(program(name, TOOLS, rules), written(name, CALLS[0]) + after)


@each_dialect
def test_a_call_that_is_cut_off_is_no_answer(name: str):
    draft = program(name, TOOLS, REQUIRED)
    answer = written(name, *CALLS[:3])
    whole_answers = {len(written(name, *CALLS[:count])) for count in (1, 2, 3)}
    accepted = {end for end in range(len(answer) + 1) if accepts(draft, answer[:end])}
    assert accepted <= whole_answers
    assert len(answer) in accepted


@each_dialect
def test_calls_are_counted_where_only_one_is_allowed(name: str):
    draft = program(name, TOOLS, ONE_CALL)
    assert accepts(draft, written(name, CALLS[0]))
    assert not accepts(draft, written(name, CALLS[0], CALLS[1]))
    three = CallRules(is_required=False, max_calls=3, thinking=Thinking.OVER, follows_text=False)
    assert accepts(program(name, TOOLS, three), written(name, *CALLS[:3]))
    assert not accepts(program(name, TOOLS, three), written(name, *CALLS[:4]))


@each_dialect
def test_only_the_tools_that_are_allowed_can_be_called(name: str):
    draft = program(name, TOOLS[:1], REQUIRED)
    assert accepts(draft, written(name, CALLS[0]))
    assert not accepts(draft, written(name, CALLS[1]))


@each_dialect
@pytest.mark.parametrize("names", [("Read", "ReadFile", "ReadFiles"), ("ReadFile", "Read"), ("a", "ab", "abc")])
def test_a_name_may_be_the_beginning_of_another(name: str, names: Sequence[str]):
    schema = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string"}}}
    draft = program(name, [tool(one, schema) for one in names], REQUIRED)
    for one in names:
        for arguments in ({}, {"x": 1}, {"y": "s"}, {"y": "", "x": 2}):
            assert accepts(draft, written(name, call(one, **arguments)))
        assert not accepts(draft, written(name, call(f"{one}x")))
        assert not accepts(draft, written(name, CallText(one, '{"x": 1, "x": 1}')))
    needy = program(name, [tool(one, schema | {"required": ["x"]}) for one in names], REQUIRED)
    assert accepts(needy, written(name, call(names[0], y="s", x=1)))
    assert not accepts(needy, written(name, call(names[0])))
    assert not accepts(needy, written(name, call(names[0], y="s")))


@each_dialect
@pytest.mark.parametrize("odd", ["mcp__srv__run-it", "functions.exec", "Über", "a b", "$filter", "x:y", "名前"])
def test_odd_names_of_tools_and_parameters_are_written_as_they_are(name: str, odd: str):
    draft = program(name, [tool(odd, fields("", **{odd: whole(), "plain": text()}))], REQUIRED)
    assert accepts(draft, written(name, call(odd, **{odd: 1, "plain": "s"})))


@pytest.mark.parametrize("name", ["qwen_xml", "glm_xml_4_5", "glm_xml_4_7", "deepseek_dsml_v4"])
@pytest.mark.parametrize("odd", ["a\nb", "a>\nb", "</arg_key>", '"><｜DSML｜parameter name="b', "<arg_key>", " "])
def test_names_that_no_reader_would_find_are_left_out(name: str, odd: str):
    dialect = DIALECTS[name]
    found = callable_tool(dialect, tool("f", fields("", **{odd: whole(), "plain": text()})))
    assert found is not None
    kept = [one.key for one in found.arguments.parameters]
    draft = program(name, [tool("f", fields("", **{odd: whole(), "plain": text()}))], REQUIRED)
    assert accepts(draft, written(name, call("f", plain="s")))
    assert kept in (["plain"], [odd, "plain"])
    if kept == ["plain"]:
        assert callable_tool(dialect, tool("f", fields("odd", odd=whole()) | {"properties": {odd: {}}})) is not None
        assert callable_tool(dialect, tool("f", {"properties": {odd: {}}, "required": [odd]})) is None
    named = callable_tool(dialect, tool(odd, fields("")))
    assert named is None or accepts(program(name, [tool(odd, fields(""))], REQUIRED), written(name, call(odd)))


@each_dialect
def test_a_tool_whose_arguments_are_open_takes_any_keys(name: str):
    for schema in ({"type": "object"}, {}, {"type": "object", "additionalProperties": {"type": "integer"}}):
        draft = program(name, [tool("f", schema)], REQUIRED)
        assert accepts(draft, written(name, call("f")))
        assert accepts(draft, written(name, call("f", a=1)))
        assert accepts(draft, written(name, call("f", a=1, b=2)))
    closed = program(name, [tool("f", {"type": "object", "additionalProperties": False})], REQUIRED)
    assert accepts(closed, written(name, call("f")))
    assert not accepts(closed, written(name, call("f", a=1)))


@each_dialect
def test_what_is_required_but_not_described_may_be_anything(name: str):
    draft = program(name, [tool("f", {"type": "object", "required": ["a"]})], REQUIRED)
    for value in (1, "s", None, [1], {"b": "c"}):
        assert accepts(draft, written(name, call("f", a=value)))
    assert not accepts(draft, written(name, call("f")))


@each_dialect
def test_a_tool_that_nothing_can_satisfy_is_left_out(name: str):
    assert callable_tool(DIALECTS[name], tool("f", {"properties": {"a": False}, "required": ["a"]})) is None
    assert DIALECTS[name].fence([], REQUIRED) is None


@each_dialect
def test_definitions_come_with_the_parameters_that_refer_to_them(name: str):
    schema: Schema = {
        "$ref": "#/$defs/Arguments",
        "$defs": {
            "Arguments": {
                "type": "object",
                "properties": {
                    "tree": {"$ref": "#/$defs/Tree"},
                    "pair": {"type": "array", "items": {"$ref": "#/definitions/a~1b%20%25"}},
                },
                "required": ["tree"],
            },
            "Tree": {
                "type": "object",
                "properties": {
                    "leaf": {"type": "integer"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
                },
                "additionalProperties": False,
            },
        },
        "definitions": {"a/b %": {"type": "boolean"}},
    }
    draft = program(name, [tool("f", schema)], REQUIRED)
    if name.startswith(TYPED):
        # Readers of these do not follow a reference to the whole, so to them the values may be strings.
        assert accepts(draft, written(name, call("f", tree={"leaf": 1})))
        return
    assert accepts(draft, written(name, call("f", pair=[True], tree={"children": [{"leaf": 1}, {"children": []}]})))
    assert not accepts(draft, written(name, call("f", tree={"children": [{"leaf": "1"}]})))
    assert not accepts(draft, written(name, call("f", tree={}, pair=[1])))


@each_dialect
def test_a_custom_tools_text_is_free_or_follows_its_grammar(name: str):
    free = ToolSpec("patch", None, "", is_custom=True)
    numbers = ToolSpec("sum", None, "", is_custom=True, grammar=ToolGrammar(GrammarSyntax.REGEX, "[0-9]+(\\+[0-9]+)*"))
    draft = program(name, [free, numbers], REQUIRED)
    assert accepts(draft, written(name, CallText("patch", '*** Begin\n+"a\\n"\n*** End', is_custom=True)))
    assert accepts(draft, written(name, CallText("sum", "1+22", is_custom=True)))
    assert not accepts(draft, written(name, CallText("sum", "1+", is_custom=True)))
    assert not accepts(draft, written(name, CallText("other", "1+", is_custom=True)))


def test_a_lark_grammar_has_no_place_in_a_json_string():
    patch = ToolSpec("patch", None, "", is_custom=True, grammar=ToolGrammar(GrammarSyntax.LARK, "start: /x/"))
    assert program("chatml_json", [patch]).relaxed == (Relaxed("tools.patch.input", "grammar"),)
    assert program("qwen_xml", [patch]).relaxed == ()


@each_dialect
def test_thinking_comes_before_the_program(name: str):
    thought, tags = "Hm, </b> first.", DIALECTS[name].think_tags
    call_text = written(name, CALLS[0])
    spaces = {"chatml_json": "\n\n", "qwen_xml": "\n\n", "qwen_xml_python": "\n\n"}
    whole_answer = f"{thought}</think>{spaces.get(name, '')}{call_text}"
    for thinking in (Thinking.GATED, Thinking.SPELT):
        rules = CallRules(is_required=True, max_calls=1, thinking=thinking, follows_text=False)
        assert accepts(program(name, TOOLS, rules), whole_answer)
        assert not accepts(program(name, TOOLS, rules), call_text)
    possible = CallRules(is_required=True, max_calls=1, thinking=Thinking.POSSIBLE, follows_text=False)
    assert accepts(program(name, TOOLS, possible), call_text)
    assert accepts(program(name, TOOLS, possible), tags.opening.rstrip() + whole_answer)
    assert not accepts(program(name, TOOLS, possible), whole_answer)
    gated = CallRules(is_required=False, max_calls=1, thinking=Thinking.GATED, follows_text=False)
    assert accepts(program(name, TOOLS, gated), whole_answer)
    assert accepts(program(name, TOOLS, gated), f"{thought}</think>\n\nNo call.")


@each_dialect
def test_behind_text_a_call_has_its_lead_in(name: str):
    follows = CallRules(is_required=True, max_calls=1, thinking=Thinking.OVER, follows_text=True)
    draft = program(name, TOOLS, follows)
    assert accepts(draft, written(name, CALLS[0], before="Text.").removeprefix("Text."))


_strings = st.lists(
    st.sampled_from(["<", "</", ">", '"', "\\", "\n", "{", "é", "null", "1", "True", "2>&1", "parameter", "😀"])
    | st.text(string.printable, max_size=3),
    max_size=6,
).map("".join)
_numbers = st.integers(-(10**6), 10**6) | st.sampled_from([0.5, -1.25, 30.25])
TYPES: dict[str, tuple[Schema, st.SearchStrategy[Any]]] = {
    "string": ({"type": "string"}, _strings),
    "short": ({"type": "string", "minLength": 1, "maxLength": 4}, _strings.filter(lambda found: 1 <= len(found) <= 4)),
    "enum": ({"enum": ["a", "bc", ""]}, st.sampled_from(["a", "bc", ""])),
    "pattern": ({"type": "string", "pattern": "^[a-c]+|z$"}, st.sampled_from(["abc", "az", "z", "a\n"])),
    "integer": ({"type": "integer", "minimum": -5}, st.integers(-5, 99)),
    "number": ({"type": "number"}, _numbers),
    "boolean": ({"type": "boolean"}, st.booleans()),
    "count or null": ({"type": ["integer", "null"]}, st.none() | st.integers(0, 9)),
    "string or null": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, st.none() | _strings),
    "list": ({"type": "array", "items": {"type": "string"}}, st.lists(_strings, max_size=3)),
    "object": ({"type": "object"}, st.dictionaries(_strings, _numbers | _strings, max_size=2)),
    "list or flag": ({"anyOf": [{"type": "array"}, {"const": True}]}, st.just([]) | st.just(True)),
    "any": ({}, _numbers | _strings | st.booleans()),
}
_keys = st.sampled_from(["path", "content", "a-b", "x.y", "k_1", "pat"])


@st.composite
def turns(draw: st.DrawFn) -> tuple[list[ToolSpec], list[CallText]]:
    """Tools, and calls that fit them."""
    tools: list[ToolSpec] = []
    calls: list[CallText] = []
    for number in range(draw(st.integers(1, 3))):
        name = f"{draw(st.sampled_from(['run', 'run_it', 'r']))}{number}"
        parameters = draw(st.dictionaries(_keys, st.sampled_from(list(TYPES)), max_size=4))
        required = [key for key in parameters if draw(st.booleans())]
        properties = {key: TYPES[kind][0] for key, kind in parameters.items()}
        tools.append(tool(name, {"type": "object", "properties": properties, "required": required}))
        chosen = draw(st.permutations([key for key in parameters if key in required or draw(st.booleans())]))
        calls.append(call(name, **{key: draw(TYPES[parameters[key]][1]) for key in chosen}))
    return tools, calls


@each_dialect
@settings(max_examples=10, deadline=None)
@given(turn=turns(), before=st.sampled_from(["", "Text."]))
def test_whatever_fits_the_schemas_is_allowed_as_it_is_written(
    name: str, turn: tuple[list[ToolSpec], list[CallText]], before: str
):
    tools, calls = turn
    answer = written(name, *calls, before=before)
    assume(name != PYTHON or '{"const": true}' not in "".join(one.parameters_json for one in tools))
    assert accepts(program(name, tools), answer)
    assert accepts(program(name, tools, REQUIRED), answer) is (before == "")


@each_dialect
@settings(max_examples=10, deadline=None)
@given(turn=turns(), data=st.data())
def test_what_does_not_fit_is_not_allowed(name: str, turn: tuple[list[ToolSpec], list[CallText]], data: st.DataObject):
    tools, calls = turn
    index = data.draw(st.integers(0, len(calls) - 1))
    schema: Schema = json.loads(tools[index].parameters_json)
    arguments: dict[str, Any] = json.loads(calls[index].arguments)
    wrong: list[CallText] = [call(tools[index].name, **arguments, undeclared=1)]
    for key in arguments:
        if key in schema["required"]:
            wrong.append(call(tools[index].name, **{other: one for other, one in arguments.items() if other != key}))
        again = ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in [*arguments.items(), (key, arguments[key])])
        wrong.append(CallText(tools[index].name, f"{{{again}}}"))
        if schema["properties"][key].get("type") in ("integer", "number", "boolean"):
            wrong.append(call(tools[index].name, **{**arguments, key: "no number"}))
    draft = program(name, tools, REQUIRED)
    for one in wrong:
        assert not accepts(draft, written(name, *calls[:index], one, *calls[index + 1 :])), one
    answer = written(name, *calls)
    assert not accepts(draft, answer + data.draw(st.sampled_from([" ", "\n", "x", "<"])))


def test_null_beside_a_container_is_jsons_even_where_it_is_pythons_elsewhere():
    draft = program(PYTHON, [tool("f", fields("", a={"type": ["object", "null"]}, b={"type": ["integer", "null"]}))])
    answer = written(PYTHON, call("f", b=None, a={}))
    assert accepts(draft, answer)
    assert "None" in answer
    beside = written(PYTHON, call("f", a=None))
    assert not accepts(draft, beside)
    assert accepts(draft, beside.replace("None", "null"))


@pytest.mark.parametrize("name", ["qwen_xml", "glm_xml_4_5"])
def test_a_value_that_no_text_can_hold_is_left_out_of_those_listed(name: str):
    half = "\ud83d"
    draft = program(name, [tool("f", fields("a", a={"enum": ["b", half, 1, [half]]}))], REQUIRED)
    assert accepts(draft, written(name, call("f", a="b")))
    assert accepts(draft, written(name, call("f", a=1)))
    assert not accepts(draft, written(name, call("f", a=half)))
    assert accepts(program(name, [tool("f", fields("a", a={"enum": [half, [half]]}))]), written(name, call("f", a="c")))


@each_dialect
def test_keys_that_begin_alike_are_told_apart(name: str):
    draft = program(name, [tool("f", fields("", a=whole(), ab=whole(), **{"a b": whole()}))], REQUIRED)
    for first, second in pairwise(("a", "ab", "a b", "a")):
        assert accepts(draft, written(name, call("f", **{first: 1, second: 2})))
