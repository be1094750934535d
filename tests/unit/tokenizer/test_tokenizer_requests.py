"""tokenizer.v1 requests → values; what is refused and how it is named."""

import struct

import pytest
from fencepost.tokenizer.v1 import tokenizer_pb2
from google.protobuf import json_format

from services.errors import ServiceError
from services.tokenizer.conversation import Conversation, Message, Role
from services.tokenizer.errors import InvalidRequestError, UnsupportedError
from services.tokenizer.requests import OMITTED_DOCUMENT, OMITTED_IMAGE, read_generation, read_token_ids
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
        {"document": {"text": "the file"}},
        {"document": {"uri": "file:x"}},
        {"refusal": {"text": "no"}},
    ]
    request = read_generation(generate(conversation={"messages": [{"role": "ROLE_ASSISTANT", "parts": parts}]}))
    text = "\n".join(["a", OMITTED_IMAGE, "the file", OMITTED_DOCUMENT, "no"])
    assert isinstance(request.source, Conversation)
    assert request.source.messages == (Message(Role.ASSISTANT, text),)


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


CALL = {"role": "ROLE_ASSISTANT", "calls": [{"name": "f"}]}


@pytest.mark.parametrize(
    ("conversation", "message"),
    [
        ({"messages": [USER], "tools": [{"name": "f"}]}, "tools are not supported yet"),
        ({"messages": [USER], "toolChoice": {"mode": "TOOL_CHOICE_MODE_REQUIRED"}}, "tools are not supported yet"),
        ({"messages": [USER, CALL]}, "tools are not supported yet"),
        ({"messages": [USER, {"role": "ROLE_TOOL"}]}, "tools are not supported yet"),
        ({"messages": [USER], "outputFormat": {"jsonObject": {}}}, "output_format is not supported yet"),
        ({"messages": [{**USER, "parts": [{"reasoning": {}}]}]}, "reasoning is not supported yet"),
    ],
)
def test_what_this_version_lacks_is_unimplemented(conversation: dict[str, object], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        read_generation(generate(conversation=conversation))


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
