"""tokenizer.v1 requests → values; what is refused and how it is named."""

import struct

import pytest
from fencepost.tokenizer.v1 import tokenizer_pb2
from google.protobuf import json_format

from services.errors import ServiceError
from services.tokenizer.conversation import Call, Conversation, Message, OutputFormat, Role, Thought, ToolMode
from services.tokenizer.dialects.events import ToolGrammar, ToolSpec
from services.tokenizer.errors import InvalidRequestError
from services.tokenizer.fence.program import GrammarSyntax
from services.tokenizer.requests import read_generation, read_token_ids
from services.tokenizer.routing import Priority, derive_conversation_key

USER = {"role": "ROLE_USER", "parts": [{"text": {"text": "hi"}}]}


def generate(**fields: object) -> tokenizer_pb2.GenerateRequest:
    body = {"conversation": {"messages": [USER]}, "routing": {"tenant": "t"}, **fields}
    return json_format.ParseDict(
        {name: value for name, value in body.items() if value is not None}, tokenizer_pb2.GenerateRequest()
    )


def test_absent_fields_stay_absent() -> None:
    request = read_generation(generate())
    sampling = request.sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.seed, sampling.choices) == (None, None, None, None)
    assert (request.loop_guard, request.routing.persist, request.warm_up_only) == (None, None, False)


def test_zero_is_not_absent() -> None:
    request = read_generation(generate(sampling={"temperature": 0, "seed": 0}, loop_guard=False))
    assert (request.sampling.temperature, request.sampling.seed, request.loop_guard) == (0.0, 0, False)


def test_parts_become_text() -> None:
    parts = [
        {"text": {"text": "a"}},
        {"image": {"mediaType": "image/png", "data": "aGk="}},
        {"text": {"text": ""}},
        {"image": {"uri": "https://a/b.png"}},
        {"document": {"text": "the file"}},
        {"document": {"text": "the file", "title": "notes.txt", "mediaType": "text/plain"}},
        {"document": {"uri": "file:x"}},
        {"document": {"data": "aGk=", "title": "a.pdf", "mediaType": "application/pdf"}},
        {"refusal": {"text": "no"}},
    ]
    text = "\n".join(
        [
            "a",
            "[image/png image, not shown: this model takes text only]",
            "[image, not shown: this model takes text only]",
            "the file",
            "notes.txt\nthe file",
            "[document, not shown: this model takes text only]",
            '[application/pdf document "a.pdf", not shown: this model takes text only]',
            "no",
        ]
    )
    for role in ("ROLE_USER", "ROLE_TOOL", "ROLE_SYSTEM", "ROLE_ASSISTANT"):
        source = read_conversation(messages=[{"role": role, "parts": parts}])
        assert [message.content for message in source.messages] == [text]


def test_an_answer_in_several_parts_is_one_text() -> None:
    parts = [{"text": {"text": "Let me"}}, {"text": {"text": ""}}, {"refusal": {"text": " not."}}]
    assert read_conversation(messages=[{"role": "ROLE_ASSISTANT", "parts": parts}]).messages[0].content == "Let me not."


def test_a_picture_is_the_same_however_it_comes() -> None:
    sources = [{"data": "aGk="}, {"data": "YQ=="}, {"uri": "https://a/b.png"}]
    images = [{"image": {"mediaType": "image/png", **source}} for source in sources]
    contents = {read_conversation(messages=[{**USER, "parts": [image]}]).messages[0].content for image in images}
    assert contents == {"[image/png image, not shown: this model takes text only]"}


def test_routing() -> None:
    request = read_generation(generate(routing={"tenant": "t", "priority": "PRIORITY_BACKGROUND", "persist": False}))
    assert (request.routing.cache_scope, request.routing.priority, request.routing.persist) == (
        "t",
        Priority.BACKGROUND,
        False,
    )
    request = read_generation(generate(routing={"tenant": "t", "cacheScope": "s", "conversationKey": "k"}))
    assert (request.routing.cache_scope, request.routing.conversation_key) == ("s", "k")


def test_turns_of_one_conversation_share_a_derived_key() -> None:
    def key(tenant: str, *contents: str) -> str:
        roles = [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.USER]
        messages = tuple(Message(role, content) for role, content in zip(roles, contents, strict=False))
        return derive_conversation_key(tenant, Conversation(messages, {}))

    assert key("t", "s", "a") == key("t", "s", "a", "b", "c")
    assert len({key("t", "s", "a"), key("t", "s", "b"), key("t", "z", "a"), key("u", "s", "a")}) == 4
    assert derive_conversation_key("t", "x" * 2000) == derive_conversation_key("t", "x" * 3000)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"conversation": None}, "conversation"),
        ({"conversation": {}}, "conversation.messages"),
        ({"conversation": None, "text": ""}, "text"),
        ({"conversation": {"messages": [{"parts": []}]}}, "conversation.messages[0].role"),
        (
            {"conversation": {"messages": [USER, {"role": "ROLE_USER", "parts": [{}]}]}},
            "conversation.messages[1].parts[0]",
        ),
        ({"conversation": {"messages": [USER], "templateOptions": {"a": "{"}}}, "conversation.template_options"),
        (
            {"conversation": {"messages": [{**USER, "parts": [{"reasoning": {}}]}]}},
            "conversation.messages[0].parts",
        ),
        ({"conversation": {"messages": [{**USER, "calls": [{"name": "f"}]}]}}, "conversation.messages[0].calls"),
        (
            {"conversation": {"messages": [{"role": "ROLE_ASSISTANT", "calls": [{"arguments": "{}"}]}]}},
            "conversation.messages[0].calls[0].name",
        ),
        ({"conversation": {"messages": [USER], "tools": [{}]}}, "conversation.tools[0].name"),
        (
            {"conversation": {"messages": [USER], "tools": [{"name": "f"}, {"name": "f"}]}},
            "conversation.tools[1].name",
        ),
        (
            {"conversation": {"messages": [USER], "tools": [{"name": "f", "parametersJson": "[]"}]}},
            "conversation.tools[0].parameters_json",
        ),
        ({"routing": {}}, "routing.tenant"),
        ({"sampling": {"temperature": -0.1}}, "sampling.temperature"),
        ({"sampling": {"temperature": 2.1}}, "sampling.temperature"),
        ({"sampling": {"temperature": "NaN"}}, "sampling.temperature"),
        ({"sampling": {"topP": 0}}, "sampling.top_p"),
        ({"sampling": {"topP": 1.1}}, "sampling.top_p"),
        ({"sampling": {"topK": 0}}, "sampling.top_k"),
        ({"sampling": {"minP": 1.5}}, "sampling.min_p"),
        ({"sampling": {"presencePenalty": 3}}, "sampling.presence_penalty"),
        ({"sampling": {"frequencyPenalty": -3}}, "sampling.frequency_penalty"),
        ({"sampling": {"repetitionPenalty": 0}}, "sampling.repetition_penalty"),
        ({"sampling": {"repetitionPenalty": "Infinity"}}, "sampling.repetition_penalty"),
        ({"sampling": {"logitBias": {"5": 101}}}, "sampling.logit_bias"),
        ({"sampling": {"logprobs": 21}}, "sampling.logprobs"),
        ({"sampling": {"maxTokens": 0}}, "sampling.max_tokens"),
        ({"sampling": {"choices": 0}}, "sampling.choices"),
        ({"sampling": {"stopTexts": ["a", ""]}}, "sampling.stop_texts"),
        ({"sampling": {"stopTexts": ["a" * 1025]}}, "sampling.stop_texts"),
        ({"sampling": {"stopTexts": ["a"] * 65}}, "sampling.stop_texts"),
    ],
)
def test_a_bad_field_is_named(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_generation(generate(**fields))
    assert caught.value.metadata == {"field": field}


@pytest.mark.parametrize(
    ("choice", "field"),
    [
        ({"mode": "TOOL_CHOICE_MODE_REQUIRED"}, "conversation.tool_choice"),
        ({"allowedNames": ["g"]}, "conversation.tool_choice.allowed_names[0]"),
    ],
)
def test_a_choice_of_tools_that_are_not_there_is_refused(choice: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_generation(generate(conversation={"messages": [USER], "toolChoice": choice}))
    assert caught.value.metadata == {"field": field}


def test_a_choice_of_tools() -> None:
    tools = [{"name": "f", "namespace": "files"}, {"name": "g"}]
    choice = {"mode": "TOOL_CHOICE_MODE_REQUIRED", "allowedNames": ["files__f"]}
    required = read_conversation(tools=tools, toolChoice={"mode": "TOOL_CHOICE_MODE_REQUIRED"})
    assert (required.tool_mode, required.allowed_tools, required.limits_calls) == (
        ToolMode.REQUIRED,
        required.tools,
        True,
    )
    named = read_conversation(tools=tools, toolChoice=choice)
    assert (named.tool_mode, named.allowed_tools, named.limits_calls) == (ToolMode.REQUIRED, named.tools[:1], True)
    allowed = read_conversation(tools=tools, toolChoice={"allowedNames": ["g"]})
    assert (allowed.tool_mode, allowed.allowed_tools, allowed.limits_calls) == (ToolMode.AUTO, allowed.tools[1:], True)
    none = read_conversation(tools=tools, toolChoice={"mode": "TOOL_CHOICE_MODE_NONE", "allowedNames": ["g"]})
    assert (none.tool_mode, none.limits_calls) == (ToolMode.NONE, False)


def read_conversation(**fields: object) -> Conversation:
    source = read_generation(generate(conversation={"messages": [USER], **fields})).source
    assert isinstance(source, Conversation)
    return source


def test_tools_keep_their_text() -> None:
    schema = '{"type":"object", "properties": {"b": {"maximum": 1e5}, "a": {}}}'
    tools = [
        {"name": "f", "description": "", "parametersJson": schema, "namespace": "files"},
        {"name": "g"},
        {"name": "h", "kind": "CALL_KIND_CUSTOM", "description": "free text"},
        {"name": "h", "namespace": "files", "kind": "CALL_KIND_CUSTOM", "grammar": {"syntax": 1, "text": "start: /x/"}},
    ]
    assert read_conversation(tools=tools).tools == (
        ToolSpec("files__f", "", schema, namespace="files"),
        ToolSpec("g", None, '{"type": "object", "properties": {}}'),
        ToolSpec("h", "free text", '{"type": "object", "properties": {}}', is_custom=True),
        ToolSpec(
            "files__h",
            "The text has to match this Lark grammar:\nstart: /x/",
            '{"type": "object", "properties": {}}',
            is_custom=True,
            namespace="files",
            grammar=ToolGrammar(GrammarSyntax.LARK, "start: /x/"),
        ),
    )


def test_output_formats_keep_their_schema() -> None:
    assert read_conversation().output_format is None
    assert read_conversation(outputFormat={"jsonObject": {}}).output_format == OutputFormat(None)
    schema = '{"type":"object",  "required": ["b", "a"]}'
    named = {"jsonSchema": {"name": "n", "schemaJson": schema, "strict": True}}
    assert read_conversation(outputFormat=named).output_format == OutputFormat(schema)


def test_tool_settings() -> None:
    assert read_conversation().tool_mode is ToolMode.AUTO
    assert read_conversation(toolChoice={"mode": "TOOL_CHOICE_MODE_AUTO"}).tool_mode is ToolMode.AUTO
    assert read_conversation(toolChoice={"mode": "TOOL_CHOICE_MODE_NONE"}).tool_mode is ToolMode.NONE
    assert (read_conversation().parallel_calls, read_conversation(parallelCalls=False).parallel_calls) == (True, False)


def test_thinking_is_left_to_the_template_unless_asked_for() -> None:
    modes = [None, "REASONING_MODE_OFF", "REASONING_MODE_ON"]
    found = [read_conversation(**({"reasoning": {"mode": mode}} if mode else {})).enable_thinking for mode in modes]
    assert found == [None, False, True]


def test_calls_and_results_are_messages() -> None:
    calls = [
        {"callId": "1", "name": "f", "arguments": '{"x": 1e5}'},
        {"callId": "2", "name": "g", "namespace": "files", "arguments": "text", "kind": "CALL_KIND_CUSTOM"},
    ]
    parts = [
        {"reasoning": {"text": "hm", "capsule": "Yg=="}},
        {"text": {"text": "Let me look."}},
        {"reasoning": {"text": ""}},
        {"reasoning": {"text": "ah"}},
    ]
    result = {"role": "ROLE_TOOL", "callId": "1", "isError": True, "parts": [{"text": {"text": "none"}}]}
    source = read_conversation(messages=[USER, {"role": "ROLE_ASSISTANT", "parts": parts, "calls": calls}, result])
    _, answer, given = source.messages
    assert answer == Message(
        Role.ASSISTANT,
        "Let me look.",
        reasoning="hm\nah",
        calls=(Call("1", "f", '{"x": 1e5}'), Call("2", "files__g", "text", is_custom=True)),
        thoughts=(Thought("hm", b"b"), Thought(""), Thought("ah")),
    )
    assert given == Message(Role.TOOL, "none", call_id="1", is_error=True)


def test_harmless_tool_settings_are_taken() -> None:
    read_generation(
        generate(conversation={"messages": [USER], "toolChoice": {"mode": "TOOL_CHOICE_MODE_NONE"}, "outputFormat": {}})
    )


def test_token_ids() -> None:
    assert read_token_ids(struct.pack("<3i", 0, 7, 9), 10, 100).tolist() == [0, 7, 9]
    assert read_token_ids(b"", 10, 100).tolist() == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"abc", "3 bytes"),
        (struct.pack("<2i", 1, -1), r"token_ids\[1\] is -1; ids are 0 to 9"),
        (struct.pack("<2i", 10, 1), r"token_ids\[0\] is 10"),
        (bytes(104), "at most 100"),
    ],
)
def test_bad_token_ids_are_named(data: bytes, message: str) -> None:
    with pytest.raises(ServiceError, match=message):
        read_token_ids(data, 10, 100)
