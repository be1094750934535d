"""Tools of a Responses request, and which of them may be called."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from fencepost.tokenizer.v1 import conversation_pb2 as conv

from services.gateway.errors import BadRequestError
from services.gateway.responses import local_shell, request
from services.gateway.responses.tool_names import ItemType
from tests.unit.gateway.responses.bodies import (
    APPLY_PATCH,
    CODEX,
    EXEC_COMMAND,
    MCP_NAMESPACE,
    PATCH_GRAMMAR,
    WEB_SEARCH,
    fields_of,
    parse,
)

ALL = [EXEC_COMMAND, APPLY_PATCH, WEB_SEARCH, MCP_NAMESPACE]


def function(name: str, **changes: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **changes}


def custom(form: Any) -> dict[str, Any]:
    return {"type": "custom", "name": "patch", "format": form}


def additional(*tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "additional_tools", "role": "developer", "tools": list(tools)}


def tool(name: str, parameters: str = "", **fields: Any) -> conv.Tool:
    values: dict[str, Any] = {"kind": conv.CALL_KIND_FUNCTION, **fields}
    return conv.Tool(name=name, parameters_json=parameters, **values)


def test_tools_of_codex_in_order() -> None:
    expected = [
        tool("exec_command", orjson.dumps(EXEC_COMMAND["parameters"]).decode(), description="Runs a command in a PTY."),
        tool(
            "apply_patch",
            description="Edits files.",
            kind=conv.CALL_KIND_CUSTOM,
            grammar=conv.ToolGrammar(syntax=conv.TOOL_GRAMMAR_SYNTAX_LARK, text=PATCH_GRAMMAR),
        ),
        tool("search", '{"type":"object"}', namespace="mcp__docs__", description="Finds."),
        tool("exec_command", '{"type":"object"}', namespace="mcp__docs__"),
    ]
    assert list(parse(tools=ALL).conversation.tools) == expected
    assert list(parse(CODEX).conversation.tools) == expected


def test_tools_of_items_follow_those_of_the_request_and_replace_their_like() -> None:
    parsed = parse(
        tools=[function("a"), function("b", description="old")],
        input=[
            {"role": "user", "content": "Hi"},
            additional(function("c"), function("b", description="new")),
            {"type": "tool_search_output", "call_id": None, "tools": [{**MCP_NAMESPACE, "tools": [function("a")]}]},
        ],
    )
    assert list(parsed.conversation.tools) == [
        tool("a"),
        tool("b", description="new"),
        tool("c"),
        tool("a", namespace="mcp__docs__"),
    ]
    assert [parsed.client_field(f"conversation.tools[{index}].name") for index in range(5)] == [
        "tools[0]",
        "input[1].tools[1]",
        "input[1].tools[0]",
        "input[2].tools[0].tools[0]",
        "tools",
    ]


def test_schemas_are_taken_as_they_are_spelt() -> None:
    schemas = [
        b'{"type":"object","properties":{"b":{"maximum":1e5},"a":{"minimum": 1.0}}}',
        b'{ "type" : "object",\n\t"$defs": {},  "title": "caf\\u00e9 \xc3\xa9 \\"}]", "title": "again" }',
    ]
    flat = b'{"type": "function", "name": "f", "parameters": %b }' % schemas[0]
    nested = b'{"type":"function","function":{"name": "g", "parameters":%b}}' % schemas[1]
    body = b'{"model": "m", "input": "Hi", "tools": [%b, {"type": "namespace", "name": "n", "tools": [%b]}]}'
    parsed = request.parse(fields_of(body % (flat, nested)))
    assert [one.parameters_json.encode() for one in parsed.conversation.tools] == schemas
    assert schemas[0] in orjson.dumps(parsed.echo)


def test_grammars() -> None:
    lark = conv.ToolGrammar(syntax=conv.TOOL_GRAMMAR_SYNTAX_LARK, text="start: A")
    regex = conv.ToolGrammar(syntax=conv.TOOL_GRAMMAR_SYNTAX_REGEX, text="a+")
    for form, expected in [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "grammar", "syntax": "lark", "definition": "start: A"}, lark),
        ({"type": "grammar", "syntax": "regex", "definition": "a+"}, regex),
        ({"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}, regex),
    ]:
        (found,) = parse(tools=[custom(form)]).conversation.tools
        assert (found.grammar if found.HasField("grammar") else None) == expected


@pytest.mark.parametrize(
    "kind",
    [
        "web_search",
        "web_search_preview",
        "file_search",
        "computer",
        "computer_use_preview",
        "code_interpreter",
        "image_generation",
        "mcp",
        "tool_search",
        "shell",
        "apply_patch",
        "telepathy",
    ],
)
def test_hosted_and_unknown_tools_are_skipped(kind: str) -> None:
    hosted = {"type": kind, "name": 5, "tools": "x", kind: []}
    parsed = parse(tools=[hosted, function("f"), hosted, {"type": "namespace", "name": "n", "tools": [hosted]}])
    assert [one.name for one in parsed.conversation.tools] == ["f"]
    assert orjson.loads(orjson.dumps(parsed.echo["tools"]))[0] == hosted
    assert not parse(tools=[hosted], tool_choice={"type": kind}).conversation.HasField("tool_choice")
    assert not parse(tools=[hosted], tool_choice="required").conversation.HasField("tool_choice")


def test_calls_become_the_items_of_their_tools() -> None:
    names = parse(tools=[*ALL, {"type": "local_shell"}]).tool_names
    function_kind, custom_kind = conv.CALL_KIND_FUNCTION, conv.CALL_KIND_CUSTOM
    assert names.item_type(None, "exec_command", function_kind) == ItemType.FUNCTION_CALL
    assert names.item_type("mcp__docs__", "search", function_kind) == ItemType.FUNCTION_CALL
    assert names.item_type("mcp__docs__", "local_shell", function_kind) == ItemType.FUNCTION_CALL
    assert names.item_type(None, "apply_patch", custom_kind) == ItemType.CUSTOM_TOOL_CALL
    assert names.item_type(None, "local_shell", function_kind) == ItemType.LOCAL_SHELL_CALL
    own = parse(tools=[function("local_shell")]).tool_names
    assert own.item_type(None, "local_shell", function_kind) == ItemType.FUNCTION_CALL


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        ('{"command": ["ls", "-l"]}', {"command": ["ls", "-l"]}),
        (
            '{"command": ["a"], "working_directory": "/b", "timeout_ms": 5, "env": {"C": "d", "E": 1}}',
            {"command": ["a"], "working_directory": "/b", "timeout_ms": 5, "env": {"C": "d"}},
        ),
        ('{"command": ["sleep", 5]}', {"command": ["sleep", "5"]}),
        ('{"command": "ls | wc"}', {"command": ["bash", "-lc", "ls | wc"]}),
        ('{"command": []}', {"command": ["bash", "-lc", '{"command": []}']}),
        ('{"command": ["a"], "env": 5, "timeout_ms": true, "user": []}', {"command": ["a"]}),
        ("ls", {"command": ["bash", "-lc", "ls"]}),
        ("[1]", {"command": ["bash", "-lc", "[1]"]}),
    ],
)
def test_actions_of_local_shell(arguments: str, changes: dict[str, Any]) -> None:
    empty = {"type": "exec", "env": {}, "timeout_ms": None, "user": None, "working_directory": None}
    assert local_shell.action_of(arguments) == {**empty, **changes}


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        ("none", conv.TOOL_CHOICE_MODE_NONE, []),
        ("auto", conv.TOOL_CHOICE_MODE_AUTO, []),
        ("required", conv.TOOL_CHOICE_MODE_REQUIRED, []),
        ({"type": "function", "name": "exec_command"}, conv.TOOL_CHOICE_MODE_REQUIRED, ["exec_command"]),
        ({"type": "function", "function": {"name": "exec_command"}}, conv.TOOL_CHOICE_MODE_REQUIRED, ["exec_command"]),
        ({"type": "custom", "name": "apply_patch"}, conv.TOOL_CHOICE_MODE_REQUIRED, ["apply_patch"]),
        ({"type": "function", "name": "search"}, conv.TOOL_CHOICE_MODE_REQUIRED, ["mcp__docs____search"]),
        (
            {"type": "function", "name": "exec_command", "namespace": "mcp__docs__"},
            conv.TOOL_CHOICE_MODE_REQUIRED,
            ["mcp__docs____exec_command"],
        ),
        ({"type": "web_search_preview"}, conv.TOOL_CHOICE_MODE_AUTO, []),
        ({"type": "mcp", "server_label": "x"}, conv.TOOL_CHOICE_MODE_AUTO, []),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}, function("exec_command")]},
            conv.TOOL_CHOICE_MODE_AUTO,
            ["exec_command"],
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "apply_patch"}]},
            conv.TOOL_CHOICE_MODE_REQUIRED,
            ["apply_patch"],
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "image_generation"}]},
            conv.TOOL_CHOICE_MODE_NONE,
            [],
        ),
    ],
)
def test_choices(choice: Any, mode: conv.ToolChoiceMode.ValueType, names: list[str]) -> None:
    parsed = parse(tools=ALL, tool_choice=choice)
    assert parsed.conversation.tool_choice == conv.ToolChoice(mode=mode, allowed_names=names)
    assert orjson.loads(orjson.dumps(parsed.echo["tool_choice"])) == choice


def test_without_tools_there_is_nothing_to_choose() -> None:
    for choice in (None, "none", "auto"):
        conversation = parse(tools=[], tool_choice=choice, parallel_tool_calls=False).conversation
        assert not conversation.HasField("tool_choice")
        assert not conversation.HasField("parallel_calls")
    assert parse(tools=ALL, parallel_tool_calls=False).conversation.parallel_calls is False


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": ["ls"]}, "tools[0]"),
        ({"tools": [{"type": 5}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [function("")]}, "tools[0].name"),
        ({"tools": [function("x" * 257)]}, "tools[0].name"),
        ({"tools": [function("f"), WEB_SEARCH, function("f")]}, "tools[2].name"),
        ({"tools": [function("f"), {"type": "custom", "name": "f"}]}, "tools[1].name"),
        ({"tools": [function("local_shell"), {"type": "local_shell"}]}, "tools[1].name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [function("f", description=1)]}, "tools[0].description"),
        ({"tools": [function("f", parameters="{}")]}, "tools[0].parameters"),
        ({"tools": [function("f", strict="yes")]}, "tools[0].strict"),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools[0].name"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [function("f"), function("f")]}]},
            "tools[0].tools[1].name",
        ),
        ({"tools": [custom("text")]}, "tools[0].format"),
        ({"tools": [custom({"type": "ebnf"})]}, "tools[0].format.type"),
        ({"tools": [custom({"type": "grammar"})]}, "tools[0].format.syntax"),
        ({"tools": [custom({"type": "grammar", "syntax": "lark"})]}, "tools[0].format.definition"),
        ({"input": [additional(function("f"), {"type": "function"})]}, "input[0].tools[1].name"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": 1}, "tool_choice"),
        ({"tool_choice": {}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "function", "name": "rm"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "function", "name": "search", "namespace": "x"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "allowed_tools", "tools": [function("f")]}}, "tool_choice.mode"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.tools"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [function("rm")]}},
            "tool_choice.tools[0].name",
        ),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
def test_wrong_value_names_its_field(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse({"model": "m", "input": "Hi", "tools": ALL}, **changes)
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message
