"""A program's nodes by number, as the contract has them, and what the engine says of a number.

The order depends on the program alone: nodes inside others come before them, each node that occurs twice comes once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Many

from services.tokenizer.fence.program import (
    Choose,
    Grammar,
    Keys,
    Node,
    Raw,
    Relaxed,
    Repeat,
    Sequence,
    Value,
)

_NODE = re.compile(r"nodes\[(\d+)\]")


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly inside ``node``, in order."""
    match node:
        case Sequence():
            return node.nodes
        case Choose():
            return tuple(branch.next for branch in node.branches)
        case Keys():
            return tuple(item.value for item in node.items)
        case Repeat():
            return (node.node,)
        case _:
            return ()


class FlatProgram:
    """``nodes``, for each of them the numbers of those inside, and the numbers of the entries."""

    def __init__(self, *entries: Node) -> None:
        self.nodes: list[Node] = []
        self.inside: list[tuple[int, ...]] = []
        self._number_by_id: dict[int, int] = {}
        self._number_by_node: dict[object, int] = {}
        self.entries = tuple(self._add(entry) for entry in entries)

    @property
    def places(self) -> tuple[str, ...]:
        """What each node stands for, as people know it; "" where it stands for nothing that could be relaxed."""
        return tuple(node.place if isinstance(node, Value | Raw | Grammar) else "" for node in self.nodes)

    def _add(self, node: Node) -> int:
        number = self._number_by_id.get(id(node))
        if number is None:
            inside = tuple(self._add(child) for child in children(node))
            key = (type(node), inside, _own(node))
            number = self._number_by_node.setdefault(key, len(self.nodes))
            if number == len(self.nodes):
                self.nodes.append(node)
                self.inside.append(inside)
            self._number_by_id[id(node)] = number
        return number


def _own(node: Node) -> object:
    """What tells a node from others of its type with the same nodes inside."""
    match node:
        case Sequence():
            return None
        case Choose():
            return tuple(branch.key for branch in node.branches)
        case Keys():
            return tuple((item.key, item.is_required) for item in node.items), node.between, node.close
        case Repeat():
            return node.min, node.max, node.separator
        case _:
            return node


def place_named(relaxed: Relaxed, places: Many[str]) -> Relaxed:
    """As people know it. ``places`` are those of the nodes that the engine may speak of by number."""

    def name(match: re.Match[str]) -> str:
        number = int(match[1])
        return (places[number] if number < len(places) else "") or match[0]

    return Relaxed(_NODE.sub(name, relaxed.place), relaxed.keyword)


def describe(relaxed: Relaxed) -> str:
    """A warning."""
    return f"not enforced: {relaxed.keyword} of {relaxed.place}"
