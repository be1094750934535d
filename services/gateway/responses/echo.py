"""What a response repeats of its request, defaults filled in."""

from __future__ import annotations

from typing import Any

import orjson

from services.gateway.fields import Fields, wrong
from services.gateway.responses.text_format import echo_of_text
from services.gateway.responses.tools import definition_of

_TEXTS = ("previous_response_id", "prompt_cache_key", "safety_identifier", "user")
_MAX_COUNT = 2**32 - 1


def parse_echo(body: Fields) -> dict[str, Any]:
    """By the keys of a response; ``body`` is otherwise valid. Raises BadRequestError for what only comes back.

    For ``orjson.dumps``, which writes what is nested as the client spelt it.
    """
    reasoning = body.object("reasoning")
    store, is_parallel = body.flag("store"), body.flag("parallel_tool_calls")
    body.text("service_tier")
    return {
        "background": False,
        "instructions": body.text("instructions"),
        "max_output_tokens": body.values.get("max_output_tokens"),
        "max_tool_calls": body.integer("max_tool_calls", 1, _MAX_COUNT),
        "metadata": _metadata(body),
        "parallel_tool_calls": True if is_parallel is None else is_parallel,
        "temperature": _number(body, "temperature", 1.0),
        "top_p": _number(body, "top_p", 1.0),
        "presence_penalty": _number(body, "presence_penalty", 0.0),
        "frequency_penalty": _number(body, "frequency_penalty", 0.0),
        "top_logprobs": body.values.get("top_logprobs") or 0,
        "reasoning": {
            "effort": None if reasoning is None else reasoning.text("effort"),
            "summary": None if reasoning is None else reasoning.text("summary"),
        },
        # The tier that served the request: there is one.
        "service_tier": "default",
        "store": True if store is None else store,
        "text": echo_of_text(body),
        "tool_choice": _nested(body, "tool_choice", "auto"),
        "tools": [_tool(tool) for tool in body.objects("tools")],
        "truncation": "disabled"
        if body.text("truncation") is None
        else body.one_of("truncation", ("auto", "disabled")),
        **{key: body.text(key) or None for key in _TEXTS},
    }


def _number(body: Fields, key: str, default: float) -> float:
    value = body.values.get(key)
    return default if value is None else float(value)


def _nested(body: Fields, key: str, default: str) -> Any:
    value = body.values.get(key)
    return orjson.Fragment(body.raw(key)) if isinstance(value, dict) else value or default


def _metadata(body: Fields) -> dict[str, str]:
    metadata = body.object("metadata")
    if metadata is None:
        return {}
    for key, value in metadata.values.items():
        if not isinstance(value, str):
            raise wrong(metadata.name(key), "a string", value)
    return metadata.values


def _tool(fields: Fields) -> Any:
    """Functions with all their keys, which clients read; others as they came."""
    if (fields.text("type") or "function") != "function":
        return orjson.Fragment(fields.body.text(*fields.path))
    definition = definition_of(fields)
    parameters = definition.object("parameters")
    return {
        "type": "function",
        "name": definition.text("name"),
        "description": definition.text("description"),
        "parameters": None if parameters is None else orjson.Fragment(definition.raw("parameters")),
        "strict": bool(definition.flag("strict")),
    }
