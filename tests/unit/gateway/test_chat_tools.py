"""The tools of a chat request and the choice among them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from fencepost.tokenizer.v1 import conversation_pb2 as conv

from services.gateway import chat_request
from services.gateway.chat_tools import NO_PARAMETERS
from services.gateway.errors import BadRequestError
from tests.unit.gateway.exchanges import exchange_of

LS = {"type": "function", "function": {"name": "ls", "description": "Lists.", "parameters": {"type": "object"}}}
PATCH = {"type": "custom", "custom": {"name": "patch"}}
TOOLS = [LS, PATCH]


def conversation_of(body: bytes) -> conv.Conversation:
    return chat_request.parse(exchange_of(body), response_id="c").generate.conversation


def parse(**changes: Any) -> conv.Conversation:
    return conversation_of(
        orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, **changes})
    )


def function(**definition: Any) -> list[dict[str, Any]]:
    return [LS, {"type": "function", "function": definition}]


def custom(form: Any) -> list[dict[str, Any]]:
    return [{"type": "custom", "custom": {"name": "patch", "format": form}}]


def grammar(**changes: Any) -> dict[str, Any]:
    return {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: A", **changes}}


def test_tools_keep_their_order_and_what_they_say() -> None:
    tools = parse(tools=[PATCH, LS, {"function": {"name": "pwd", "strict": True, "description": ""}}]).tools
    assert list(tools) == [
        conv.Tool(name="patch", kind=conv.CALL_KIND_CUSTOM),
        conv.Tool(name="ls", description="Lists.", kind=conv.CALL_KIND_FUNCTION, parameters_json='{"type":"object"}'),
        conv.Tool(name="pwd", description="", kind=conv.CALL_KIND_FUNCTION, parameters_json=NO_PARAMETERS, strict=True),
    ]


def test_schemas_are_taken_as_they_are_spelt() -> None:
    schemas = [
        b'{"type":"object","properties":{"b":{"maximum":1e5},"a":{"minimum": 1.0}}}',
        b'{ "type" : "object",\n\t"$defs": {},  "title": "caf\\u00e9 \xc3\xa9 \\"}]", "title": "again" }',
        b"{}",
    ]
    tools = b" ,\n".join(
        b'{"function": {"parameters": %b , "name": "f%d"}, "type": "function"}' % (schema, index)
        for index, schema in enumerate(schemas)
    )
    body = b'{"tools": null, "messages": [{"role": "user", "content": "\\"tools\\": ["}], "tools": [%b], "model": "m"}'
    found = [tool.parameters_json.encode() for tool in conversation_of(body % tools).tools]
    assert found == schemas


def test_grammars() -> None:
    for form, expected in [
        (None, None),
        ({"type": "text"}, None),
        (grammar(), conv.ToolGrammar(syntax=conv.TOOL_GRAMMAR_SYNTAX_LARK, text="start: A")),
        (
            grammar(syntax="regex", definition="a+"),
            conv.ToolGrammar(syntax=conv.TOOL_GRAMMAR_SYNTAX_REGEX, text="a+"),
        ),
    ]:
        tool = parse(tools=custom(form)).tools[0]
        assert (tool.grammar if tool.HasField("grammar") else None) == expected
        assert tool.parameters_json == ""


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        ("none", conv.TOOL_CHOICE_MODE_NONE, []),
        ("auto", conv.TOOL_CHOICE_MODE_AUTO, []),
        ("required", conv.TOOL_CHOICE_MODE_REQUIRED, []),
        ({"type": "function", "function": {"name": "ls"}}, conv.TOOL_CHOICE_MODE_REQUIRED, ["ls"]),
        ({"type": "custom", "custom": {"name": "patch"}}, conv.TOOL_CHOICE_MODE_REQUIRED, ["patch"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [PATCH, {"type": "function", "function": {"name": "ls"}}]},
            },
            conv.TOOL_CHOICE_MODE_AUTO,
            ["patch", "ls"],
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [PATCH]}},
            conv.TOOL_CHOICE_MODE_REQUIRED,
            ["patch"],
        ),
    ],
)
def test_choices(choice: Any, mode: conv.ToolChoiceMode.ValueType, names: list[str]) -> None:
    assert parse(tool_choice=choice).tool_choice == conv.ToolChoice(mode=mode, allowed_names=names)


def test_what_is_left_open_stays_open() -> None:
    for conversation in (parse(), parse(tool_choice=None, parallel_tool_calls=None)):
        assert not conversation.HasField("tool_choice")
        assert not conversation.HasField("parallel_calls")
    for is_parallel in (True, False):
        assert parse(parallel_tool_calls=is_parallel).parallel_calls is is_parallel


def allowed(**changes: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [PATCH], **changes}}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": ["ls"]}, "tools[0]"),
        ({"tools": [LS, {"type": "web_search"}]}, "tools[1].type"),
        ({"tools": [{"type": "function", "name": "ls"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "function": {"name": "ls"}}]}, "tools[0].custom"),
        ({"tools": function()}, "tools[1].function.name"),
        ({"tools": function(name="")}, "tools[1].function.name"),
        ({"tools": function(name=5)}, "tools[1].function.name"),
        ({"tools": function(name="x" * 257)}, "tools[1].function.name"),
        ({"tools": function(name="ls")}, "tools[1].function.name"),
        ({"tools": [LS, {"type": "custom", "custom": {"name": "ls"}}]}, "tools[1].custom.name"),
        ({"tools": function(name="f", description=1)}, "tools[1].function.description"),
        ({"tools": function(name="f", parameters="{}")}, "tools[1].function.parameters"),
        ({"tools": function(name="f", parameters=[])}, "tools[1].function.parameters"),
        ({"tools": function(name="f", strict="yes")}, "tools[1].function.strict"),
        ({"tools": custom("text")}, "tools[0].custom.format"),
        ({"tools": custom({})}, "tools[0].custom.format.type"),
        ({"tools": custom({"type": "ebnf"})}, "tools[0].custom.format.type"),
        ({"tools": custom({"type": "grammar"})}, "tools[0].custom.format.grammar"),
        ({"tools": custom(grammar(syntax="ebnf"))}, "tools[0].custom.format.grammar.syntax"),
        ({"tools": custom(grammar(definition=None))}, "tools[0].custom.format.grammar.definition"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": 1}, "tool_choice"),
        ({"tool_choice": ["ls"]}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice.function"),
        ({"tool_choice": {"type": "magic"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
        ({"tool_choice": {"type": "function", "function": {"name": "rm"}}}, "tool_choice.function.name"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tool_choice": allowed(mode="none")}, "tool_choice.allowed_tools.mode"),
        ({"tool_choice": allowed(tools=[])}, "tool_choice.allowed_tools.tools"),
        (
            {"tool_choice": allowed(tools=[PATCH, {"type": "function", "function": {"name": "rm"}}])},
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": None, "tool_choice": {"type": "function", "function": {"name": "ls"}}}, "tool_choice.function.name"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
def test_wrong_value_names_its_field(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse(**changes)
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message
