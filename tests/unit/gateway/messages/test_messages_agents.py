"""What Claude Code really sends: its turns share a prefix, and no damage to a body is more than a bad request."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.asking import Asked
from services.gateway.errors import GatewayError
from services.gateway.messages.request import parse, parse_count
from tests.unit.gateway.exchanges import exchange_of

CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}},
    "required": ["command"],
    "additionalProperties": False,
}
PICTURE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"\x89PNG").decode()},
}


def system(billing: str) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.197.{billing}; cch={billing};"},
        {"type": "text", "text": "You are a coding agent.", **CACHED},
        {"type": "text", "text": "# Environment\nWorking directory: /src\n", **CACHED},
    ]


OPENING: list[dict[str, Any]] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "<system-reminder>\nToday is a day.\n</system-reminder>"},
            {"type": "text", "text": "Look at the picture and fix the bug."},
        ],
    },
    {"role": "system", "content": [{"type": "text", "text": "The following skills are available: none."}]},
]
ANSWER = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "Two looks at once.", "signature": base64.b64encode(b"capsule").decode()},
        {"type": "text", "text": "I'll look."},
        {"type": "tool_use", "id": "call_a", "name": "Bash", "input": {"command": "ls", "timeout": 1.0}},
        {"type": "tool_use", "id": "call_b", "name": "mcp__screen__shot", "input": {}},
    ],
}
RESULTS = {
    "role": "user",
    "content": [
        {"type": "tool_result", "tool_use_id": "call_b", "content": [{"type": "text", "text": "taken"}, PICTURE]},
        {"type": "tool_result", "tool_use_id": "call_a", "content": "a.py\nb.py", "is_error": False},
        {"type": "text", "text": "<system-reminder>The file has changed.</system-reminder>"},
    ],
}


def body(billing: str, session: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    messages = copy.deepcopy(messages)
    for message in messages:
        for block in message["content"]:
            block.pop("cache_control", None)
    # The breakpoint moves to the last block of the last message.
    messages[-1]["content"][-1] |= CACHED
    tools = [{"name": name, "description": "d", "input_schema": SCHEMA} for name in ("Bash", "mcp__screen__shot")]
    return {
        "model": "claude-opus-4-1",
        "system": system(billing),
        "messages": messages,
        "tools": [*tools[:-1], {**tools[-1], **CACHED}],
        "metadata": {"user_id": json.dumps({"device_id": "d", "session_id": session})},
        "max_tokens": 32_000,
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "temperature": 1,
        "stream": True,
    }


def read(values: dict[str, Any]) -> Asked:
    return parse(exchange_of(json.dumps(values).encode()), response_id="msg_1")


def test_what_changes_from_turn_to_turn_is_not_in_the_prompt() -> None:
    first = read(body("aaa", "one", OPENING)).generate.conversation
    second = read(body("bbb", "two", [*OPENING, ANSWER, RESULTS])).generate.conversation
    shared = len(first.messages)
    assert [message.SerializeToString(deterministic=True) for message in second.messages[:shared]] == [
        message.SerializeToString(deterministic=True) for message in first.messages
    ]
    for conversation in (first, second):
        del conversation.messages[:]
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


def test_equal_turns_are_equal_whatever_their_envelope() -> None:
    turns = [*OPENING, ANSWER, RESULTS]
    one, two = body("aaa", "one", turns), body("bbb", "two", turns)
    two["messages"][0]["content"][0] |= CACHED
    two = dict(reversed(two.items()))
    assert read(one).generate.conversation.SerializeToString(deterministic=True) == read(
        two
    ).generate.conversation.SerializeToString(deterministic=True)


_WHOLE = body("aaa", "one", [*OPENING, ANSWER, RESULTS])
_LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
)
_VALUES = _LEAVES | st.sampled_from(
    [[], {}, [[]], [{}], "text", "tool_use", "tool_result", "image", "document", "base64", ANSWER, RESULTS["content"]]
)


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Where a JSON document has a value."""
    found = [path] if path else []
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        found += places(member, (*path, key))
    return found


def error_of(read_it: Callable[..., Asked], data: bytes, **arguments: Any) -> GatewayError | None:
    try:
        assert read_it(exchange_of(data), **arguments).generate.conversation.messages
    except GatewayError as error:
        return error
    return None


_PLACES = places(_WHOLE)


@settings(max_examples=500)
@given(st.lists(st.tuples(st.sampled_from(_PLACES), st.sampled_from(["set", "drop", "twice"]), _VALUES), max_size=4))
def test_a_damaged_body_is_at_worst_a_bad_request(changes: list[tuple[tuple[str | int, ...], str, Any]]) -> None:
    damaged = copy.deepcopy(_WHOLE)
    for path, action, value in changes:
        holder: Any = damaged
        try:
            for step in path[:-1]:
                holder = holder[step]
            if action == "set":
                holder[path[-1]] = copy.deepcopy(value)
            elif action == "drop":
                del holder[path[-1]]
            elif isinstance(path[-1], int):
                holder.append(copy.deepcopy(holder[path[-1]]))
        except (KeyError, IndexError, TypeError, AttributeError):
            continue  # An earlier change has taken the place away.
    data = json.dumps(damaged).encode()
    for error in (error_of(parse, data, response_id="msg_1"), error_of(parse_count, data)):
        assert error is None or (error.http_status == 400 and error.param)
