"""Schemas are untrusted: whatever they are, a program comes out that makes sense and can be sent."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from fencepost.engine.v1 import fence_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tokenizer.conversation import Conversation, Message, Role
from services.tokenizer.dialects.events import ToolSpec
from services.tokenizer.dialects.registry import DIALECTS
from services.tokenizer.fence.fence import Fences, PromptEnd
from services.tokenizer.fence_messages import write_program

KEYWORDS = (
    *("type", "properties", "required", "additionalProperties", "patternProperties", "anyOf", "oneOf", "allOf", "not"),
    *("enum", "const", "$ref", "$defs", "definitions", "minLength", "maxLength", "pattern", "format", "minimum", "if"),
)
WORDS = (
    "string",
    "integer",
    "null",
    "boolean",
    "object",
    "#",
    "#/$defs/a",
    "#/properties/a",
    "^a$",
    "(",
    "",
    "a",
    "\ud800",
)
END = PromptEnd(starts_in_reasoning=False, may_think=True, follows_text=False)

_scalars = st.sampled_from(WORDS) | st.integers(-3, 2**40) | st.booleans() | st.none() | st.floats(allow_nan=False)
_names = st.sampled_from([*KEYWORDS, "a", "b", "ab", '"', "a>\n", "</arg_key>", ""])
_anything = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=4),
    max_leaves=12,
)
_values: dict[str, st.SearchStrategy[Any]] = {
    "properties": st.dictionaries(_names, _anything, max_size=4),
    "$defs": st.dictionaries(_names, _anything, max_size=3),
    "required": st.lists(_names, max_size=2),
    "type": st.just("object"),
}
_schemas = st.fixed_dictionaries({}, optional={name: _anything | _values.get(name, _anything) for name in KEYWORDS})
_names_of_tools = st.sampled_from(["f", "ff", "f>\n", "g", '"', " ", "\n", "f</arg_key>", 'f">\n'])


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=10, deadline=None)
@given(tools=st.dictionaries(_names_of_tools, _schemas, min_size=1, max_size=3))
def test_any_schema_gives_a_program_that_makes_sense(name: str, tools: dict[str, Any]):
    specs = tuple(ToolSpec(one, None, json.dumps(schema)) for one, schema in tools.items())
    fence = Fences(DIALECTS[name], {}).derive(Conversation((Message(Role.USER, ""),), {}, tools=specs), END)
    if fence is not None:
        program = pb.Program.FromString(write_program(fence).SerializeToString())
        for node in program.nodes:
            check(program, node)


def check(program: pb.Program, node: pb.Node) -> None:
    """What an engine would refuse."""
    match node.WhichOneof("kind"):
        case "literal":
            assert node.literal.text
        case "choose":
            assert node.choose.branches
            check_keys([branch.key for branch in node.choose.branches])
        case "keys":
            check_keys([item.key for item in node.keys.items] + [node.keys.close])
        case "raw":
            assert not node.raw.HasField("max_chars") or node.raw.max_chars >= node.raw.min_chars
            assert all(one and one not in node.raw.after[:-1] for one in node.raw.forbidden)
        case "value":
            json.loads(node.value.json_schema)
        case "repeat":
            assert not node.repeat.HasField("max") or node.repeat.max >= max(node.repeat.min, 1)
        case _:
            pass


def check_keys(keys: list[str]) -> None:
    ordered = sorted(keys)
    assert len(keys) == 1 or all(ordered)
    assert not any(second.startswith(first) for first, second in pairwise(ordered))
