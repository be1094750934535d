"""Responses in: a request's body becomes a conversation, and what its response repeats of it.

Unknown fields are ignored. Known fields that would change the answer and are not served are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2

from services.gateway.errors import BadRequestError
from services.gateway.fields import Fields, wrong
from services.gateway.responses.echo import parse_echo
from services.gateway.responses.items import item_type, read_item
from services.gateway.responses.parts import text_part
from services.gateway.responses.reasoning import parse_reasoning
from services.gateway.responses.sampling import parse_sampling
from services.gateway.responses.stored_items import message_item, resolve, stored_item
from services.gateway.responses.text_format import parse_text_format
from services.gateway.responses.tool_choice import parse_tool_choice
from services.gateway.responses.tool_names import ToolNames
from services.gateway.responses.tools import Tools
from services.gateway.responses.turns import Turns

_TOOL_ITEMS = ("additional_tools", "tool_search_output")
"""Items that bring tools."""
_TOOL_FIELD = re.compile(r"tools\[(\d+)\]")
_CLIENT_SPELLING = {
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "output_format": "text.format",
    "parallel_calls": "parallel_tool_calls",
    "messages": "input",
    "conversation": "input",
}


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """A valid request."""

    model: str
    """As the client named it."""
    conversation: conversation_pb2.Conversation
    """Of the whole chain; ``instructions`` come first."""
    sampling: tokenizer_pb2.Sampling
    is_stream: bool
    generate: bool
    """False asks to prepare the prompt only."""
    store: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    user: str | None
    safety_identifier: str | None
    include: frozenset[str]
    instructions: str | None
    reasoning_summary: str | None
    """Which kind of summary the client wants of the thinking."""
    input_items: tuple[dict[str, Any], ...]
    """This request's own items in order, without those of the chain; references are resolved, every one has ``id`` and
    ``type``. For ``orjson.dumps``, which writes what is nested in them as the client spelt it."""
    echo: dict[str, Any]
    """What the response repeats, by its keys there, defaults filled in; likewise for ``orjson.dumps``."""
    tool_names: ToolNames

    def client_field(self, contract_field: str) -> str:
        """How the body spells a field of the contract: ``conversation.tools[1].name`` → ``tools[0].tools[1]``."""
        field = re.sub(r"^(conversation|sampling)\.", "", contract_field)
        if (tool := _TOOL_FIELD.match(field)) and int(tool[1]) < len(self.tool_names.fields):
            return self.tool_names.fields[int(tool[1])]
        first = re.split(r"[.\[]", field, maxsplit=1)[0]
        return _CLIENT_SPELLING.get(first, first)


def parse(
    body: Fields,
    earlier_items: Sequence[Fields] = (),
    referenced_items: Mapping[str, Fields] | None = None,
    *,
    default_model: str | None = None,
) -> ResponsesRequest:
    """``earlier_items`` are those of the chain, input and output in order, as ``read_items`` reads them.

    Items that the input only references are looked for by id in them and in ``referenced_items``. Raises
    BadRequestError and UnsupportedError naming the field, NotFoundError for an item that is in neither.
    ``default_model`` serves a body that names none; without it, that is an error.
    """
    for key in ("prompt", "conversation"):
        body.refuse(key)
    body.refuse("background", False)
    instructions = body.text("instructions") or None
    own_items = [resolve(item, earlier_items, referenced_items or {}) for item in _items(body)]
    tools = Tools()
    tools.add(body)
    for item in (*earlier_items, *own_items):
        if item_type(item) in _TOOL_ITEMS:
            tools.add(item)
    reasoning = body.object("reasoning")
    conversation = conversation_pb2.Conversation(
        messages=_messages(body, instructions, earlier_items, own_items),
        tools=tools.tools(),
        tool_choice=parse_tool_choice(body, tools.keys()),
        # Without tools, it means nothing.
        parallel_calls=body.flag("parallel_tool_calls") if tools.keys() else None,
        reasoning=parse_reasoning(body),
        output_format=parse_text_format(body),
    )
    include = _include(body)
    store = body.flag("store")
    is_text = isinstance(body.values.get("input"), str)
    return ResponsesRequest(
        model=_model(body, default_model),
        conversation=conversation,
        sampling=parse_sampling(body, include),
        is_stream=bool(body.flag("stream")),
        generate=body.flag("generate") is not False,
        store=store is not False,
        previous_response_id=body.text("previous_response_id") or None,
        prompt_cache_key=body.text("prompt_cache_key") or None,
        user=body.text("user") or None,
        safety_identifier=body.text("safety_identifier") or None,
        include=include,
        instructions=instructions,
        reasoning_summary=None if reasoning is None else reasoning.text("summary"),
        input_items=(message_item(body.values["input"]),) if is_text else tuple(map(stored_item, own_items)),
        echo=parse_echo(body),
        tool_names=tools.names(),
    )


def _model(body: Fields, default_model: str | None) -> str:
    model = body.text("model") or default_model
    if not model:
        raise BadRequestError("'model' is required.", param="model")
    return model


def _items(body: Fields) -> list[Fields]:
    value = body.values.get("input")
    if value is not None and not isinstance(value, str | list):
        raise wrong("input", "a string or a list of items", value)
    return list(body.objects("input")) if isinstance(value, list) else []


def _messages(
    body: Fields, instructions: str | None, earlier_items: Sequence[Fields], own_items: Sequence[Fields]
) -> list[conversation_pb2.Message]:
    turns = Turns()
    if instructions is not None:
        turns.speak(conversation_pb2.ROLE_SYSTEM, [text_part(instructions)])
    for item in (*earlier_items, *own_items):
        read_item(item, turns)
    if isinstance(text := body.values.get("input"), str):
        turns.speak(conversation_pb2.ROLE_USER, [text_part(text)])
    messages = turns.messages()
    if not messages:
        body.required("input")
        raise BadRequestError("'input' must hold something for the model to answer.", param="input")
    return messages


def _include(body: Fields) -> frozenset[str]:
    value = body.values.get("include")
    if value is None:
        return frozenset()
    if not isinstance(value, list):
        raise wrong("include", "a list of strings", value)
    names = cast(list[Any], value)
    for index, name in enumerate(names):
        if not isinstance(name, str):
            raise wrong(f"include[{index}]", "a string", name)
    return frozenset(names)
