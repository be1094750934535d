"""A program as a tree: the generic grammar of ``fence.proto``, before node numbers and token ids.

Text that spells a marker stands for that token where the tokenizer has it, so dialects write tags as they are. Nodes
that the engine may relax carry the ``place`` they stand for, as people know it (``tools.search.query``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise


class GrammarSyntax(Enum):
    """Languages of a custom tool's grammar."""

    LARK = auto()
    REGEX = auto()


@dataclass(frozen=True, slots=True)
class Literal:
    """Text that must follow; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """One node after another; none: nothing."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """An alternative: the text that selects it, and what follows."""

    key: str
    next: Node


@dataclass(frozen=True, slots=True)
class Choose:
    """Exactly one branch; at least one, and no key is a prefix of another (``is_prefix_free``)."""

    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class KeyItem:
    """A key's text, and its value."""

    key: str
    value: Node
    is_required: bool


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys with values in any order, each at most once; no key is a prefix of another, or of ``close``."""

    items: tuple[KeyItem, ...]
    between: str
    close: str


@dataclass(frozen=True, slots=True)
class Value:
    """A JSON value and the text after it."""

    json_schema: str
    place: str
    after: str = ""
    is_canonical: bool = True
    """Only the spelling that survives a JSON round trip."""
    forbidden: tuple[str, ...] = ()
    """Texts that may not appear, not even in strings: they would end it for who reads it."""


@dataclass(frozen=True, slots=True)
class Raw:
    """Any text up to the first ``after``. ``pattern`` is for the whole text, without ``after``."""

    after: str
    place: str
    min_chars: int = 0
    max_chars: int | None = None
    pattern: str | None = None
    forbidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Repeat:
    """A node several times; no ``max``: without limit."""

    node: Node
    min: int = 0
    max: int | None = None
    separator: str = ""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A caller's own grammar."""

    syntax: GrammarSyntax
    text: str
    place: str


Node = Literal | Sequence | Choose | Keys | Value | Raw | Repeat | Grammar


@dataclass(frozen=True, slots=True)
class Trigger:
    """Starts the program out of free text: ``tag`` behind ``lead_in``."""

    lead_in: str
    tag: str
    is_bare_at_start: bool
    """At the answer's beginning there is no ``lead_in``."""


@dataclass(frozen=True, slots=True)
class TextTrigger:
    """Starts it out of free text, too, wherever ``text`` stands there: at ``entry``."""

    text: str
    entry: Node


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A constraint that is not enforced: where, and which keyword of JSON Schema or of the request."""

    place: str
    keyword: str


@dataclass(frozen=True, slots=True)
class ProgramDraft:
    """The whole program; after it the answer is over."""

    entry: Node
    """With a trigger: what follows its tag."""
    trigger: Trigger | None = None
    has_reasoning_gate: bool = False
    """Starts only behind the token that ends the model's thinking."""
    markers: tuple[str, ...] = ()
    """Spellings that are tokens of their own where the tokenizer has them."""
    relaxed: tuple[Relaxed, ...] = ()
    """What the program itself leaves out."""
    text_triggers: tuple[TextTrigger, ...] = ()
    """Beside the trigger. In thinking they are thoughts."""


NOTHING = Sequence(())


def sequence(*nodes: Node) -> Node:
    """``nodes`` in order, without empty ones and with neighbouring literals as one."""
    joined: list[Node] = []
    for node in nodes:
        for one in node.nodes if isinstance(node, Sequence) else (node,):
            last = joined[-1] if joined else None
            if isinstance(one, Literal) and isinstance(last, Literal):
                joined[-1] = Literal(last.text + one.text)
            else:
                joined.append(one)
    return joined[0] if len(joined) == 1 else Sequence(tuple(joined))


def literal(text: str) -> Node:
    """``text``, which may be empty."""
    return Literal(text) if text else NOTHING


def is_prefix_free(keys: list[str]) -> bool:
    """Whether the next characters always tell which of ``keys`` is meant."""
    ordered = sorted(keys)
    return all(first and not second.startswith(first) for first, second in pairwise(ordered))
