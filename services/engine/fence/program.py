"""A grammar over text and marker tokens, as a caller sends it.

The same shape as ``fence.proto``'s ``Program``: nodes refer to each other by index. `validation` says whether it makes
sense.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Literal:
    """Text that must follow; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A token that must follow."""

    token_id: int


@dataclass(frozen=True, slots=True)
class Sequence:
    """One node after another."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """An alternative of ``Choose``: its text, and the node behind it."""

    key: str
    next: int


@dataclass(frozen=True, slots=True)
class Choose:
    """Exactly one branch. No key is a prefix of another."""

    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class KeyItem:
    """A key's text, and the node of its value."""

    key: str
    value: int
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys with values; ``close`` is legal once all required ones are there."""

    items: tuple[KeyItem, ...]
    between: str = ""
    close: str = ""
    is_any_order: bool = True
    """Else in the order given."""
    is_unique: bool = True


@dataclass(frozen=True, slots=True)
class Value:
    """A JSON value with the text around it."""

    json_schema: str
    before: str = ""
    after: str = ""
    is_canonical: bool = True
    """Only the spelling that survives a JSON round trip."""
    forbidden: tuple[str, ...] = ()
    """Texts that may not appear, not even in strings."""


@dataclass(frozen=True, slots=True)
class Raw:
    """Any text up to ``after``. Where a mark or the program's end follows, the text ends only where ``after`` stands
    directly before that token; elsewhere the first ``after`` ends it."""

    after: str = ""
    min_chars: int = 0
    max_chars: int | None = None
    pattern: str | None = None
    """For the whole text."""
    forbidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Repeat:
    """A node several times; no ``max``: without limit."""

    node: int
    min: int = 1
    max: int | None = None
    separator: str = ""


class GrammarSyntax(Enum):
    """Languages in which a grammar of its own may be written."""

    LARK = auto()
    REGEX = auto()
    JSON_SCHEMA = auto()


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar of its own, untrusted."""

    syntax: GrammarSyntax
    text: str


Node = Literal | Mark | Sequence | Choose | Keys | Value | Raw | Repeat | Grammar


@dataclass(frozen=True, slots=True)
class Trigger:
    """Starts the program out of free text: behind ``lead_in`` and the marker, or behind ``lead_in`` alone."""

    lead_in: str
    marker_id: int | None = None
    is_bare_at_start: bool = False
    """At the answer's beginning the whitespace at ``lead_in``'s beginning may be missing."""


@dataclass(frozen=True, slots=True)
class TextTrigger:
    """Starts the program out of free text, too, wherever ``text`` stands there, at an entry of its own."""

    text: str
    entry: int


class ProgramEnd(Enum):
    """What may follow a program."""

    EOS_ONLY = auto()
    FREE = auto()


@dataclass(frozen=True, slots=True)
class Program:
    """The whole grammar; ``validate`` says whether it makes sense."""

    nodes: tuple[Node, ...]
    entry: int = 0
    trigger: Trigger | None = None
    has_reasoning_gate: bool = False
    """Starts only after the reasoning end."""
    marker_ids: tuple[int, ...] = ()
    """Illegal inside values, as tokens and spelt out, and in free text but for the trigger."""
    end: ProgramEnd = ProgramEnd.EOS_ONLY
    text_triggers: tuple[TextTrigger, ...] = ()
    """Only with a trigger."""


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A constraint that is not enforced: where (``tools.search.query``, or a node), and which keyword."""

    path: str
    keyword: str


def children(node: Node) -> tuple[int, ...]:
    """Indexes of the nodes inside ``node``."""
    match node:
        case Sequence(nodes):
            return nodes
        case Choose(branches):
            return tuple(branch.next for branch in branches)
        case Keys(items):
            return tuple(item.value for item in items)
        case Repeat():
            return (node.node,)
        case _:
            return ()
