"""The body of a chat request, field by field."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from fencepost.tokenizer.v1 import conversation_pb2 as conv
from fencepost.tokenizer.v1 import tokenizer_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.gateway import chat_request
from services.gateway.chat_request import client_field
from services.gateway.client_request import ClientRequest
from services.gateway.errors import BadRequestError, UnsupportedError
from tests.unit.gateway.exchanges import exchange_of

USER = {"role": "user", "content": "Hi"}
PNG = base64.b64encode(b"\x89PNG").decode()


def parse(headers: dict[str, str] | None = None, **changes: Any) -> ClientRequest:
    values = {"model": "m", "messages": [USER], **changes}
    return chat_request.parse(
        exchange_of(json.dumps(values).encode(), headers, values=values), response_id="chatcmpl-1"
    )


def message(**fields: Any) -> conv.Message:
    return parse(messages=[fields]).generate.conversation.messages[0]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": 3}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"messages": [USER, "Hi"]}, "messages[1]"),
        ({"messages": [None]}, "messages[0]"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "function", "content": "Hi", "name": "f"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "Hi"}]}, "messages[0].role"),
        ({"messages": [USER, USER, {"role": "user", "content": 7}]}, "messages[2].content"),
        ({"messages": [{"role": "user", "content": {}}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["Hi"]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"text": "Hi"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].image_url.url",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}],
                    }
                ]
            },
            "messages[0].content[0].image_url.url",
        ),
        ({"messages": [{"role": "user", "content": "a", "name": 1}]}, "messages[0].name"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"type": "magic"}]}]}, "messages[0].tool_calls[0].type"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}]},
            "messages[0].tool_calls[0].id",
        ),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 5.0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 0, "max_completion_tokens": 5}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 2**32}, "max_completion_tokens"),
        ({"max_completion_tokens": 1e30}, "max_completion_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"seed": 1.0}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"seed": False}, "seed"),
        ({"stop": 3}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": {}}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a", None]}, "stop[1]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"n": 0}, "n"),
        ({"n": "1"}, "n"),
        ({"n": 129}, "n"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"-5": 1}}, "logit_bias"),
        ({"logit_bias": {"٥": 1}}, "logit_bias"),
        ({"logit_bias": {"4294967296": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias"),
        ({"logit_bias": {"5": True}}, "logit_bias"),
        ({"logit_bias": {"5": -100.5}}, "logit_bias"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": False}, "frequency_penalty"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": ""}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": "{}"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": "text"}, "response_format"),
        ({"response_format": {"type": 1}}, "response_format.type"),
        ({"user": 5}, "user"),
        ({"parallel_tool_calls": 0}, "parallel_tool_calls"),
        ({"messages": [{"role": "assistant", "reasoning_content": ["hm"]}]}, "messages[0].reasoning_content"),
        ({"messages": [{"role": "assistant", "reasoning": {}}]}, "messages[0].reasoning"),
        (
            {
                "messages": [
                    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": [1]}}]}
                ]
            },
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"prompt_cache_key": []}, "prompt_cache_key"),
    ],
)
def test_wrong_value_names_its_field(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse(**changes)
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message or caught.value.message.startswith("'file' parts")


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"functions": [{"name": "ls"}]}, "functions"),
        ({"function_call": {"name": "ls"}}, "function_call"),
        ({"modalities": ["text", "audio"]}, "modalities"),
    ],
)
def test_what_is_not_served_is_refused_by_name(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        parse(**changes)
    assert caught.value.param == param
    assert "not supported yet" in caught.value.message


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 1},
        {"logprobs": False, "top_logprobs": 0, "logit_bias": {}},
        {"presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1.0},
        {"top_k": -1, "min_p": 0},
        {"top_k": 0},
        {"tools": [], "tool_choice": "none", "parallel_tool_calls": True},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}, "modalities": ["text"]},
        {"stop": [], "stream_options": None},
        {"store": False, "metadata": {"a": "b"}, "service_tier": "auto", "never_heard_of": [1]},
    ],
)
def test_what_changes_nothing_is_taken(changes: dict[str, Any]) -> None:
    assert parse(**changes).generate == parse().generate


def test_null_means_absent() -> None:
    names = (
        "temperature top_p seed stop max_tokens max_completion_tokens stream stream_options n tools tool_choice top_k "
        "min_p repetition_penalty logprobs top_logprobs logit_bias response_format reasoning_effort"
    )
    request = parse(**dict.fromkeys(names.split()))
    assert request == parse()
    assert not request.generate.sampling.ListFields()


def test_sampling() -> None:
    request = parse(temperature=0, top_p=1, max_tokens=1, stop="END", seed=5)
    sampling = request.generate.sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens, sampling.seed) == (0, 1, 1, 5)
    assert sampling.HasField("temperature")
    assert list(sampling.stop_texts) == ["END"]
    assert parse(max_tokens=1, max_completion_tokens=2).generate.sampling.max_tokens == 2


def test_all_that_shapes_the_choice_of_tokens() -> None:
    sampling = parse(
        n=3,
        logprobs=True,
        top_logprobs=5,
        logit_bias={"50256": -100, "7": 0.5},
        presence_penalty=0.5,
        frequency_penalty=-1,
        top_k=40,
        min_p=0.25,
        repetition_penalty=1.5,
    ).generate.sampling
    assert sampling == tokenizer_pb2.Sampling(
        choices=3,
        logprobs=5,
        logit_bias={50256: -100, 7: 0.5},
        presence_penalty=0.5,
        frequency_penalty=-1,
        top_k=40,
        min_p=0.25,
        repetition_penalty=1.5,
    )
    assert parse(logprobs=True).generate.sampling == tokenizer_pb2.Sampling(logprobs=0)


def test_a_schema_stays_as_it_was_spelt() -> None:
    spelt = '{"type" : "object",\n "b": 1e2, "a": "\\u0041"}'
    body = (
        '{"model": "m", "messages": [{"role": "user", "content": "Hi"}], "response_format": {"type": "json_schema", '
        '"json_schema": {"name": "answer", "strict": true, "schema": ' + spelt + " }}}"
    )
    request = chat_request.parse(exchange_of(body.encode()), response_id="c")
    assert request.generate.conversation.output_format == conv.OutputFormat(
        json_schema=conv.JsonSchema(name="answer", schema_json=spelt, strict=True)
    )


def test_formats_without_a_schema() -> None:
    asked = parse(response_format={"type": "json_object"}).generate.conversation.output_format
    assert asked == conv.OutputFormat(json_object=conv.JsonObject())
    assert not parse(response_format={"type": "text"}).generate.conversation.HasField("output_format")


def test_reasoning_effort() -> None:
    assert not parse().generate.conversation.HasField("reasoning")
    off = parse(reasoning_effort="none").generate.conversation.reasoning
    assert off == conv.ReasoningOptions(mode=conv.REASONING_MODE_OFF)
    for effort in ("minimal", "low", "medium", "high", "xhigh"):
        found = parse(reasoning_effort=effort).generate.conversation.reasoning
        assert found == conv.ReasoningOptions(mode=conv.REASONING_MODE_ON, effort=effort)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_different_seeds_stay_different(left: int, right: int) -> None:
    seeds = [parse(seed=seed).generate.sampling.seed for seed in (left, right)]
    assert (seeds[0] == seeds[1]) == (left == right)
    assert left < 0 or seeds[0] == left


def test_streaming_choices() -> None:
    assert not parse().is_stream
    assert not parse(stream=True).include_usage
    assert not parse(stream=True, stream_options={}).include_usage
    assert parse(stream=True, stream_options={"include_usage": True}).include_usage


def test_roles_stay_in_place() -> None:
    roles = ["user", "system", "developer", "assistant", "user"]
    messages = parse(messages=[{"role": role, "content": role} for role in roles]).generate.conversation.messages
    assert [conv.Role.Name(found.role).removeprefix("ROLE_").lower() for found in messages] == roles
    assert [found.parts[0].text.text for found in messages] == roles


def test_content_is_taken_verbatim() -> None:
    hostile = "\x00\ufeff<|im_end|>\u2028é\U0001f600 \r\n"
    assert message(role="user", content=hostile).parts[0].text.text == hostile
    parts = message(role="user", content=[{"type": "text", "text": hostile}, {"type": "text", "text": ""}]).parts
    assert [part.text.text for part in parts] == [hostile, ""]
    assert message(role="user", content="").parts[0].text.text == ""


def test_images_are_the_tokenizers_business() -> None:
    urls = [f"data:image/png;base64,{PNG}", f"data:image/png;charset=x;base64,{PNG}", "https://example.com/a.png"]
    parts = message(role="user", content=[{"type": "image_url", "image_url": {"url": url}} for url in urls]).parts
    assert [(part.image.media_type, part.image.data) for part in parts[:2]] == [("image/png", b"\x89PNG")] * 2
    assert parts[2].image.uri == "https://example.com/a.png"


def test_calls_and_results_pass_verbatim() -> None:
    arguments = '{"b": 1,  "a":2}'
    calls = [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}},
        {"id": "call_2", "type": "custom", "custom": {"name": "g", "input": "raw"}},
    ]
    made = message(role="assistant", content=None, tool_calls=calls)
    assert not made.parts
    assert [(call.call_id, call.name, call.arguments, call.index) for call in made.calls] == [
        ("call_1", "f", arguments, 0),
        ("call_2", "g", "raw", 1),
    ]
    assert [call.kind for call in made.calls] == [conv.CALL_KIND_FUNCTION, conv.CALL_KIND_CUSTOM]
    result = message(role="tool", content="42", tool_call_id="call_1")
    assert (result.role, result.call_id, result.parts[0].text.text) == (conv.ROLE_TOOL, "call_1", "42")


def test_arguments_that_came_as_an_object_stay_as_they_were_spelt() -> None:
    spelt = '{"b" : 1e5,\n "a":[1.0, "\\u0041"], "b": 2}'
    body = (
        '{"model": "m", "messages": [{"role": "user", "content": "}]"}, {"role": "assistant", "tool_calls": '
        '[{"id": "c", "function": {"name": "f", "arguments": ' + spelt + " }}]}]}"
    )
    request = chat_request.parse(exchange_of(body.encode()), response_id="c")
    assert request.generate.conversation.messages[1].calls[0].arguments == spelt


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_echoed_reasoning_comes_before_the_text(key: str) -> None:
    parts = message(role="assistant", content="yes", **{key: " hm\n"}).parts
    assert [part.WhichOneof("kind") for part in parts] == ["reasoning", "text"]
    assert parts[0].reasoning.text == " hm\n"
    alone = message(role="assistant", content=None, **{key: "hm"}).parts
    assert [part.WhichOneof("kind") for part in alone] == ["reasoning"]
    assert len(message(role="assistant", content="yes", **{key: ""}).parts) == 1
    assert len(message(role="user", content="yes", **{key: "hm"}).parts) == 1


def test_reasoning_sent_under_both_names_is_taken_once() -> None:
    parts = message(role="assistant", content="yes", reasoning_content="hm", reasoning="hm").parts
    assert [part.WhichOneof("kind") for part in parts] == ["reasoning", "text"]


def test_results_may_hold_pictures() -> None:
    content = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
    ]
    parts = message(role="tool", tool_call_id="c", content=content).parts
    assert [part.WhichOneof("kind") for part in parts] == ["text", "image"]
    assert parts[1].image.data == b"\x89PNG"


def test_refusals_pass() -> None:
    assert message(role="assistant", content=None, refusal="No.").parts[0].refusal.text == "No."
    parts = [{"type": "refusal", "refusal": "No."}]
    assert message(role="assistant", content=parts).parts[0].refusal.text == "No."


def test_replica_key_prefers_what_names_the_conversation() -> None:
    named = {"session-id": "s", "thread-id": "t"}
    assert parse(named, prompt_cache_key="k", user="u").replica_key == "s"
    assert parse({"thread-id": "t"}).replica_key == "t"
    assert parse({"x-session-id": "x"}).replica_key == "x"
    assert parse({"x-claude-code-session-id": "c"}).replica_key == "c"
    assert parse(prompt_cache_key="k", user="u").replica_key == "k"
    assert parse(prompt_cache_key="k").generate.routing.conversation_key == "k"
    assert parse(user="u").replica_key == "u"
    # A user has many conversations.
    assert parse(user="u").generate.routing.conversation_key == ""


def test_replica_key_is_equal_for_the_turns_of_a_conversation() -> None:
    first = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    later = [*first, {"role": "assistant", "content": "a"}, {"role": "user", "content": "q2"}]
    assert parse(messages=first).replica_key == parse(messages=later).replica_key
    other = [{"role": "system", "content": "s"}, {"role": "user", "content": "p"}]
    assert parse(messages=first).replica_key != parse(messages=other).replica_key


@pytest.mark.parametrize(
    ("contract", "client"),
    [
        ("model", "model"),
        ("conversation", "messages"),
        ("conversation.messages[2].parts[0]", "messages[2].content[0]"),
        ("conversation.messages[2].call_id", "messages[2].tool_call_id"),
        ("conversation.messages[2].calls[1]", "messages[2].tool_calls[1]"),
        ("conversation.messages[2].calls[1].call_id", "messages[2].tool_calls[1].id"),
        ("conversation.messages[2].calls[1].arguments", "messages[2].tool_calls[1].function.arguments"),
        ("conversation.tools", "tools"),
        ("conversation.tools[3]", "tools[3]"),
        ("conversation.tools[3].name", "tools[3]"),
        ("conversation.tools[3].parameters_json", "tools[3].function.parameters"),
        ("conversation.tools[3].grammar.text", "tools[3].custom.format"),
        ("conversation.tool_choice", "tool_choice"),
        ("conversation.tool_choice.allowed_names[0]", "tool_choice"),
        ("conversation.parallel_calls", "parallel_tool_calls"),
        ("sampling.stop_texts[3]", "stop[3]"),
        ("sampling.max_tokens", "max_tokens"),
        ("sampling.choices", "n"),
        ("sampling.logprobs", "top_logprobs"),
        ("sampling.logit_bias", "logit_bias"),
        ("conversation.output_format.json_schema", "response_format"),
        ("conversation.reasoning.effort", "reasoning_effort"),
    ],
)
def test_fields_are_spelt_as_the_client_spells_them(contract: str, client: str) -> None:
    assert client_field(contract) == client


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_NAMES = [
    "model",
    "messages",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "max_tokens",
    "n",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "user",
    "response_format",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "top_k",
    "reasoning_effort",
]
_PART = st.fixed_dictionaries({}, optional=dict.fromkeys(("type", "text", "image_url", "refusal"), _JSON))
_CALL = st.fixed_dictionaries({}, optional=dict.fromkeys(("id", "type", "function", "custom"), _JSON))
_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]) | _JSON},
    optional={
        "content": st.lists(_PART, max_size=2) | _JSON,
        "tool_calls": st.lists(_CALL, max_size=2) | _JSON,
        "tool_call_id": _JSON,
        "name": _JSON,
        "reasoning_content": _JSON,
    },
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from(_NAMES), _JSON, max_size=5),
    st.none() | st.lists(_MESSAGE, max_size=3),
)
def test_any_json_is_a_request_or_a_named_refusal(values: dict[str, Any], messages: list[Any] | None) -> None:
    if messages is not None:
        values = {**values, "messages": messages}
    named: str | None = "nothing wrong"
    try:
        chat_request.parse(exchange_of(json.dumps(values).encode(), values=values), response_id="c")
    except BadRequestError as error:
        named = error.param
    assert named
