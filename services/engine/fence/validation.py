"""Whether a program makes sense, before anything is compiled.

Messages name the place as a path (``nodes[3].choose.branches[0].next``).
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from itertools import pairwise

from services.engine.fence.errors import FenceError
from services.engine.fence.program import (
    Choose,
    Grammar,
    Keys,
    Literal,
    Mark,
    Node,
    Program,
    Raw,
    Repeat,
    Sequence,
    Value,
    children,
)

_MAX_NODES = 100_000
_MAX_DEPTH = 200
"""Nodes inside each other; compiling walks them recursively."""


def validate(program: Program) -> None:
    """Raises FenceError for what cannot be meant."""
    if not program.nodes:
        raise FenceError("nodes: there are none")
    if len(program.nodes) > _MAX_NODES:
        raise FenceError(f"nodes: more than {_MAX_NODES}")
    _check_index(program, program.entry, "entry")
    for position, node in enumerate(program.nodes):
        _check_node(program, node, f"nodes[{position}]")
    _check_depth(program)
    for position, node in enumerate(program.nodes):
        if isinstance(node, Repeat):
            _check(not _may_be_empty(program, node.node), f"nodes[{position}].repeat.node", "may be empty")
    trigger = program.trigger
    if trigger is not None and trigger.marker_id is None and not trigger.lead_in.strip():
        raise FenceError("trigger.lead_in: without a marker it must be more than whitespace")
    for position, one in enumerate(program.text_triggers):
        path = f"text_triggers[{position}]"
        _check(trigger is not None, path, "there is no trigger beside it")
        _check(one.text.strip() != "", f"{path}.text", "must be more than whitespace")
        _check_text(one.text, f"{path}.text")
        _check(trigger is None or one.text not in trigger.lead_in, f"{path}.text", "the trigger's lead-in contains it")
        _check_index(program, one.entry, f"{path}.entry")
    for position, marker_id in enumerate(program.marker_ids):
        _check(marker_id >= 0, f"marker_ids[{position}]", "negative")


def _check_node(program: Program, node: Node, path: str) -> None:
    match node:
        case Literal(text):
            _check(text != "", f"{path}.literal.text", "empty")
            _check_text(text, f"{path}.literal.text")
        case Mark(token_id):
            _check(token_id >= 0, f"{path}.mark.token_id", "negative")
        case Sequence(nodes):
            for number, index in enumerate(nodes):
                _check_index(program, index, f"{path}.sequence.nodes[{number}]")
                _check_end_of_raw(program, nodes[number:], f"{path}.sequence.nodes[{number}]")
        case Choose(branches):
            _check(len(branches) > 0, f"{path}.choose.branches", "there are none")
            for number, branch in enumerate(branches):
                _check_index(program, branch.next, f"{path}.choose.branches[{number}].next")
                _check_text(branch.key, f"{path}.choose.branches[{number}].key")
            if len(branches) > 1:
                _check_prefix_free([branch.key for branch in branches], f"{path}.choose.branches")
        case Keys(items):
            for number, item in enumerate(items):
                _check_index(program, item.value, f"{path}.keys.items[{number}].value")
                _check_text(item.key, f"{path}.keys.items[{number}].key")
            _check_prefix_free([item.key for item in items], f"{path}.keys.items")
            _check_text(node.between + node.close, f"{path}.keys")
        case Value():
            _check_text(node.before + node.after, f"{path}.value")
        case Raw():
            _check(node.min_chars >= 0, f"{path}.raw.min_chars", "negative")
            too_few = node.max_chars is not None and node.max_chars < node.min_chars
            _check(not too_few, f"{path}.raw.max_chars", "less than min_chars")
            _check("" not in node.forbidden, f"{path}.raw.forbidden", "an empty text would forbid everything")
            _check_text(node.after, f"{path}.raw.after")
        case Repeat():
            _check_index(program, node.node, f"{path}.repeat.node")
            _check(node.min >= 0, f"{path}.repeat.min", "negative")
            too_few = node.max is not None and node.max < max(node.min, 1)
            _check(not too_few, f"{path}.repeat.max", "less than min, or zero")
        case Grammar():
            _check(node.text != "", f"{path}.grammar.text", "empty")


def _may_be_empty(program: Program, index: int) -> bool:
    """Whether nothing at all may be written for a node. The depth is known to be bounded."""
    node = program.nodes[index]
    match node:
        case Sequence(nodes):
            return all(_may_be_empty(program, inner) for inner in nodes)
        case Choose(branches):
            return any(branch.key == "" and _may_be_empty(program, branch.next) for branch in branches)
        case Keys(items):
            return node.close == "" and not any(item.is_required for item in items)
        case Repeat():
            return node.min == 0
        case Raw():
            return node.after == "" and node.min_chars == 0
        case _:
            return False


def _check_end_of_raw(program: Program, nodes: Many[int], path: str) -> None:
    node = program.nodes[nodes[0]]
    if isinstance(node, Raw) and node.after == "" and len(nodes) > 1:
        follower = program.nodes[nodes[1]] if nodes[1] < len(program.nodes) else None
        _check(
            isinstance(follower, Mark), path, "raw text without a terminator must end at a mark or the program's end"
        )


def _check_prefix_free(keys: list[str], path: str) -> None:
    keys = sorted(keys)
    for first, second in pairwise(keys):
        _check(first != "" and not second.startswith(first), path, f"key {first!r} is a prefix of {second!r}")


def _check_index(program: Program, index: int, path: str) -> None:
    _check(0 <= index < len(program.nodes), path, f"there is no node {index}")


def _check_text(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise FenceError(f"{path}: not valid Unicode text") from None


def _check(is_right: bool, path: str, message: str) -> None:
    if not is_right:
        raise FenceError(f"{path}: {message}")


def _check_depth(program: Program) -> None:
    """No node contains itself, and none lies too deep. Depth first, without recursion."""
    depth_by_node: dict[int, int] = {}
    for start in range(len(program.nodes)):
        path: list[tuple[int, int]] = [(start, 0)]
        on_path = {start}
        while path:
            index, number = path[-1]
            inside = children(program.nodes[index])
            if index in depth_by_node or number == len(inside):
                below = [depth_by_node[child] for child in inside]
                depth_by_node[index] = 1 + max(below, default=0)
                _check(depth_by_node[index] <= _MAX_DEPTH, f"nodes[{index}]", f"more than {_MAX_DEPTH} nodes deep")
                path.pop()
                on_path.discard(index)
                continue
            path[-1] = (index, number + 1)
            child = inside[number]
            _check(child not in on_path, f"nodes[{index}]", "contains itself")
            if child not in depth_by_node:
                path.append((child, 0))
                on_path.add(child)
