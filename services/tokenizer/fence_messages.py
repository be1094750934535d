"""Fences as engine.v1 messages."""

from __future__ import annotations

from functools import lru_cache

from fencepost.engine.v1 import fence_pb2

from services.tokenizer.fence.fence import Fence, Start
from services.tokenizer.fence.program import (
    Choose,
    Grammar,
    GrammarSyntax,
    Keys,
    Literal,
    Node,
    Raw,
    Repeat,
    Sequence,
    Value,
)

_SYNTAXES = {
    GrammarSyntax.LARK: fence_pb2.GRAMMAR_SYNTAX_LARK,
    GrammarSyntax.REGEX: fence_pb2.GRAMMAR_SYNTAX_REGEX,
}


@lru_cache(maxsize=64)
def write_program(fence: Fence) -> fence_pb2.Program:
    """Kept by the fence: not to be changed. Equal fences give equal bytes."""
    program, start = fence.program, fence.start
    return fence_pb2.Program(
        nodes=[_node(node, inside) for node, inside in zip(program.nodes, program.inside, strict=True)],
        entry=program.entries[0],
        trigger=None if start is None else _trigger(start),
        reasoning_gate=fence.has_reasoning_gate,
        marker_ids=fence.marker_ids,
        end=fence_pb2.PROGRAM_END_EOS_ONLY,
        text_triggers=[
            fence_pb2.TextTrigger(text=text, entry=entry)
            for text, entry in zip(fence.text_starts, program.entries[1:], strict=True)
        ],
    )


def _trigger(start: Start) -> fence_pb2.Trigger:
    return fence_pb2.Trigger(lead_in=start.lead_in, marker_id=start.marker_id, bare_at_start=start.is_bare_at_start)


def _node(node: Node, inside: tuple[int, ...]) -> fence_pb2.Node:
    match node:
        case Literal():
            return fence_pb2.Node(literal=fence_pb2.Literal(text=node.text))
        case Sequence():
            return fence_pb2.Node(sequence=fence_pb2.Sequence(nodes=inside))
        case Choose():
            branches = [
                fence_pb2.Branch(key=branch.key, next=number)
                for branch, number in zip(node.branches, inside, strict=True)
            ]
            return fence_pb2.Node(choose=fence_pb2.Choose(branches=branches))
        case Keys():
            items = [
                fence_pb2.KeyItem(key=item.key, value=number, required=item.is_required)
                for item, number in zip(node.items, inside, strict=True)
            ]
            keys = fence_pb2.Keys(items=items, between=node.between, close=node.close, any_order=True, unique=True)
            return fence_pb2.Node(keys=keys)
        case Value():
            value = fence_pb2.Value(
                json_schema=node.json_schema,
                after=node.after,
                canonical=node.is_canonical,
                forbidden=node.forbidden,
            )
            return fence_pb2.Node(value=value)
        case Raw():
            raw = fence_pb2.Raw(
                min_chars=node.min_chars or None,
                max_chars=node.max_chars,
                pattern=node.pattern,
                forbidden=node.forbidden,
                after=node.after,
            )
            return fence_pb2.Node(raw=raw)
        case Repeat():
            repeat = fence_pb2.Repeat(node=inside[0], min=node.min, max=node.max, separator=node.separator)
            return fence_pb2.Node(repeat=repeat)
        case Grammar():
            grammar = fence_pb2.Grammar(syntax=_SYNTAXES[node.syntax], text=node.text)
            return fence_pb2.Node(grammar=grammar)
