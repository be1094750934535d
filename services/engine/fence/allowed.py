"""What a fence says of the next token."""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.fence.tokens import Row


@dataclass(frozen=True, slots=True)
class Free:
    """Every token is legal."""


@dataclass(frozen=True, slots=True)
class Ids:
    """Only these, few."""

    ids: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """The bits of this row. Shared between fences: never written to, and the same object where it is the same row."""

    row: Row


Allowed = Free | Ids | Mask
