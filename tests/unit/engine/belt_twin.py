"""The belt's order as it is defined: every leaf is looked at for every block, and nothing is kept."""

from __future__ import annotations

import math

from services.engine.belt import TICK_S
from services.engine.node import Node
from services.engine.owner import Owner
from services.engine.prefix_tree import PrefixTree
from services.engine.wait_times import unknown_return_rate


class CheckedTree(PrefixTree):
    """A tree whose claims are compared with claims that go all the way up."""

    def claim(self, node: Node, owner: Owner) -> None:
        expected = [(above, above.owner.joined(owner)) for above in self.path(node)]
        super().claim(node, owner)
        for above, joined in expected:
            # Of two that are over it does not matter which: blocks of both go first.
            assert above.owner is joined or (above.owner.is_over and joined.is_over)


def next_victims(tree: PrefixTree, count: int, now_s: float) -> list[Node]:
    """What ``evict(count)`` must free at ``now_s``, in order."""
    tick_s = math.floor(now_s / TICK_S) * TICK_S
    gone: list[Node] = []
    used_s = {node: node.last_used_s for node in tree.nodes()}
    protections = {node: node.num_protections for node in tree.nodes()}
    while len(gone) < count:
        leaves = [
            node
            for node in tree.nodes()
            if node not in gone
            and not node.num_pins
            and all(child in gone for siblings in node.children.values() for child in siblings)
        ]
        if not leaves:
            break
        released = [n for n in leaves if n.owner.is_over and not protections[n]]
        rest = [n for n in leaves if not n.owner.is_over and not protections[n]]
        unknown = [n for n in rest if n.owner.wait is None]
        known = [n for n in rest if n.owner.wait is not None]

        def oldest(nodes: list[Node]) -> list[Node]:
            return sorted(nodes, key=used_s.__getitem__)[:1]

        def value(node: Node) -> tuple[float, float]:
            wait = node.owner.wait
            if wait is None:
                rate = unknown_return_rate(max(0.0, tick_s - used_s[node]))
            else:
                rate = wait.estimate.return_rate(max(0.0, tick_s - wait.since_s))
            first = (len(tree.path(node)) - 1) * tree.block_tokens
            return rate * (node.num_tokens * (1 + first / 8_192)), used_s[node]

        if released:
            victim = oldest(released)[0]
        elif rest:
            victim = min([*oldest(unknown), *sorted(known, key=value)[:1]], key=value)
        else:
            victim = oldest(leaves)[0]
        gone.append(victim)
        parent = victim.parent
        if parent in used_s:
            used_s[parent] = max(used_s[parent], used_s[victim])
            protections[parent] += protections[victim]
    return gone
