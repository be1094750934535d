"""What the OpenAPI document says of request bodies: the fields that matter, by their types.

Bodies are read by our own parsers, which keep the client's spelling and ignore what they don't know, so FastAPI cannot
derive this.
"""

from __future__ import annotations

from typing import Any

_Schema = dict[str, Any]

_STRING: _Schema = {"type": "string"}
_BOOLEAN: _Schema = {"type": "boolean"}
_OBJECT: _Schema = {"type": "object"}
_COUNT: _Schema = {"type": "integer", "minimum": 1}
_OBJECTS: _Schema = {"type": "array", "items": _OBJECT}
_TEXT_OR_PARTS: _Schema = {"anyOf": [_STRING, _OBJECTS]}
_TEMPERATURE: _Schema = {"type": "number", "minimum": 0, "maximum": 2}
_TOP_P: _Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
_STOPS: _Schema = {"anyOf": [_STRING, {"type": "array", "items": _STRING}]}


def _messages(*roles: str) -> _Schema:
    message = {
        "type": "object",
        "properties": {"role": {"enum": list(roles)}, "content": _TEXT_OR_PARTS},
        "required": ["role", "content"],
    }
    return {"type": "array", "items": message, "minItems": 1}


def _body(required: tuple[str, ...], example: _Schema, **properties: _Schema) -> _Schema:
    schema = {"type": "object", "properties": {"model": _STRING, **properties}, "required": list(required)}
    content = {"application/json": {"schema": schema, "example": example}}
    return {"requestBody": {"required": True, "content": content}}


_LOGPROBS: _Schema = {"type": "integer", "minimum": 0, "maximum": 20}
_PENALTY: _Schema = {"type": "number", "minimum": -2, "maximum": 2}
_CHOSEN = {
    "n": {"type": "integer", "minimum": 1, "maximum": 128},
    "logit_bias": {"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}},
    "presence_penalty": _PENALTY,
    "frequency_penalty": _PENALTY,
    "repetition_penalty": {"type": "number", "exclusiveMinimum": 0, "maximum": 100},
    "top_k": {"type": "integer", "minimum": -1},
    "min_p": {"type": "number", "minimum": 0, "maximum": 1},
}
_SHARED = {"temperature": _TEMPERATURE, "top_p": _TOP_P, "stream": _BOOLEAN}

CHAT = _body(
    ("model", "messages"),
    {"model": "default", "messages": [{"role": "user", "content": "Hello"}]},
    messages=_messages("system", "developer", "user", "assistant"),
    tools=_OBJECTS,
    tool_choice={"anyOf": [{"enum": ["none", "auto", "required"]}, _OBJECT]},
    parallel_tool_calls=_BOOLEAN,
    max_tokens=_COUNT,
    max_completion_tokens=_COUNT,
    stop=_STOPS,
    seed={"type": "integer"},
    logprobs=_BOOLEAN,
    top_logprobs=_LOGPROBS,
    response_format=_OBJECT,
    reasoning_effort={"enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max"]},
    stream_options=_OBJECT,
    prompt_cache_key=_STRING,
    **_CHOSEN,
    **_SHARED,
)
COMPLETIONS = _body(
    ("model", "prompt"),
    {"model": "default", "prompt": "Once upon a time"},
    prompt=_STRING,
    max_tokens=_COUNT,
    stop=_STOPS,
    seed={"type": "integer"},
    logprobs=_LOGPROBS,
    **_CHOSEN,
    **_SHARED,
)
RESPONSES = _body(
    ("model", "input"),
    {"model": "default", "input": "Hello"},
    input=_TEXT_OR_PARTS,
    instructions=_STRING,
    tools=_OBJECTS,
    tool_choice={"anyOf": [{"enum": ["none", "auto", "required"]}, _OBJECT]},
    parallel_tool_calls=_BOOLEAN,
    max_output_tokens=_COUNT,
    store=_BOOLEAN,
    previous_response_id=_STRING,
    reasoning=_OBJECT,
    text=_OBJECT,
    include={"type": "array", "items": _STRING},
    prompt_cache_key=_STRING,
    **_SHARED,
)
INPUT_TOKENS = _body(
    (), {"model": "default", "input": "Hello"}, input=_TEXT_OR_PARTS, instructions=_STRING, tools=_OBJECTS
)
COMPACT = _body(("model",), {"model": "default", "input": "Hello"}, input=_TEXT_OR_PARTS, instructions=_STRING)
MESSAGES = _body(
    ("model", "messages", "max_tokens"),
    {"model": "default", "max_tokens": 100, "messages": [{"role": "user", "content": "Hello"}]},
    messages=_messages("system", "user", "assistant"),
    system=_TEXT_OR_PARTS,
    max_tokens=_COUNT,
    tools=_OBJECTS,
    tool_choice=_OBJECT,
    thinking=_OBJECT,
    stop_sequences={"type": "array", "items": _STRING},
    top_k=_COUNT,
    **_SHARED,
)
COUNT_TOKENS = _body(
    ("model", "messages"),
    {"model": "default", "messages": [{"role": "user", "content": "Hello"}]},
    messages=_messages("system", "user", "assistant"),
    system=_TEXT_OR_PARTS,
    tools=_OBJECTS,
)
