"""Real tool calls of the default model, led on by examples: their echoes keep the cache, also over a restart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import MODEL, Stack, run_stack

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def example(index: int, city: str, degrees: int) -> list[Any]:
    function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
    return [
        {"role": "user", "content": f"Weather in {city}?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"call_{index}", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": f"call_{index}", "content": f"{degrees} degrees"},
        {"role": "assistant", "content": f"It is {degrees} degrees in {city}."},
    ]


def compact(arguments: str) -> str:
    return json.dumps(json.loads(arguments), separators=(",", ":"))


@pytest.mark.parametrize("echo", [str, compact], ids=["verbatim", "re-serialised"])
def test_every_turn_reuses_all_of_the_turn_before(smollm2_dir: Path, tmp_path: Path, echo: Callable[[str], str]):
    messages = [*example(1, "Berlin", 12), *example(2, "Madrid", 25), *example(3, "Oslo", 4)]
    cities = iter(["Paris", "Vienna", "Rome", "Lima"])
    known = num_calls = 0

    def turn(stack: Stack) -> str:
        """One answer; which tier gave most of what was reused."""
        nonlocal known, num_calls
        if messages[-1]["role"] == "assistant":
            messages.append({"role": "user", "content": f"Weather in {next(cities)}?"})
        answer = stack.client().chat.completions.create(
            model=MODEL, messages=messages, tools=TOOLS, temperature=0, max_tokens=60
        )
        assert answer.usage is not None
        details = answer.usage.prompt_tokens_details
        assert details is not None
        assert (details.cached_tokens or 0) >= known
        known = answer.usage.prompt_tokens + answer.usage.completion_tokens - 1
        message = answer.choices[0].message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
        messages.append(message)
        for call in message.get("tool_calls", ()):
            num_calls += 1
            assert answer.choices[0].finish_reason == "tool_calls"
            call["function"]["arguments"] = echo(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "18 degrees"})
        tokens_by_tier: dict[str, int] = details.model_dump()["cached_tokens_by_tier"]
        return max(tokens_by_tier, key=lambda tier: tokens_by_tier[tier])

    with run_stack(tmp_path / "data") as stack:
        assert [turn(stack) for _ in range(3)][1:] == ["vram", "vram"]
    with run_stack(tmp_path / "data") as stack:
        assert [turn(stack) for _ in range(3)] == ["ssd", "vram", "vram"]
    assert num_calls >= 2
