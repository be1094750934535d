"""Whose a cached block is: everyone's, one conversation's, or one branch's of it.

Owners form a tree of three levels. A block that two branches have used is their conversation's, one that two
conversations have used is everyone's. Who is over counts no more: its blocks are the next user's alone, and go first
while there is none.

Invariant: an owner that is not over has a part in all ancestors of its blocks.
"""

from __future__ import annotations

from services.engine.wait_times import Wait


class Owner:
    """Compared by identity. ``parent`` is None for everyone."""

    __slots__ = ("is_over", "parent", "wait")

    def __init__(self, parent: Owner | None) -> None:
        self.parent = parent
        self.is_over = False
        self.wait: Wait | None = None  # what it waits for, as far as that says when it comes back

    def joined(self, other: Owner) -> Owner:
        """The closest owner that both are part of."""
        if self.is_over:
            return other
        if other.is_over:
            return self
        mine: Owner | None = self
        while mine is not None and not other.is_part_of(mine):
            mine = mine.parent
        return EVERYONE if mine is None else mine

    def is_part_of(self, other: Owner) -> bool:
        """Whether this is ``other`` or below it."""
        mine: Owner | None = self
        while mine is not None and mine is not other:
            mine = mine.parent
        return mine is other


EVERYONE = Owner(None)
