"""Calls as hypothesis makes them for the formats that spell parameters one by one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from hypothesis import strategies as st

from services.tokenizer.dialects.dialect import Dialect
from services.tokenizer.dialects.events import ToolSpec
from services.tokenizer.dialects.json_text import quote
from tests.unit.tokenizer.dialects.answers import Answer, add_up, parse

SHELL = "grep -rn 'x' . 2>&1"
NUMBERS = ("0", "-0", "1e5", "0.10", "1E+2", "-1.50e-3", "9007199254740993", "100000000000000000000000001")
FRAGMENTS = (
    "<",
    "</",
    "<\\/",
    ">",
    "2>&1",
    '"',
    "\\",
    "\n",
    "\t",
    " ",
    "{",
    "[1, 2]",
    "null",
    "é",
    "字",
    "👩‍👧",
    "\u2028",
    "\x7f",
)
MARKUP = ('name="k">', "<arg_key>", "</arg_key>", "</tool_call>", "</parameter>", "<think>", "</think>", "｜DSML｜")

keys = st.sampled_from(["path", "content", "k_1", "Über", "a-b", "x.y", "arguments", "input", "0", "10"])
strings = st.lists(st.sampled_from(FRAGMENTS + MARKUP) | st.text(max_size=3), max_size=8).map("".join)
_scalars = st.sampled_from([*NUMBERS, "true", "false", "null"])


def object_text(members: Iterable[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{quote(key)}: {value}" for key, value in members) + "}"


values = st.recursive(
    _scalars | strings.map(quote),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.lists(st.tuples(strings, inner), max_size=3).map(object_text)
    ),
    max_leaves=6,
)
"""JSON texts in canonical spacing; duplicate keys among them."""
members = st.lists(st.tuples(keys, values), max_size=4, unique_by=lambda member: member[0])
calls_made = st.lists(st.tuples(st.sampled_from(["read_file", "mcp__srv__run-it"]), members), min_size=1, max_size=3)
"""Names with arguments."""
answers = st.text(st.sampled_from("ab <>\n.é字"), max_size=12)
"""Text before calls."""


def schema_of(members: Iterable[tuple[str, str]]) -> str:
    """A schema that declares the types that these values have."""
    kinds = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}
    properties = {key: {"type": kinds.get(value[0], "number")} for key, value in members}
    return json.dumps({"type": "object", "properties": properties})


def tool(**types: object) -> ToolSpec:
    """The tool ``f`` with parameters of these types."""
    properties = {name: {"type": kind} for name, kind in types.items()}
    return ToolSpec("f", None, json.dumps({"type": "object", "properties": properties}))


def read(
    dialect: Dialect, tools: Sequence[ToolSpec], parts: Sequence[str], *, starts_in_reasoning: bool = False
) -> Answer:
    """An answer that arrives in ``parts``; checks what must hold for any."""
    return add_up(parse(dialect, parts, tools, starts_in_reasoning=starts_in_reasoning))


def sliced(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def cuttings(text: str) -> Iterator[list[str]]:
    """Whole, in pieces of several sizes, and in two at places of all kinds."""
    yield [text]
    yield from (sliced(text, size) for size in (1, 2, 3, 7))
    yield from ([text[:cut], text[cut:]] for cut in range(4, len(text), 11))
