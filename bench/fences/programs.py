"""Programs of the dialects, by hand: what the tokenizer service would send."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from bench.fences.agent_tools import Schema, options_of
from services.engine.fence.program import (
    Branch,
    Choose,
    KeyItem,
    Keys,
    Literal,
    Node,
    Program,
    Raw,
    Repeat,
    Sequence,
    Trigger,
    Value,
)


class Mode(Enum):
    """Of tool choice."""

    REQUIRED = "required"
    NAMED = "named"
    AUTO = "auto"


@dataclass
class Nodes:
    """Grows a program's nodes."""

    nodes: list[Node] = field(default_factory=list[Node])

    def add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def sequence(self, *indexes: int) -> int:
        return self.add(Sequence(indexes))

    def literal(self, text: str) -> int:
        return self.add(Literal(text)) if text else self.sequence()


@dataclass(frozen=True)
class Markup:
    """How a dialect writes blocks and calls."""

    lead_in: str
    """Before the first block, where there is text; always, if not bare at the start."""
    is_bare_at_start: bool
    opening: str
    """Up to the first call."""
    call: str
    """Up to the first parameter; ``{}`` is the name."""
    between: str
    """Parameters."""
    closing: str
    """Of a call."""
    between_calls: str
    end: str
    """Behind the last call."""
    add_parameter: Callable[[Nodes, str, Schema], tuple[str, int]]
    """Key and value node."""
    is_per_call: bool = False
    """Every call has ``opening`` and ``end`` of its own."""


def program(
    markup: Markup,
    tools: Mapping[str, Schema],
    mode: Mode,
    *,
    markers: Mapping[str, int],
    max_calls: int | None = None,
    trigger: str | None = None,
) -> Program:
    """``markers``: added tokens by spelling. ``trigger``: the marker that begins a block, if one does."""
    nodes = Nodes()
    branches = [_call(nodes, markup, name, schema) for name, schema in tools.items()]
    call = nodes.add(Choose(tuple(branches)))
    if markup.is_per_call:
        one = nodes.sequence(nodes.literal(markup.opening), call, nodes.literal(markup.end))
        calls = nodes.add(Repeat(one, 1, max_calls, markup.between_calls))
        entry = calls
        last = nodes.sequence(call, nodes.literal(markup.end))
        if max_calls == 1:
            behind_opening = last
        else:
            more = nodes.add(
                Repeat(
                    nodes.sequence(nodes.literal(markup.between_calls + markup.opening), last),
                    0,
                    None if max_calls is None else max_calls - 1,
                )
            )
            behind_opening = nodes.sequence(last, more)
    else:
        calls = nodes.add(Repeat(call, 1, max_calls, markup.between_calls))
        behind_opening = nodes.sequence(calls, nodes.literal(markup.end))
        entry = nodes.sequence(nodes.literal(markup.opening), behind_opening)
    if mode is not Mode.AUTO:
        if not markup.is_bare_at_start and markup.lead_in:
            entry = nodes.sequence(nodes.literal(markup.lead_in), entry)
        return Program(tuple(nodes.nodes), entry, marker_ids=tuple(markers.values()))
    lead_in, rest, marker_id = markup.lead_in + markup.opening, "", None
    if trigger is not None:
        before, _, rest = markup.opening.partition(trigger)
        lead_in, marker_id = markup.lead_in + before, markers[trigger]
    entry = nodes.sequence(nodes.literal(rest), behind_opening) if rest else behind_opening
    return Program(
        tuple(nodes.nodes),
        entry,
        Trigger(lead_in, marker_id, markup.is_bare_at_start),
        marker_ids=tuple(markers.values()),
    )


def _call(nodes: Nodes, markup: Markup, name: str, schema: Schema) -> Branch:
    items: list[KeyItem] = []
    for parameter, inner in schema["properties"].items():
        key, value = markup.add_parameter(nodes, parameter, inner)
        items.append(KeyItem(key, value, parameter in schema["required"]))
    keys = Keys(tuple(items), markup.between, markup.closing)
    return Branch(markup.call.format(name), nodes.add(keys))


def _raw(nodes: Nodes, schema: Schema, after: str, forbidden: tuple[str, ...], more: tuple[str, ...] = ()) -> int:
    """A string without quotation marks; ``more``: other texts that may stand in its place."""
    if "enum" in schema or "const" in schema:
        values = [*schema.get("enum", [schema.get("const")]), *more]
        nothing = nodes.sequence()
        return nodes.add(Choose(tuple(Branch(value + after, nothing) for value in values)))
    pattern = schema.get("pattern")
    return nodes.add(Raw(after, schema.get("minLength", 0), schema.get("maxLength"), pattern, forbidden))


def _dsml_parameter(nodes: Nodes, name: str, schema: Schema) -> tuple[str, int]:
    after = "</｜DSML｜parameter>"
    text, other = options_of(schema)
    branches: list[Branch] = []
    if text is not None:
        branches.append(Branch('true">', _raw(nodes, text, after, ("｜DSML｜",))))
    if other is not None:
        value = Value(json.dumps(other), after=after, forbidden=("｜DSML｜",))
        branches.append(Branch('false">', nodes.add(value)))
    return f'<｜DSML｜parameter name="{name}" string="', nodes.add(Choose(tuple(branches)))


def _typed(key: str, after: str, forbidden: tuple[str, ...]) -> Callable[[Nodes, str, Schema], tuple[str, int]]:
    """Where nothing marks the type."""

    def add(nodes: Nodes, name: str, schema: Schema) -> tuple[str, int]:
        text, other = options_of(schema)
        if text is None:
            assert other is not None
            return key.format(name), nodes.add(Value(json.dumps(other), after=after, forbidden=forbidden))
        more = ("null",) if other == {"type": "null"} else ()
        return key.format(name), _raw(nodes, text, after, forbidden, more)

    return add


def _json_parameter(nodes: Nodes, name: str, schema: Schema) -> tuple[str, int]:
    return f"{json.dumps(name)}: ", nodes.add(Value(json.dumps(schema)))


DSML = Markup(
    lead_in="\n\n",
    is_bare_at_start=False,
    opening="<｜DSML｜tool_calls>\n",
    call='<｜DSML｜invoke name="{}">\n',
    between="\n",
    closing="\n</｜DSML｜invoke>",
    between_calls="\n",
    end="\n</｜DSML｜tool_calls>",
    add_parameter=_dsml_parameter,
)
CHATML_JSON = Markup(
    lead_in="\n",
    is_bare_at_start=True,
    opening='<tool_call>\n{"name": "',
    call='{}", "arguments": {{',
    between=", ",
    closing="}",
    between_calls="\n",
    end="}\n</tool_call>",
    add_parameter=_json_parameter,
    is_per_call=True,
)
_QWEN_ENDS = tuple(
    f"</parameter>{between}{tag}"
    for between in ("", "\n", "\n\n")
    for tag in ("<parameter=", "</function>", "</tool_call>")
)
QWEN_XML = Markup(
    lead_in="\n\n",
    is_bare_at_start=True,
    opening="<tool_call>\n<function=",
    call="{}>\n",
    between="",
    closing="</function>",
    between_calls="\n",
    end="\n</tool_call>",
    add_parameter=_typed("<parameter={}>\n", "\n</parameter>\n", _QWEN_ENDS),
    is_per_call=True,
)
GLM_XML = Markup(
    lead_in="\n",
    is_bare_at_start=False,
    opening="<tool_call>",
    call="{}\n",
    between="",
    closing="</tool_call>",
    between_calls="\n",
    end="",
    add_parameter=_typed("<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>\n", ("</arg_value><", "</arg_value> ")),
    is_per_call=True,
)
GLM_MARKERS = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
