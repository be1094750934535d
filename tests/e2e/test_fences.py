"""Fenced answers of the default model through the whole stack: whatever it would say, calls and formats are right."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import jsonschema
import openai

from bench.fences.agent_tools import TOOLS
from tests.e2e.stack import MODEL, run_stack

_log = logging.getLogger(__name__)
NUM_PROMPTS = 200 if os.environ.get("FENCEPOST_SOAK") else 6
AGENT_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": f"The tool {name}.", "parameters": schema}}
    for name, schema in TOOLS.items()
]
_TASKS = (
    "Read the file {name}.py.",
    "Find where {name} is defined in this repository.",
    "Run the tests of {name} and tell me what fails.",
    "Rename the function {name} to {name}_all everywhere.",
    "Write a short README for {name}.",
    "What changed in {name} last week?",
    "Search the web for how to use {name}.",
    "Make a list of what is to be done for {name}.",
)
_NAMES = ("parser", "cache", "main", "scheduler", "users", "render", "config", "upload", "search", "graph")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "languages": {"type": "array", "items": {"enum": ["C", "Go", "Python"]}, "maxItems": 3},
    },
    "required": ["name", "age", "languages"],
    "additionalProperties": False,
}

TWINS = {"type": "array", "items": {"const": "a"}, "minItems": 2, "maxItems": 2, "uniqueItems": True}
"""What a fence enforces of it contradicts what it cannot enforce."""


def prompts(count: int) -> list[str]:
    return [_TASKS[i % len(_TASKS)].format(name=_NAMES[i // len(_TASKS) % len(_NAMES)]) for i in range(count)]


def whole_calls(answer: Any) -> list[Any]:
    """An answer's calls, without one in which its limit may have cut it off."""
    choice = answer.choices[0]
    calls = choice.message.tool_calls or []
    return calls[:-1] if choice.finish_reason == "length" else calls


def faults(answer: Any) -> list[str]:
    """What is wrong with an answer's calls."""
    choice = answer.choices[0]
    calls = whole_calls(answer)
    found: list[str] = []
    if not calls and choice.finish_reason != "length":
        found.append(f"no call: {choice.message.content!r}")
    for call in calls:
        schema = TOOLS.get(call.function.name)
        if schema is None:
            found.append(f"no such tool: {call.function.name}")
            continue
        try:
            jsonschema.validate(json.loads(call.function.arguments), schema)
        except (ValueError, jsonschema.ValidationError) as error:
            found.append(f"{call.function.name}: {error}")
    return found


def ask(client: openai.OpenAI, prompt: str, seed: int, **more: Any) -> Any:
    messages: list[Any] = [{"role": "user", "content": prompt}]
    fields: dict[str, Any] = {"temperature": 0.7, "seed": seed, "max_tokens": 500, **more}
    return client.chat.completions.create(model=MODEL, messages=messages, **fields)


def test_required_and_named_calls_and_formats_are_always_right(smollm2_dir: Path, tmp_path: Path) -> None:
    num_calls = num_cut = num_free_right = 0
    with run_stack(tmp_path / "data") as stack:
        client = stack.client()
        for number, prompt in enumerate(prompts(NUM_PROMPTS)):
            answer = ask(client, prompt, number, tools=AGENT_TOOLS, tool_choice="required", parallel_tool_calls=False)
            assert not faults(answer), prompt
            num_calls += len(whole_calls(answer))
            num_cut += answer.choices[0].finish_reason == "length"
            if number < NUM_PROMPTS // 4:
                free = ask(client, prompt, number, tools=AGENT_TOOLS, max_tokens=100)
                num_free_right += bool(whole_calls(free)) and not faults(free)
        name = next(iter(TOOLS))
        named: Any = {"type": "function", "function": {"name": name}}
        answer = ask(client, "Hello.", 1, tools=AGENT_TOOLS, tool_choice=named)
        assert not faults(answer)
        assert {call.function.name for call in answer.choices[0].message.tool_calls or []} <= {name}
        none = ask(client, "Hello.", 1, tools=AGENT_TOOLS, tool_choice="none", max_tokens=40)
        assert not none.choices[0].message.tool_calls
        schema: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
        for seed in range(3):
            answer = ask(client, "Invent a programmer.", seed, response_format=schema)
            assert answer.choices[0].finish_reason == "stop"
            jsonschema.validate(json.loads(answer.choices[0].message.content), PERSON)
        schema["json_schema"]["schema"] = TWINS
        answer = ask(client, "Hello.", 1, response_format=schema)
        assert json.loads(answer.choices[0].message.content) == ["a", "a"]
        assert answer.model_extra["fencepost"]["warnings"] == [
            "not enforced: uniqueItems of output_format",
            "the answer is not valid: uniqueItems of output_format",
        ]
    _log.info(
        "%d prompts: %d calls, all valid; %d cut by their limit; %d of %d valid where no call was required",
        *(NUM_PROMPTS, num_calls, num_cut, num_free_right, NUM_PROMPTS // 4),
    )
    assert num_calls >= NUM_PROMPTS - num_cut
    assert num_cut <= NUM_PROMPTS // 4
