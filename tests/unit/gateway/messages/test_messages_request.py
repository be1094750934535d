"""The body of a Messages request, field by field."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from fencepost.tokenizer.v1 import conversation_pb2 as conv
from fencepost.tokenizer.v1 import tokenizer_pb2 as pb

from services.gateway.asking import Asked
from services.gateway.errors import BadRequestError
from services.gateway.messages.request import client_field, parse, parse_count
from tests.unit.gateway.exchanges import exchange_of

USER = {"role": "user", "content": "Hi"}
PNG = base64.b64encode(b"\x89PNG").decode()
SIGNATURE = base64.b64encode(b"capsule").decode()
BASH = {"name": "Bash", "description": "Run it.", "input_schema": {"type": "object", "properties": {}}}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}


def asked(headers: dict[str, str] | None = None, **changes: Any) -> Asked:
    values = {"model": "m", "max_tokens": 10, "messages": [USER], **changes}
    return parse(exchange_of(json.dumps(values).encode(), headers), response_id="msg_1")


def conversation(**changes: Any) -> conv.Conversation:
    return asked(**changes).generate.conversation


def text(value: str) -> conv.Part:
    return conv.Part(text=conv.TextPart(text=value))


def messages(*contents: Any, role: str = "user") -> list[conv.Message]:
    """Of one message with these blocks."""
    return list(conversation(messages=[{"role": role, "content": list(contents)}]).messages)


def parts(*contents: Any, role: str = "user") -> list[conv.Part]:
    (found,) = messages(*contents, role=role)
    return list(found.parts)


def result(call_id: str = "call_1", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, **fields}


def tool_use(**changes: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "call_1", "name": "Bash", "input": {}, **changes}


def image(**source: Any) -> dict[str, Any]:
    return {"type": "image", "source": source}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [USER, "Hi"]}, "messages.1"),
        ({"messages": [{"content": "Hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "tool", "content": "Hi"}]}, "messages.0.role"),
        ({"messages": [USER, {"role": "assistant"}]}, "messages.1.content"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content"),
        ({"messages": [{"role": "assistant", "content": {}}]}, "messages.0.content"),
        ({"messages": [{"role": "system", "content": 7}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": ["Hi"]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"text": "Hi"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0.source"),
        (
            {"messages": [{"role": "user", "content": [image(type="base64", media_type="image/png", data="?")]}]},
            "messages.0.content.0.source.data",
        ),
        (
            {"messages": [USER, {"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages.1.content.0.tool_use_id",
        ),
        (
            {"messages": [{"role": "user", "content": [USER | {"type": "text", "text": "a"}, result(content=5)]}]},
            "messages.0.content.1.content",
        ),
        ({"messages": [{"role": "user", "content": [result(is_error="no")]}]}, "messages.0.content.0.is_error"),
        ({"messages": [{"role": "assistant", "content": [tool_use(id=None)]}]}, "messages.0.content.0.id"),
        ({"messages": [{"role": "assistant", "content": [tool_use(name="")]}]}, "messages.0.content.0.name"),
        ({"messages": [{"role": "assistant", "content": [tool_use(input="{}")]}]}, "messages.0.content.0.input"),
        ({"system": 3}, "system"),
        ({"system": [{"type": "text", "text": 3}]}, "system.0.text"),
        ({"tools": [{"name": "a"}]}, "tools.0.input_schema"),
        ({"tools": [BASH, {**BASH, "name": ""}]}, "tools.1.name"),
        ({"tools": [BASH, BASH]}, "tools.1.name"),
        ({"tools": [{**BASH, "input_schema": "{}"}]}, "tools.0.input_schema"),
        ({"tools": [BASH], "tool_choice": "auto"}, "tool_choice"),
        ({"tools": [BASH], "tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"tools": [BASH], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [BASH], "tool_choice": {"type": "tool", "name": "Read"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"temperature": 1.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": "a"}, "stop_sequences"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences.1"),
        ({"stop_sequences": ["a"] * 65}, "stop_sequences"),
        ({"thinking": True}, "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
    ],
)
def test_a_wrong_field_is_named_first(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        asked(**changes)
    assert caught.value.anthropic_message.startswith(f"{path}: ")


def test_messages_without_a_type_of_error_read_well() -> None:
    with pytest.raises(BadRequestError) as caught:
        asked(messages=[{"role": "user", "content": [{"type": "text", "text": 5}]}])
    assert caught.value.anthropic_message == "messages.0.content.0.text: must be a string, not an integer."


@pytest.mark.parametrize(
    ("contract", "client"),
    [
        ("conversation.messages[3].calls[0].name", "messages"),
        ("conversation.messages", "messages"),
        ("conversation", "messages"),
        ("conversation.tool_choice", "tool_choice"),
        ("sampling.stop_texts", "stop_sequences"),
        ("sampling.max_tokens", "max_tokens"),
        ("conversation.output_format.json_schema", "output_config.format"),
        ("model", "model"),
    ],
)
def test_fields_of_the_contract_in_the_clients_spelling(contract: str, client: str) -> None:
    assert client_field(contract) == client


def test_the_system_prompt_comes_first_in_one_message() -> None:
    found = conversation(system="Be brief.").messages
    assert list(found) == [
        conv.Message(role=conv.ROLE_SYSTEM, parts=[text("Be brief.")]),
        conv.Message(role=conv.ROLE_USER, parts=[text("Hi")]),
    ]
    blocks = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    assert list(conversation(system=blocks).messages[0].parts) == [text("a"), text("b")]


@pytest.mark.parametrize("system", ["", [], None, [{"type": "text", "text": ""}]])
def test_an_empty_system_prompt_is_none(system: Any) -> None:
    assert [message.role for message in conversation(system=system).messages] == [conv.ROLE_USER]


BILLING = "x-anthropic-billing-header: cc_version=2.1; cch=abcde;"


@pytest.mark.parametrize(
    "system",
    [
        [{"type": "text", "text": BILLING}, {"type": "text", "text": "Be brief."}],
        [{"type": "text", "text": "Be brief."}, {"type": "text", "text": BILLING}],
        [{"type": "text", "text": f"{BILLING}\nBe brief."}],
        f"{BILLING}\n\nBe brief.",
        f"{BILLING}\nBe brief.",
    ],
)
def test_billing_headers_are_dropped(system: Any) -> None:
    assert list(conversation(system=system).messages[0].parts) == [text("Be brief.")]
    in_place = conversation(messages=[USER, {"role": "system", "content": system}]).messages
    assert in_place[1] == conv.Message(role=conv.ROLE_SYSTEM, parts=[text("Be brief.")])


def test_a_billing_header_alone_is_no_message() -> None:
    assert len(conversation(system=BILLING).messages) == 1
    assert len(conversation(messages=[USER, {"role": "system", "content": BILLING}]).messages) == 1


def test_system_messages_stay_where_they_are() -> None:
    said = [USER, {"role": "system", "content": "Now hurry."}, {"role": "assistant", "content": "Yes."}, USER]
    found = conversation(system="Be brief.", messages=said).messages
    assert [(message.role, message.parts[0].text.text) for message in found] == [
        (conv.ROLE_SYSTEM, "Be brief."),
        (conv.ROLE_USER, "Hi"),
        (conv.ROLE_SYSTEM, "Now hurry."),
        (conv.ROLE_ASSISTANT, "Yes."),
        (conv.ROLE_USER, "Hi"),
    ]


def test_results_come_right_behind_their_calls_whatever_their_place() -> None:
    found = messages(
        {"type": "text", "text": "First"},
        result("call_2", content="two", is_error=True),
        {"type": "text", "text": "between"},
        result("call_1", content=[{"type": "text", "text": "one"}, image(type="url", url="https://x/a.png")]),
        result("call_3"),
        {"type": "text", "text": "last"},
    )
    assert found == [
        conv.Message(role=conv.ROLE_TOOL, call_id="call_2", is_error=True, parts=[text("two")]),
        conv.Message(
            role=conv.ROLE_TOOL,
            call_id="call_1",
            parts=[text("one"), conv.Part(image=conv.ImagePart(uri="https://x/a.png"))],
        ),
        conv.Message(role=conv.ROLE_TOOL, call_id="call_3"),
        conv.Message(role=conv.ROLE_USER, parts=[text("First"), text("between"), text("last")]),
    ]


@pytest.mark.parametrize("content", ["", [], None])
def test_an_empty_result_is_still_one(content: Any) -> None:
    assert messages(result(content=content)) == [conv.Message(role=conv.ROLE_TOOL, call_id="call_1")]


def test_results_alone_add_no_message_of_the_user() -> None:
    assert [message.role for message in messages(result(content="a", is_error=False))] == [conv.ROLE_TOOL]
    assert messages(result(content="a", is_error=False)) == messages(result(content="a"))


def test_an_answer_is_one_message() -> None:
    (found,) = messages(
        {"type": "thinking", "thinking": "hm", "signature": SIGNATURE},
        {"type": "redacted_thinking", "data": SIGNATURE},
        {"type": "text", "text": "So:"},
        tool_use(id="call_1", input={"a": 1}),
        {"type": "text", "text": "and"},
        tool_use(id="call_2", name="mcp__x__y"),
        role="assistant",
    )
    assert found == conv.Message(
        role=conv.ROLE_ASSISTANT,
        parts=[
            conv.Part(reasoning=conv.ReasoningPart(text="hm", capsule=b"capsule")),
            conv.Part(reasoning=conv.ReasoningPart(text="", capsule=b"capsule")),
            text("So:"),
            text("and"),
        ],
        calls=[
            conv.Call(call_id="call_1", name="Bash", kind=conv.CALL_KIND_FUNCTION, arguments='{"a": 1}', index=0),
            conv.Call(call_id="call_2", name="mcp__x__y", kind=conv.CALL_KIND_FUNCTION, arguments="{}", index=1),
        ],
    )


def test_arguments_and_schemas_keep_the_clients_spelling() -> None:
    spelt = '{ "b":1.0,"a" : 1e5,\n"s":"\\u00e9"}'
    values = {
        "model": "m",
        "max_tokens": 1,
        "messages": [USER, {"role": "assistant", "content": [tool_use(input="SPELT")]}],
        "tools": [{"name": "n", "input_schema": "SPELT"}],
        "output_config": {"format": {"type": "json_schema", "schema": "SPELT"}},
    }
    body = json.dumps(values).replace('"SPELT"', spelt)
    found = parse(exchange_of(body.encode()), response_id="").generate.conversation
    assert found.messages[1].calls[0].arguments == spelt
    assert found.tools[0].parameters_json == spelt
    assert found.output_format.json_schema.schema_json == spelt


@pytest.mark.parametrize("signature", [None, "", "not-signed", "ünknown", "abc"])
def test_a_signature_that_is_no_capsule_leaves_the_thought(signature: str | None) -> None:
    block = {"type": "thinking", "thinking": "hm", "signature": signature}
    assert parts(block, role="assistant") == [conv.Part(reasoning=conv.ReasoningPart(text="hm"))]


def test_only_the_model_thinks() -> None:
    assert parts({"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}) == [text("a")]


def test_a_thought_of_nothing_is_none() -> None:
    assert parts({"type": "thinking", "thinking": "", "signature": ""}, role="assistant") == []


def test_the_last_answer_may_be_a_beginning() -> None:
    found = conversation(messages=[USER, {"role": "assistant", "content": "{"}]).messages
    assert found[1] == conv.Message(role=conv.ROLE_ASSISTANT, parts=[text("{")])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"type": "base64", "media_type": "image/png", "data": PNG}, {"media_type": "image/png", "data": b"\x89PNG"}),
        ({"type": "url", "url": "https://x/a.png"}, {"uri": "https://x/a.png"}),
        ({"type": "file", "file_id": "file_1"}, {"uri": "file_1"}),
        ({"type": "hologram"}, {"uri": ""}),
    ],
)
def test_images(source: dict[str, Any], expected: dict[str, Any]) -> None:
    assert parts({"type": "image", "source": source}) == [conv.Part(image=conv.ImagePart(**expected))]
    inside = messages(result(content=[{"type": "image", "source": source}]))
    assert list(inside[0].parts) == [conv.Part(image=conv.ImagePart(**expected))]


def test_documents() -> None:
    def document(source: dict[str, Any], **fields: Any) -> list[conv.Part]:
        return parts({"type": "document", "source": source, **fields})

    pdf = {"type": "base64", "media_type": "application/pdf", "data": PNG}
    assert document(pdf, title="T") == [
        conv.Part(document=conv.DocumentPart(media_type="application/pdf", title="T", data=b"\x89PNG"))
    ]
    plain = {"type": "text", "media_type": "text/plain", "data": "words"}
    assert document(plain, context="About it", citations={"enabled": True}) == [
        text("About it"),
        conv.Part(document=conv.DocumentPart(media_type="text/plain", text="words")),
    ]
    picture = image(type="url", url="u")
    mixed = {"type": "content", "content": [{"type": "text", "text": "a"}, picture]}
    assert document(mixed, title="T") == [text("T"), text("a"), conv.Part(image=conv.ImagePart(uri="u"))]
    assert document({"type": "content", "content": "words"}) == [text("words")]
    assert document({"type": "url", "url": "https://x/a.pdf"}) == [
        conv.Part(document=conv.DocumentPart(uri="https://x/a.pdf"))
    ]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}, None),
        (
            {
                "type": "web_search_tool_result",
                "tool_use_id": "s",
                "content": [{"type": "web_search_result", "title": "T", "url": "https://x", "encrypted_content": "e"}],
            },
            "T\nhttps://x",
        ),
        ({"type": "web_search_tool_result", "content": {"type": "error", "error_code": "x"}}, None),
        ({"type": "mcp_tool_use", "id": "m", "name": "n", "server_name": "s", "input": {}}, None),
        ({"type": "mcp_tool_result", "tool_use_id": "m", "content": [{"type": "text", "text": "done"}]}, "done"),
        ({"type": "container_upload", "file_id": "f"}, None),
        (
            {"type": "search_result", "source": "S", "title": "T", "content": [{"type": "text", "text": "found"}]},
            "T\nS\nfound",
        ),
        (
            {"type": "code_execution_tool_result", "content": {"stdout": "out", "stderr": "", "return_code": 0}},
            "out",
        ),
        ({"type": "compaction", "content": "So far."}, "So far."),
        ({"type": "tool_reference", "tool_name": "Read"}, "Read"),
        ({"type": "hologram", "text": "words"}, "words"),
        ({"type": "hologram", "text": 5, "content": 7, "title": None}, None),
    ],
)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_other_blocks_give_their_text_or_nothing(block: dict[str, Any], expected: str | None, role: str) -> None:
    found = parts({"type": "text", "text": "a"}, block, role=role)
    assert found == [text("a"), *([text(expected)] if expected else [])]


def test_depth_is_no_danger() -> None:
    content: Any = "deep"
    for _ in range(300):
        content = [{"type": "hologram", "content": content}]
    assert parts({"type": "text", "text": "a"}, *content) == [text("a")]


def test_tools() -> None:
    tools = [{**BASH, "cache_control": {"type": "ephemeral"}, "strict": True}, SEARCH, {**BASH, "name": "mcp__x__y"}]
    first, second = conversation(tools=tools).tools
    assert first == conv.Tool(
        name="Bash",
        description="Run it.",
        kind=conv.CALL_KIND_FUNCTION,
        parameters_json='{"type": "object", "properties": {}}',
        strict=True,
    )
    assert second.name == "mcp__x__y"


def test_a_typed_tool_with_a_schema_is_served() -> None:
    assert conversation(tools=[{**BASH, "type": "bash_20250124"}]).tools[0].name == "Bash"
    assert conversation(tools=[{**BASH, "type": "custom"}]).tools[0].name == "Bash"


AUTO, NONE, ANY = conv.TOOL_CHOICE_MODE_AUTO, conv.TOOL_CHOICE_MODE_NONE, conv.TOOL_CHOICE_MODE_REQUIRED


@pytest.mark.parametrize(
    ("choice", "expected", "is_parallel"),
    [
        ({"type": "auto"}, conv.ToolChoice(mode=AUTO), None),
        ({"type": "auto", "disable_parallel_tool_use": True}, conv.ToolChoice(mode=AUTO), False),
        ({"type": "any", "disable_parallel_tool_use": False}, conv.ToolChoice(mode=ANY), True),
        ({"type": "tool", "name": "Bash"}, conv.ToolChoice(mode=ANY, allowed_names=["Bash"]), None),
        ({"type": "none"}, conv.ToolChoice(mode=NONE), None),
    ],
)
def test_tool_choice(choice: dict[str, Any], expected: conv.ToolChoice, is_parallel: bool | None) -> None:
    found = conversation(tools=[BASH], tool_choice=choice)
    assert found.tool_choice == expected
    assert (found.parallel_calls if found.HasField("parallel_calls") else None) == is_parallel


@pytest.mark.parametrize(
    "choice", [{"type": "any"}, {"type": "tool", "name": "web_search"}, {"type": "auto"}, {"type": "none"}]
)
def test_a_choice_among_tools_that_are_not_served_is_left_out(choice: dict[str, Any]) -> None:
    found = conversation(tools=[SEARCH], tool_choice=choice)
    assert not found.HasField("tool_choice")
    assert not found.tools


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, {"mode": 2, "budget_tokens": 2048}),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, {"mode": 3}),
        ({"thinking": {"type": "disabled"}}, {"mode": 1}),
        ({"thinking": {"type": "between_tools"}}, {}),
        ({"output_config": {"effort": "high"}}, {"effort": "high"}),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, {"mode": 3, "effort": "max"}),
    ],
)
def test_reasoning(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    assert conversation(**changes).reasoning == conv.ReasoningOptions(**expected)
    assert not conversation().HasField("reasoning")


@pytest.mark.parametrize("key", ["output_config", "output_format"])
def test_output_format(key: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    found = conversation(**{key: {"format": form} if key == "output_config" else form}).output_format
    assert found.json_schema.schema_json == '{"type": "object"}'
    assert found.json_schema.strict


def test_sampling() -> None:
    changes: dict[str, Any] = {"temperature": 1, "top_p": 0.5, "top_k": 40, "stop_sequences": ["END", "\n"]}
    assert asked(**changes).generate.sampling == pb.Sampling(
        temperature=1, top_p=0.5, top_k=40, max_tokens=10, stop_texts=["END", "\n"]
    )
    assert asked(top_k=0).generate.sampling == pb.Sampling(max_tokens=10)


def test_what_is_not_known_is_ignored() -> None:
    plain = asked().generate
    assert (
        plain
        == asked(
            service_tier="auto",
            mcp_servers=[{"url": "x"}],
            container="c",
            betas=["b"],
            context_management={"edits": []},
            unheard_of={"a": 1},
            metadata={"user_id": None},
        ).generate
    )


def test_keys_of_affinity() -> None:
    session = asked({"x-claude-code-session-id": "s"}, metadata={"user_id": "u"})
    assert (session.generate.routing.conversation_key, session.replica_key) == ("s", "s")
    somebody = asked(metadata={"user_id": "u"})
    assert (somebody.generate.routing.conversation_key, somebody.replica_key) == ("", "u")


def test_a_count_has_the_prompt_of_the_request() -> None:
    values = {"model": "m", "system": "s", "tools": [BASH], "messages": [USER]}
    counted = parse_count(exchange_of(json.dumps(values).encode())).generate
    assert counted.conversation == conversation(**values)
    assert counted.routing.response_id == ""
    assert counted.sampling == pb.Sampling()
