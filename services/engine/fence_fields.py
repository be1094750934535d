"""Reads the contract's fence as the engine's own program."""

from __future__ import annotations

from fencepost.engine.v1 import fence_pb2 as pb

from services.engine.errors import InvalidRequest
from services.engine.fence.program import (
    Branch,
    Choose,
    Grammar,
    GrammarSyntax,
    KeyItem,
    Keys,
    Literal,
    Mark,
    Node,
    Program,
    ProgramEnd,
    Raw,
    Repeat,
    Sequence,
    TextTrigger,
    Trigger,
    Value,
)

_SYNTAXES = {
    pb.GRAMMAR_SYNTAX_LARK: GrammarSyntax.LARK,
    pb.GRAMMAR_SYNTAX_REGEX: GrammarSyntax.REGEX,
    pb.GRAMMAR_SYNTAX_JSON_SCHEMA: GrammarSyntax.JSON_SCHEMA,
}


def read_program(message: pb.Program) -> Program:
    """Raises InvalidRequest for what is no program of any engine; whether it makes sense is found by compiling it."""
    trigger = None
    if message.HasField("trigger"):
        found = message.trigger
        marker_id = found.marker_id if found.HasField("marker_id") else None
        trigger = Trigger(found.lead_in, marker_id, found.bare_at_start)
    return Program(
        nodes=tuple(_node(node, f"fence.nodes[{index}]") for index, node in enumerate(message.nodes)),
        entry=message.entry,
        trigger=trigger,
        has_reasoning_gate=message.reasoning_gate,
        marker_ids=tuple(message.marker_ids),
        end=ProgramEnd.FREE if message.end == pb.PROGRAM_END_FREE else ProgramEnd.EOS_ONLY,
        text_triggers=tuple(TextTrigger(one.text, one.entry) for one in message.text_triggers),
    )


def _node(node: pb.Node, path: str) -> Node:
    match node.WhichOneof("kind"):
        case "literal":
            return Literal(node.literal.text)
        case "mark":
            return Mark(node.mark.token_id)
        case "choose":
            return Choose(tuple(Branch(branch.key, branch.next) for branch in node.choose.branches))
        case "keys":
            keys = node.keys
            items = tuple(KeyItem(item.key, item.value, item.required) for item in keys.items)
            return Keys(items, keys.between, keys.close, keys.any_order, keys.unique)
        case "value":
            value = node.value
            return Value(value.json_schema, value.before, value.after, value.canonical, tuple(value.forbidden))
        case "raw":
            raw = node.raw
            return Raw(
                after=raw.after,
                min_chars=raw.min_chars,
                max_chars=raw.max_chars if raw.HasField("max_chars") else None,
                pattern=raw.pattern if raw.HasField("pattern") else None,
                forbidden=tuple(raw.forbidden),
            )
        case "repeat":
            repeat = node.repeat
            return Repeat(repeat.node, repeat.min, repeat.max if repeat.HasField("max") else None, repeat.separator)
        case "grammar":
            syntax = _SYNTAXES.get(node.grammar.syntax)
            if syntax is None:
                raise InvalidRequest(f"{path}.grammar.syntax", "must be named")
            return Grammar(syntax, node.grammar.text)
        case "sequence":
            return Sequence(tuple(node.sequence.nodes))
        case _:
            raise InvalidRequest(path, "must be of some kind")
