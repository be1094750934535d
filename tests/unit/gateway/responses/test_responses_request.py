"""The fields of a Responses request beside its items and tools."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import orjson
import pytest
from fencepost.tokenizer.v1 import conversation_pb2 as conv
from fencepost.tokenizer.v1 import tokenizer_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.responses import Response

from services.gateway.errors import BadRequestError, NotFoundError, UnsupportedError
from services.gateway.responses import request
from services.gateway.responses.stored_items import read_items
from tests.unit.gateway.responses.bodies import CODEX, REAL, TOOL_CHOICE, fields_of, parse, spoken

DEFAULTS = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "top_logprobs": 0,
    "reasoning": {"effort": None, "summary": None},
    "service_tier": "default",
    "store": True,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "truncation": "disabled",
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "user": None,
}


def test_what_codex_asks_for() -> None:
    parsed = parse(CODEX)
    assert parsed.model == "gpt-5-codex"
    assert parsed.is_stream
    assert parsed.generate
    assert not parsed.store
    assert parsed.prompt_cache_key == "0190-session"
    assert parsed.previous_response_id is None
    assert parsed.include == {"reasoning.encrypted_content"}
    assert parsed.instructions == "You are Codex."
    assert parsed.reasoning_summary == "auto"
    assert parsed.sampling == tokenizer_pb2.Sampling()
    assert parsed.conversation.reasoning == conv.ReasoningOptions(mode=conv.REASONING_MODE_ON, effort="medium")
    assert not parsed.conversation.HasField("output_format")
    assert parsed.echo == DEFAULTS | {
        "instructions": "You are Codex.",
        "store": False,
        "prompt_cache_key": "0190-session",
        "reasoning": {"effort": "medium", "summary": "auto"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
    }


def test_defaults() -> None:
    parsed = parse()
    assert (parsed.is_stream, parsed.generate, parsed.store, parsed.include) == (False, True, True, frozenset())
    assert parsed.sampling == tokenizer_pb2.Sampling()
    assert not parsed.conversation.HasField("reasoning")
    assert parsed.echo == DEFAULTS


def test_nulls_are_defaults() -> None:
    keys = [*DEFAULTS, "include", "stream", "generate", "stream_options", "conversation", "prompt"]
    assert parse(**dict.fromkeys(keys)).echo == DEFAULTS


@pytest.mark.parametrize("body", REAL)
def test_echo_makes_a_valid_response(body: dict[str, Any]) -> None:
    own = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": [], "status": "completed"}
    Response.model_validate_json(orjson.dumps({**parse(body).echo, **own}))


def test_sampling() -> None:
    parsed = parse(
        temperature=0,
        top_p=0.5,
        max_output_tokens=1,
        top_logprobs=3,
        presence_penalty=0,
        frequency_penalty=1.5,
        include=["message.output_text.logprobs"],
    )
    assert parsed.sampling == tokenizer_pb2.Sampling(
        temperature=0, top_p=0.5, max_tokens=1, logprobs=3, frequency_penalty=1.5
    )
    assert not parse(top_logprobs=3).sampling.HasField("logprobs")
    assert parse(include=["message.output_text.logprobs"]).sampling.HasField("logprobs")


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh", "max"])
def test_effort(effort: str) -> None:
    options = conv.ReasoningOptions(mode=conv.REASONING_MODE_ON, effort=effort)
    assert parse(reasoning={"effort": effort}).conversation.reasoning == options


def test_no_effort() -> None:
    assert parse(reasoning={"effort": "none"}).conversation.reasoning.mode == conv.REASONING_MODE_OFF
    assert not parse(reasoning={"effort": None, "summary": "auto"}).conversation.HasField("reasoning")


def test_output_formats() -> None:
    for form in ({"type": "text"}, None):
        assert not parse(text={"format": form}).conversation.HasField("output_format")
    assert parse(text={"format": {"type": "json_object"}}).conversation.output_format == conv.OutputFormat(
        json_object=conv.JsonObject()
    )
    body = (
        b'{"model": "m", "input": "Hi", "text": {"format": {"type": "json_schema", "name": "n",'
        b' "schema": { "maximum" : 1e5 }, "strict": true}}}'
    )
    parsed = request.parse(fields_of(body))
    assert parsed.conversation.output_format.json_schema == conv.JsonSchema(
        name="n", schema_json='{ "maximum" : 1e5 }', strict=True
    )
    assert orjson.loads(orjson.dumps(parsed.echo["text"])) == {
        "format": {"type": "json_schema", "name": "n", "description": None, "schema": {"maximum": 1e5}, "strict": True}
    }


def test_chain_comes_before_the_input_and_its_instructions_do_not() -> None:
    first = parse(instructions="Old.", input="One")
    output = [
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Two", "annotations": [], "logprobs": []}],
        }
    ]
    stored = read_items(orjson.dumps([*first.input_items, *output]))
    body = {"model": "m", "input": "Three", "instructions": "New.", "previous_response_id": "resp_1"}
    second = request.parse(fields_of(orjson.dumps(body)), stored)
    assert list(second.conversation.messages) == [
        spoken(conv.ROLE_SYSTEM, "New."),
        spoken(conv.ROLE_USER, "One"),
        spoken(conv.ROLE_ASSISTANT, "Two"),
        spoken(conv.ROLE_USER, "Three"),
    ]
    assert len(second.input_items) == 1
    assert second.previous_response_id == "resp_1"


def test_warm_up_needs_no_input() -> None:
    parsed = parse(instructions="Be kind.", input=[], generate=False, tools=TOOL_CHOICE["tools"])
    assert not parsed.generate
    assert list(parsed.conversation.messages) == [spoken(conv.ROLE_SYSTEM, "Be kind.")]


def test_default_model() -> None:
    body = fields_of(b'{"input": "Hi"}')
    assert request.parse(body, default_model="served").model == "served"
    assert request.parse(fields_of(b'{"input": "Hi", "model": "m"}'), default_model="served").model == "m"
    with pytest.raises(BadRequestError) as caught:
        request.parse(body)
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("contract_field", "field"),
    [
        ("conversation", "input"),
        ("conversation.messages[3].parts[0]", "input"),
        ("conversation.tool_choice", "tool_choice"),
        ("conversation.output_format.json_schema", "text.format"),
        ("conversation.reasoning.effort", "reasoning"),
        ("conversation.parallel_calls", "parallel_tool_calls"),
        ("conversation.tools[2].parameters_json", "tools[2].tools[0]"),
        ("sampling.max_tokens", "max_output_tokens"),
        ("sampling.logprobs", "top_logprobs"),
        ("sampling.temperature", "temperature"),
        ("input", "input"),
        ("model", "model"),
    ],
)
def test_fields_of_the_contract_in_the_client_s_spelling(contract_field: str, field: str) -> None:
    assert parse(TOOL_CHOICE).client_field(contract_field) == field


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": 5}, "model"),
        ({"model": ""}, "model"),
        ({"instructions": ["x"]}, "instructions"),
        ({"stream": "yes"}, "stream"),
        ({"store": 1}, "store"),
        ({"generate": 0}, "generate"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"prompt_cache_key": {}}, "prompt_cache_key"),
        ({"user": 5}, "user"),
        ({"safety_identifier": []}, "safety_identifier"),
        ({"service_tier": 1}, "service_tier"),
        ({"metadata": "x"}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"truncation": "middle"}, "truncation"),
        ({"include": "x"}, "include"),
        ({"include": ["x", 5]}, "include[1]"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 2**32}, "max_output_tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": True}, "frequency_penalty"),
        ({"reasoning": "high"}, "reasoning"),
        ({"reasoning": {"effort": "heroic"}}, "reasoning.effort"),
        ({"reasoning": {"summary": 5}}, "reasoning.summary"),
        ({"text": "json"}, "text"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"text": {"format": {}}}, "text.format.type"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": 1}}}, "text.format.strict"),
        ({"text": {"verbosity": 5}}, "text.verbosity"),
    ],
)
def test_wrong_value_names_its_field(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse(**changes)
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message


@pytest.mark.parametrize("changes", [{"background": True}, {"conversation": "conv_1"}, {"prompt": {"id": "pmpt_1"}}])
def test_what_is_not_served_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        parse(**changes)
    assert caught.value.param in changes


_ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=8)
    | st.sampled_from(
        ["message", "function_call", "x_call", "x_output", "input_image", "namespace", "data:a/b;base64,?"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "id", "role", "content", "call_id", "output", "name", "tools", "text", "", 'q"\\'])
            | st.text(st.characters(codec="utf-8"), max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in members for place in _places(inner, (*path, key)))][0 if path else 1 :]


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    body = copy.deepcopy(draw(st.sampled_from(REAL)))
    for _ in range(draw(st.integers(1, 3))):
        *parents, last = draw(st.sampled_from(_places(body)))
        holder: Any = body
        for key in parents:
            holder = holder[key]
        match draw(st.sampled_from(["drop", "null", "replace", "repeat"])):
            case "drop":
                del holder[last]
            case "null":
                holder[last] = None
            case "repeat" if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[last]))
            case _:
                holder[last] = draw(_ODD)
        if not _places(body):
            break
    return orjson.dumps(body)


@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow])
@given(_mutated())
def test_mutated_body_is_parsed_or_refused(body: bytes) -> None:
    fields = fields_of(body)
    try:
        parsed = request.parse(fields)
    except (BadRequestError, NotFoundError):
        return
    stored = orjson.dumps(parsed.input_items)
    orjson.dumps(parsed.echo)
    parsed.conversation.SerializeToString()
    # What was stored says the same in the chain.
    again = fields_of(orjson.dumps({**fields.values, "input": None}))
    assert request.parse(again, read_items(stored)).conversation.messages == parsed.conversation.messages


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_ODD, max_size=4))
def test_odd_items_are_parsed_or_refused(items: list[Any]) -> None:
    with suppress(BadRequestError, NotFoundError):
        parse(input=items)
