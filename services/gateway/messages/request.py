"""Messages in: the body becomes a request for the tokenizer.

Unknown fields are ignored, and so is what changes from turn to turn without meaning anything to the model.
"""

from __future__ import annotations

import re
from typing import Any, cast

from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2

from services.gateway.asking import Asked, ask
from services.gateway.errors import BadRequestError
from services.gateway.exchange import Exchange
from services.gateway.fields import Fields, wrong
from services.gateway.messages.conversation import read_messages
from services.gateway.messages.tools import read_tool_choice, read_tools
from services.gateway.sampling import over_zero

MAX_STOPS = 64

_UINT32_MAX = 2**32 - 1
_CLIENT_SPELLING = (
    (r"^(conversation|input)$", "messages"),
    (r"^stop_texts\b", "stop_sequences"),
    (r"^tool_choice\b.*", "tool_choice"),
    (r"^parallel_calls$", "tool_choice.disable_parallel_tool_use"),
    (r"^(tools\[\d+\])\.parameters_json$", r"\1.input_schema"),
    (r"^output_format\b.*", "output_config.format"),
    (r"^reasoning\b.*", "thinking"),
    # The tokenizer counts messages of its own: results stand alone there, the system comes first.
    (r"^messages\[\d+\].*", "messages"),
)
_THINKING = {
    "enabled": conversation_pb2.REASONING_MODE_ON,
    "adaptive": conversation_pb2.REASONING_MODE_ADAPTIVE,
    "disabled": conversation_pb2.REASONING_MODE_OFF,
}


def parse(exchange: Exchange, *, response_id: str) -> Asked:
    """For the model as the client names it. Raises BadRequestError naming the field."""
    body = exchange.body
    body.required("max_tokens")
    return _asked(exchange, _sampling(body), response_id)


def parse_count(exchange: Exchange) -> Asked:
    """The same prompt without an answer. Raises as ``parse``."""
    return _asked(exchange, tokenizer_pb2.Sampling(), "")


def client_field(contract_field: str) -> str:
    """How the body spells a field of the contract."""
    field = re.sub(r"^(conversation|sampling)\.", "", contract_field)
    for ours, theirs in _CLIENT_SPELLING:
        field = re.sub(ours, theirs, field)
    return field


def _asked(exchange: Exchange, sampling: tokenizer_pb2.Sampling, response_id: str) -> Asked:
    body = exchange.body
    model = body.required_text("model")
    if not model:
        raise BadRequestError("'model' must not be empty.", param="model")
    tools = read_tools(body)
    choice, is_parallel = read_tool_choice(body, tools)
    conversation = conversation_pb2.Conversation(
        messages=read_messages(body),
        tools=tools,
        tool_choice=choice,
        parallel_calls=is_parallel,
        reasoning=_reasoning(body),
        output_format=_output_format(body),
    )
    metadata = body.object("metadata")
    user = None if metadata is None else metadata.text("user_id")
    return ask(exchange, conversation, model=model, sampling=sampling, response_id=response_id, user=user)


def _sampling(body: Fields) -> tokenizer_pb2.Sampling:
    return tokenizer_pb2.Sampling(
        temperature=body.number("temperature", 0, 1),
        top_p=over_zero(body, "top_p", 1),
        # 0 means off.
        top_k=body.integer("top_k", 0, _UINT32_MAX) or None,
        max_tokens=body.integer("max_tokens", 1, _UINT32_MAX),
        stop_texts=_stops(body),
    )


def _stops(body: Fields) -> list[str]:
    value = body.values.get("stop_sequences")
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong("stop_sequences", "a list of strings", value)
    stops = cast(list[Any], value)
    if len(stops) > MAX_STOPS:
        raise BadRequestError(f"'stop_sequences' must hold at most {MAX_STOPS} texts.", param="stop_sequences")
    for index, stop in enumerate(stops):
        if not isinstance(stop, str):
            raise wrong(f"stop_sequences[{index}]", "a string", stop)
        if not stop:
            raise BadRequestError(f"'stop_sequences[{index}]' must not be empty.", param=f"stop_sequences[{index}]")
    return stops


def _reasoning(body: Fields) -> conversation_pb2.ReasoningOptions | None:
    thinking, config = body.object("thinking"), body.object("output_config")
    effort = None if config is None else config.text("effort")
    if thinking is None:
        return conversation_pb2.ReasoningOptions(effort=effort) if effort else None
    # A kind that is not known leaves it to the model.
    mode = _THINKING.get(thinking.required_text("type"), conversation_pb2.REASONING_MODE_UNSPECIFIED)
    budget = thinking.integer("budget_tokens", 1, _UINT32_MAX)
    return conversation_pb2.ReasoningOptions(mode=mode, effort=effort or None, budget_tokens=budget)


def _output_format(body: Fields) -> conversation_pb2.OutputFormat | None:
    config = body.object("output_config")
    form = None if config is None else config.object("format")
    form = form or body.object("output_format")
    if form is None:
        return None
    kind = form.required_text("type")
    if kind != "json_schema":
        raise BadRequestError(f"'{form.name('type')}' must be json_schema, not {kind[:40]!r}.", param=form.name("type"))
    form.required_object("schema")
    schema = conversation_pb2.JsonSchema(
        name=form.text("name") or "output", schema_json=form.raw("schema"), strict=True
    )
    return conversation_pb2.OutputFormat(json_schema=schema)
