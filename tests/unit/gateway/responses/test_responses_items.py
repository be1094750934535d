"""Input items become the messages of a conversation."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from fencepost.tokenizer.v1 import conversation_pb2 as conv

from services.gateway.errors import BadRequestError, NotFoundError, UnsupportedError
from services.gateway.responses import compaction, request
from services.gateway.responses.stored_items import read_items, referenced_ids
from tests.unit.gateway.responses.bodies import (
    AI_SDK,
    CAPSULE,
    CODEX,
    NO_TYPES,
    PNG,
    REAL,
    SDK_ECHO,
    call,
    fields_of,
    messages,
    parse,
    spoken,
    text,
    thought,
)

PICTURE = conv.Part(image=conv.ImagePart(media_type="image/png", data=b"\x89PNG"))
USER = {"role": "user", "content": "Hi"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def test_codex_session() -> None:
    assert list(parse(CODEX).conversation.messages) == [
        spoken(conv.ROLE_SYSTEM, "You are Codex."),
        spoken(conv.ROLE_DEVELOPER, "<permissions instructions>"),
        conv.Message(role=conv.ROLE_USER, parts=[text("<environment_context>"), PICTURE]),
        spoken(conv.ROLE_USER, "Fix it."),
        conv.Message(
            role=conv.ROLE_ASSISTANT,
            parts=[thought("I look around.", CAPSULE), text("Looking.")],
            calls=[
                call("call_1", "exec_command", '{"cmd": "ls"}'),
                call("call_2", "search", '{"q":1e5}', 1, namespace="mcp__docs__"),
                call("call_3", "apply_patch", "***", 2, is_custom=True),
            ],
        ),
        spoken(conv.ROLE_TOOL, "Done", call_id="call_3"),
        spoken(conv.ROLE_TOOL, "a.py\n", call_id="call_1"),
        conv.Message(role=conv.ROLE_TOOL, parts=[text("See:"), PICTURE], call_id="call_2"),
        spoken(conv.ROLE_ASSISTANT, "Fixed."),
        spoken(conv.ROLE_USER, "Thanks."),
    ]


def test_echo_without_the_thinking_has_the_summary_and_the_capsule() -> None:
    assert list(parse(AI_SDK).conversation.messages) == [
        spoken(conv.ROLE_DEVELOPER, "You are opencode."),
        spoken(conv.ROLE_USER, "Hi"),
        conv.Message(
            role=conv.ROLE_ASSISTANT,
            parts=[thought("One.\nTwo.", CAPSULE), text("Reading.")],
            calls=[call("call_1", "read", '{"path":"a"}')],
        ),
        spoken(conv.ROLE_TOOL, "text", call_id="call_1"),
    ]


def test_whole_output_of_an_sdk_comes_back_with_its_nulls() -> None:
    assert list(parse(SDK_ECHO).conversation.messages) == [
        spoken(conv.ROLE_USER, "Weather?"),
        conv.Message(
            role=conv.ROLE_ASSISTANT,
            parts=[thought("Need the tool."), text("One moment.")],
            calls=[call("call_1", "weather", '{"city": "Oslo"}')],
        ),
        spoken(conv.ROLE_TOOL, "rain", call_id="call_1"),
    ]


def test_types_are_inferred() -> None:
    assert list(parse(NO_TYPES).conversation.messages) == [
        spoken(conv.ROLE_SYSTEM, "Be kind."),
        spoken(conv.ROLE_USER, "Hi"),
        conv.Message(
            role=conv.ROLE_ASSISTANT,
            parts=[thought("Hm.")],
            calls=[
                call("a", "f", "{}"),
                call("b", "g", "raw", 1, is_custom=True),
                call("c", "local_shell", '{"command": ["ls"]}', 2),
            ],
        ),
        spoken(conv.ROLE_TOOL, "3", call_id="c"),
        spoken(conv.ROLE_TOOL, "2", call_id="b"),
        spoken(conv.ROLE_TOOL, "1", call_id="a"),
    ]


def test_text_input_is_one_user_message() -> None:
    assert list(parse(input="Hi").conversation.messages) == [spoken(conv.ROLE_USER, "Hi")]


def test_thinking_comes_before_what_it_led_to() -> None:
    assert messages(
        USER,
        CALL,
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"role": "assistant", "content": "Text"},
    )[1:] == [conv.Message(role=conv.ROLE_ASSISTANT, parts=[thought("Hm"), text("Text")], calls=[call("c", "f", "{}")])]


def test_answers_in_a_row_stay_apart() -> None:
    thinking = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm"}]}
    assert messages(USER, {"role": "assistant", "content": "A"}, thinking, {"role": "assistant", "content": "B"})[
        1:
    ] == [
        spoken(conv.ROLE_ASSISTANT, "A"),
        conv.Message(role=conv.ROLE_ASSISTANT, parts=[thought("Hm"), text("B")]),
    ]
    assert messages({"role": "assistant", "content": "A"}, {"role": "assistant", "content": "B"}) == [
        spoken(conv.ROLE_ASSISTANT, "A"),
        spoken(conv.ROLE_ASSISTANT, "B"),
    ]


@pytest.mark.parametrize("encrypted", ["gAAAA-B_c", "é", "A", ""])
def test_capsule_of_another_alphabet_is_ignored(encrypted: str) -> None:
    said = {"role": "assistant", "content": "A"}
    assert messages(USER, {"type": "reasoning", "summary": [], "encrypted_content": encrypted}, said)[1:] == [
        spoken(conv.ROLE_ASSISTANT, "A")
    ]


def test_arguments_are_taken_as_they_are_spelt() -> None:
    body = (
        b'{"model": "m", "input": [{"type": "function_call", "call_id": "c", "name": "f",'
        b' "arguments": { "a" : 1e5,  "a": 1.0 } }]}'
    )
    parsed = request.parse(fields_of(body))
    assert parsed.conversation.messages[0].calls[0].arguments == '{ "a" : 1e5,  "a": 1.0 }'
    assert parsed.input_items[0]["arguments"] == '{ "a" : 1e5,  "a": 1.0 }'


@pytest.mark.parametrize(
    ("output", "parts"),
    [
        ("", [text("")]),
        (None, []),
        ([], []),
        ({"content": "x", "success": True}, [text('{"content":"x","success":true}')]),
        ([{"type": "output_text", "text": "x", "annotations": []}], [text("x")]),
        (
            [{"type": "input_image", "image_url": "https://a/b.png"}],
            [conv.Part(image=conv.ImagePart(uri="https://a/b.png"))],
        ),
        ([{"type": "input_image", "file_id": "file-1"}], [conv.Part(image=conv.ImagePart(uri="file-1"))]),
        ([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}], [PICTURE]),
        (
            [{"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,SGk="}],
            [conv.Part(document=conv.DocumentPart(media_type="text/plain", title="a.txt", text="Hi"))],
        ),
        (
            [{"type": "input_file", "filename": "a.pdf", "file_data": "SGk="}],
            [conv.Part(document=conv.DocumentPart(media_type="application/octet-stream", title="a.pdf", data=b"Hi"))],
        ),
        (
            [{"type": "input_file", "file_data": "data:text/plain;base64,/w=="}],
            [conv.Part(document=conv.DocumentPart(media_type="text/plain", data=b"\xff"))],
        ),
        (
            [{"type": "input_file", "file_url": "https://a/b.pdf"}],
            [conv.Part(document=conv.DocumentPart(uri="https://a/b.pdf"))],
        ),
        ([{"type": "new_kind_of_text", "text": "x"}], [text("x")]),
    ],
)
def test_outputs_of_every_shape(output: Any, parts: list[conv.Part]) -> None:
    result = messages(CALL, {"type": "function_call_output", "call_id": "c", "output": output})[1]
    assert result == conv.Message(role=conv.ROLE_TOOL, parts=parts, call_id="c")


def test_refusals() -> None:
    said = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert messages(said)[0].parts[0] == conv.Part(refusal=conv.RefusalPart(text="No."))


def test_local_shell_echo_equals_what_the_model_called_with() -> None:
    action = {
        "type": "exec",
        "command": ["ls", "-l"],
        "env": {"A": "b"},
        "timeout_ms": 1000,
        "user": None,
        "working_directory": "/src",
    }
    shell = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c", "status": "completed", "action": action}
    called, result = messages(shell, {"type": "local_shell_call_output", "id": "c", "output": "x"})
    arguments = '{"command": ["ls","-l"], "working_directory": "/src", "timeout_ms": 1000, "env": {"A":"b"}}'
    assert list(called.calls) == [call("c", "local_shell", arguments)]
    assert result == spoken(conv.ROLE_TOOL, "x", call_id="c")


def test_own_compaction_is_its_summary() -> None:
    item = {"type": "compaction", "encrypted_content": compaction.seal("So far: é")}
    assert messages(item) == [spoken(conv.ROLE_USER, "So far: é")]


@pytest.mark.parametrize("encrypted", [None, "", "???", "c29tZXRoaW5n"])
def test_compaction_of_another_server_is_skipped(encrypted: str | None) -> None:
    assert messages(USER, {"type": "compaction", "encrypted_content": encrypted}) == [spoken(conv.ROLE_USER, "Hi")]


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "q"}}, []),
        ({"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": [{"name": "f"}]}, []),
        ({"type": "compaction_trigger"}, []),
        ({"type": "ghost_snapshot", "ghost_commit": {"id": "1"}}, []),
        ({"type": "computer_call_output", "call_id": "nobody", "output": "x"}, []),
        ({"type": "image_generation_call", "id": "ig_1", "result": "not base64!"}, []),
        ({"type": "program_output", "call_id": 5, "result": []}, []),
        (
            {
                "type": "file_search_call",
                "id": "fs_1",
                "status": "completed",
                "queries": ["a"],
                "results": [{"filename": "f", "text": "t"}],
            },
            [
                conv.Message(role=conv.ROLE_ASSISTANT, calls=[call("fs_1", "file_search", '{"queries": ["a"]}')]),
                spoken(conv.ROLE_TOOL, '[{"filename":"f","text":"t"}]', call_id="fs_1"),
            ],
        ),
        (
            {
                "type": "code_interpreter_call",
                "id": "ci_1",
                "container_id": "x",
                "code": "1\n",
                "outputs": [{"type": "logs", "logs": "1"}],
            },
            [
                conv.Message(role=conv.ROLE_ASSISTANT, calls=[call("ci_1", "code_interpreter", '{"code": "1\\n"}')]),
                spoken(conv.ROLE_TOOL, '[{"type":"logs","logs":"1"}]', call_id="ci_1"),
            ],
        ),
        (
            {
                "type": "mcp_call",
                "id": "mcp_1",
                "server_label": "docs",
                "name": "find",
                "arguments": '{"q":1}',
                "output": "found",
                "error": None,
            },
            [
                conv.Message(role=conv.ROLE_ASSISTANT, calls=[call("mcp_1", "find", '{"q":1}', namespace="docs")]),
                spoken(conv.ROLE_TOOL, "found", call_id="mcp_1"),
            ],
        ),
        (
            {"type": "image_generation_call", "id": "ig_1", "result": PNG, "revised_prompt": "cat"},
            [
                conv.Message(
                    role=conv.ROLE_ASSISTANT, calls=[call("ig_1", "image_generation", '{"revised_prompt": "cat"}')]
                ),
                conv.Message(role=conv.ROLE_TOOL, parts=[PICTURE], call_id="ig_1"),
            ],
        ),
        ({"type": "agent_message", "author": "a", "content": [{"type": "input_text", "text": "Psst"}]}, "Psst"),
        ({"type": "note", "text": {"z": 1e5, "a": [None]}}, '{"z":100000.0,"a":[null]}'),
        ({"type": "note", "content": [{"type": "x", "y": 1}]}, '[{"type":"x","y":1}]'),
    ],
)
def test_items_of_other_tools_and_unknown_types(item: dict[str, Any], said: list[conv.Message] | str) -> None:
    expected = [spoken(conv.ROLE_USER, said)] if isinstance(said, str) else said
    assert messages(USER, item, USER)[1:-1] == expected


@pytest.mark.parametrize(
    ("made", "answered", "name", "arguments", "parts"),
    [
        (
            {"type": "shell_call", "action": {"commands": ["ls"]}, "environment": {"type": "local"}},
            {"type": "shell_call_output", "output": [{"stdout": "x", "stderr": ""}]},
            "shell",
            '{"commands":["ls"]}',
            [text('[{"stdout":"x","stderr":""}]')],
        ),
        (
            {"type": "computer_call", "action": {"type": "click"}, "pending_safety_checks": []},
            {
                "type": "computer_call_output",
                "output": {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{PNG}"},
            },
            "computer",
            '{"type":"click"}',
            [PICTURE],
        ),
        (
            {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a"}, "status": "completed"},
            {"type": "apply_patch_call_output", "output": "ok", "status": "completed"},
            "apply_patch",
            '{"type":"delete_file","path":"a"}',
            [text("ok")],
        ),
        (
            {"type": "tool_search_call", "execution": "client", "arguments": {"query": "x"}},
            {"type": "tool_search_output", "execution": "client", "tools": [{"type": "mcp"}]},
            "tool_search",
            '{"query":"x"}',
            [text('[{"type":"mcp"}]')],
        ),
    ],
)
def test_calls_of_other_tools_and_their_outputs(
    made: dict[str, Any], answered: dict[str, Any], name: str, arguments: str, parts: list[conv.Part]
) -> None:
    assert messages({**made, "call_id": "c"}, {**answered, "call_id": "c"}) == [
        conv.Message(role=conv.ROLE_ASSISTANT, calls=[call("c", name, arguments)]),
        conv.Message(role=conv.ROLE_TOOL, parts=parts, call_id="c"),
    ]


def reference(item_id: str) -> dict[str, Any]:
    return {"type": "item_reference", "id": item_id}


def test_references_are_resolved() -> None:
    stored = read_items(orjson.dumps([{"type": "message", "id": "msg_1", "role": "user", "content": "Hi"}]))
    body = fields_of(orjson.dumps({"model": "m", "input": [{"id": "msg_1"}]}))
    assert referenced_ids(body) == ("msg_1",)
    for parsed in (request.parse(body, (), {"msg_1": stored[0]}), request.parse(body, stored)):
        assert parsed.conversation.messages[-1] == spoken(conv.ROLE_USER, "Hi")
        assert parsed.input_items[0]["content"] == [{"type": "input_text", "text": "Hi"}]


def test_unknown_reference_is_not_found() -> None:
    with pytest.raises(NotFoundError) as caught:
        messages(reference("rs_9"))
    assert (caught.value.message, caught.value.param) == ("Item with id 'rs_9' not found.", "input")


@pytest.mark.parametrize("kind", ["function_call_output", "custom_tool_call_output"])
def test_output_without_its_call_is_refused(kind: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        messages(USER, {"type": kind, "call_id": "call_9", "output": "x"})
    assert caught.value.message == f"No tool call found for {kind.replace('_', ' ')} with call_id call_9."
    assert caught.value.param == "input"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (None, "input"),
        (5, "input"),
        ({}, "input"),
        ([], "input"),
        (["Hi"], "input[0]"),
        ([USER, None], "input[1]"),
        ([{}], "input[0].type"),
        ([{"type": 5}], "input[0].type"),
        ([{"type": "message"}], "input[0].role"),
        ([{"role": "robot", "content": "x"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "user", "content": 5}], "input[0].content"),
        ([USER, {"role": "user", "content": ["x"]}], "input[1].content[0]"),
        ([USER, USER, USER, {"role": "user", "content": [{"text": "x"}]}], "input[3].content[0].type"),
        ([{"role": "user", "content": [{"type": "input_video"}]}], "input[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], "input[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "input_text", "text": 5}]}], "input[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "input_image"}]}], "input[0].content[0].image_url"),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": {}}]}],
            "input[0].content[0].image_url.url",
        ),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,?"}]}],
            "input[0].content[0].image_url",
        ),
        ([{"role": "user", "content": [{"type": "input_file"}]}], "input[0].content[0].file_data"),
        ([{"role": "user", "content": [{"type": "input_file", "file_data": "?"}]}], "input[0].content[0].file_data"),
        ([{"type": "reasoning", "summary": 5}], "input[0].summary"),
        ([{"type": "reasoning", "encrypted_content": 5}], "input[0].encrypted_content"),
        ([{**CALL, "call_id": None}], "input[0].call_id"),
        ([{**CALL, "call_id": ""}], "input[0].call_id"),
        ([{**CALL, "name": ""}], "input[0].name"),
        ([{**CALL, "namespace": 5}], "input[0].namespace"),
        ([{**CALL, "arguments": None}], "input[0].arguments"),
        ([{**CALL, "arguments": []}], "input[0].arguments"),
        ([{"type": "custom_tool_call", "call_id": "c", "name": "f"}], "input[0].input"),
        ([{"type": "local_shell_call", "call_id": "c"}], "input[0].action"),
        ([{"type": "local_shell_call", "action": {}}], "input[0].id"),
        ([CALL, {"type": "function_call_output", "output": "x"}], "input[1].call_id"),
        ([CALL, {"type": "function_call_output", "call_id": "c", "output": 5}], "input[1].output"),
        ([{"type": "item_reference"}], "input[0].id"),
    ],
)
def test_wrong_item_names_its_field(given: Any, param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse(input=given)
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message or isinstance(caught.value, UnsupportedError)


@pytest.mark.parametrize("body", REAL)
def test_stored_items_say_the_same(body: dict[str, Any]) -> None:
    first = parse(body)
    stored = orjson.dumps(first.input_items)
    assert all(item["id"] and item["type"] for item in orjson.loads(stored))
    again = request.parse(
        fields_of(orjson.dumps({**body, "input": None, "previous_response_id": "resp_1"})), read_items(stored)
    )
    assert again.conversation == first.conversation
    assert again.input_items == ()


def test_tools_that_items_bring_keep_their_spelling_in_storage() -> None:
    body = (
        b'{"model": "m", "input": [{"role": "user", "content": "Hi"}, {"type": "additional_tools", "tools":'
        b' [{"name": "f", "parameters": {"type": "object",  "properties": {"a": {"maximum": 1e5}}}}]}]}'
    )
    first = request.parse(fields_of(body))
    again = request.parse(fields_of(b'{"model": "m"}'), read_items(orjson.dumps(first.input_items)))
    spelt = '{"type": "object",  "properties": {"a": {"maximum": 1e5}}}'
    assert [tool.parameters_json for tool in again.conversation.tools] == [spelt]


def test_text_input_is_stored_as_an_item() -> None:
    (item,) = parse(input="Hi").input_items
    assert item.pop("id").startswith("msg_")
    assert item == {
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "Hi"}],
    }


def test_deeply_nested_values_are_no_trouble() -> None:
    deep = b"[" * 900 + b"]" * 900
    body = b'{"model": "m", "input": [{"role": "user", "content": "Hi"}, {"type": "x", "content": %b}]}' % deep
    parsed = request.parse(fields_of(body))
    orjson.dumps([parsed.input_items, parsed.echo])
    assert isinstance(parsed.conversation.messages[1].parts[0].text.text, str)
