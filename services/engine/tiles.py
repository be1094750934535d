"""How a restore is cut into reads, and what must arrive in each: pure.

The *owners* of a restore are pages and, behind them, a tail. Bytes come layer by layer, in each layer owner by owner.
All channels of a layer are stored together, one behind the other, since a layer needs them all. A *tile* is some layers
of all owners, or, where one layer of all is too much, one layer of some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.engine.runtime.layout import StateLayout


@dataclass(frozen=True, slots=True)
class Owner:
    """A page (``page_key``) or the tail of ``manifest_id``: ``token_ids`` lie at prompt position ``first_token`` on.

    Its tokens [``use_from``, ``use_to``) of the prompt are wanted.
    """

    page_key: bytes | None
    manifest_id: bytes | None
    first_token: int
    token_ids: bytes
    use_from: int
    use_to: int

    @property
    def num_tokens(self) -> int:
        """Tokens it holds."""
        return len(self.token_ids) // 4


@dataclass(frozen=True, slots=True)
class Tile:
    """What one read brings: ``layers`` of ``owners`` [first, last)."""

    layers: range
    first_owner: int
    last_owner: int


@dataclass(frozen=True, slots=True)
class Span:
    """All bytes of one layer of an owner."""

    layer: int
    owner: int


def cut(layout: StateLayout, owners: Sequence[Owner], max_bytes: int | None) -> list[Tile]:
    """Tiles in the order in which they are read, none larger than ``max_bytes`` (None: one tile).

    Raises ValueError where a single layer of a single owner is larger.
    """
    if max_bytes is None:
        return [Tile(range(layout.num_layers), 0, len(owners))]
    sizes = [layout.layer_bytes(owner.num_tokens) for owner in owners]
    if max(sizes) > max_bytes:
        raise ValueError(f"a layer of a page has {max(sizes)} bytes, more than the {max_bytes} that are lent")
    at_once = max_bytes // sum(sizes)
    if at_once:
        starts = range(0, layout.num_layers, at_once)
        return [Tile(range(i, min(i + at_once, layout.num_layers)), 0, len(owners)) for i in starts]
    groups: list[tuple[int, int]] = []
    first, num_bytes = 0, 0
    for index, size in enumerate(sizes):
        if num_bytes + size > max_bytes:
            groups.append((first, index))
            first, num_bytes = index, 0
        num_bytes += size
    groups.append((first, len(owners)))
    return [Tile(range(i, i + 1), *group) for i in range(layout.num_layers) for group in groups]


def spans(tile: Tile) -> Iterator[Span]:
    """What a tile's read brings, in order."""
    for layer in tile.layers:
        for owner in range(tile.first_owner, tile.last_owner):
            yield Span(layer, owner)
