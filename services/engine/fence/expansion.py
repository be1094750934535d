"""What may stand next: a program unrolled into texts up to the next place where text is not fixed.

A *rest* is what is still to come, as a linked list of frames, innermost first. Expanding it gives *alternatives*: a
fixed text, then a mark, an open node (a value), or the end. Text that spells one of the program's markers stands for
that token, so callers write tags as their dialect does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

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
)
from services.engine.fence.tokens import FenceTokens

_MAX_TEXT = 16_384
_MAX_FAN_OUT = 32
"""Of choices in a row. Beyond either, an alternative is cut where it stands and goes on from there: else the tools
would multiply with their parameters, and calls of fixed text with each other, without end."""


class NodeFrame(NamedTuple):
    """A whole node."""

    node: int


class PartsFrame(NamedTuple):
    """Texts and marks."""

    parts: tuple[str | int, ...]


class OpenFrame(NamedTuple):
    """A node whose text is not fixed, without the fixed text around it."""

    node: int


class RepeatFrame(NamedTuple):
    """After ``num_rounds``, or at least as many as matter."""

    node: int
    num_rounds: int


class KeysFrame(NamedTuple):
    """With the keys of the bits in ``seen`` behind it; ``last`` is the latest, -1 before the first."""

    node: int
    seen: int
    last: int


Frame = NodeFrame | PartsFrame | OpenFrame | RepeatFrame | KeysFrame
Rest = tuple[Frame, "Rest"] | None
"""None: the program is over."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """``text``, and then: the token ``mark``, the open node ``node``, or neither, and ``rest`` behind that.

    With neither, the program is over where ``rest`` is None, else the alternative has been cut.
    """

    text: str
    rest: Rest
    mark: int | None = None
    node: int | None = None


class Expander:
    """Unrolls one program."""

    def __init__(self, program: Program, tokens: FenceTokens) -> None:
        self.program = program
        marker_by_spelling = {
            tokens.spellings[marker_id].decode(errors="replace"): marker_id for marker_id in program.marker_ids
        }
        self._marker_by_spelling = marker_by_spelling
        spellings = sorted(marker_by_spelling, key=len, reverse=True)
        self._parts: dict[str, tuple[str | int, ...]] = {}
        self._cuts = re.compile(f"({'|'.join(map(re.escape, spellings))})") if spellings else None

    @property
    def start(self) -> Rest:
        """The whole program."""
        return self.start_at(self.program.entry)

    def start_at(self, entry: int) -> Rest:
        """All of it from a node on."""
        return (NodeFrame(entry), None)

    def parts(self, text: str) -> tuple[str | int, ...]:
        """``text`` cut at the markers that it spells."""
        found = self._parts.get(text)
        if found is None:
            pieces = [text] if self._cuts is None else self._cuts.split(text)
            found = tuple(self._marker_by_spelling.get(piece, piece) for piece in pieces if piece)
            self._parts[text] = found
        return found

    def expand(self, rest: Rest) -> list[Alternative]:
        """All that may come; in the program's order."""
        found: list[Alternative] = []
        pending: list[tuple[str, Rest, int]] = [("", rest, 1)]
        while pending:
            text, rest, fan_out = pending.pop()
            if rest is None or len(text) > _MAX_TEXT:
                found.append(Alternative(text, rest))
                continue
            frame, behind = rest
            width = self._width(frame)
            if text and width > 1 and fan_out * width > _MAX_FAN_OUT:
                found.append(Alternative(text, rest))
                continue
            for step in reversed([*self._step(text, frame, behind)]):
                if isinstance(step, Alternative):
                    found.append(step)
                else:
                    pending.append((*step, fan_out * width))
        return found

    def _width(self, frame: Frame) -> int:
        """How many ways there are from it, or more."""
        match frame:
            case NodeFrame(index):
                node = self.program.nodes[index]
                return len(node.branches) if isinstance(node, Choose) else 1
            case RepeatFrame():
                return 2
            case KeysFrame(index, seen):
                node = self.program.nodes[index]
                assert isinstance(node, Keys)
                return 1 + len(node.items) - (seen.bit_count() if node.is_unique else 0)
            case _:
                return 1

    def _step(self, text: str, frame: Frame, behind: Rest) -> Iterator[tuple[str, Rest] | Alternative]:
        match frame:
            case PartsFrame(parts):
                yield _write(text, parts, behind)
            case OpenFrame(index):
                yield Alternative(text, behind, node=index)
            case NodeFrame(index):
                yield from self._enter(text, index, self.program.nodes[index], behind)
            case RepeatFrame(index, num_rounds):
                node = self.program.nodes[index]
                assert isinstance(node, Repeat)
                if node.max is None or num_rounds < node.max:
                    ceiling = node.max if node.max is not None else max(node.min, 1)
                    again = (NodeFrame(node.node), (RepeatFrame(index, min(num_rounds + 1, ceiling)), behind))
                    yield _write(text, self.parts(node.separator) if num_rounds else (), again)
                if num_rounds >= node.min:
                    yield text, behind
            case KeysFrame():
                yield from self._keys(text, frame, behind)

    def _enter(self, text: str, index: int, node: Node, behind: Rest) -> Iterator[tuple[str, Rest] | Alternative]:
        match node:
            case Literal():
                yield _write(text, self.parts(node.text), behind)
            case Mark(token_id):
                yield Alternative(text, behind, mark=token_id)
            case Sequence(nodes):
                for inner in reversed(nodes):
                    behind = (NodeFrame(inner), behind)
                yield text, behind
            case Choose(branches):
                for branch in branches:
                    yield _write(text, self.parts(branch.key), (NodeFrame(branch.next), behind))
            case Keys():
                yield text, (KeysFrame(index, 0, -1), behind)
            case Repeat():
                yield text, (RepeatFrame(index, 0), behind)
            case Value():
                opened: Rest = (OpenFrame(index), _behind(self.parts(node.after), behind))
                yield _write(text, self.parts(node.before), opened)
            case Raw():
                # The terminator up to its first marker is the open node's own.
                parts = self.parts(node.after)
                own = 1 if parts and isinstance(parts[0], str) else 0
                yield Alternative(text, _behind(parts[own:], behind), node=index)
            case Grammar():
                yield Alternative(text, behind, node=index)

    def _keys(self, text: str, frame: KeysFrame, behind: Rest) -> Iterator[tuple[str, Rest] | Alternative]:
        keys = self.program.nodes[frame.node]
        assert isinstance(keys, Keys)
        between = keys.between if frame.seen else ""
        for position, item in enumerate(keys.items):
            is_seen = bool(frame.seen >> position & 1)
            if not (is_seen and keys.is_unique) and (keys.is_any_order or position > frame.last):
                after: Rest = (KeysFrame(frame.node, frame.seen | 1 << position, position), behind)
                if keys.is_any_order:
                    # Only ordered keys care about the latest.
                    after = (KeysFrame(frame.node, frame.seen | 1 << position, -1), behind)
                yield _write(text, self.parts(between + item.key), (NodeFrame(item.value), after))
            if item.is_required and not is_seen and not keys.is_any_order:
                return
        if all(frame.seen >> position & 1 for position, item in enumerate(keys.items) if item.is_required):
            yield _write(text, self.parts(keys.close), behind)


def own_terminator(parts: tuple[str | int, ...]) -> str:
    """Of a ``Raw`` node's terminator, cut at markers: the text before the first."""
    return parts[0] if parts and isinstance(parts[0], str) else ""


def _behind(parts: tuple[str | int, ...], behind: Rest) -> Rest:
    return (PartsFrame(parts), behind) if parts else behind


def _write(text: str, parts: tuple[str | int, ...], behind: Rest) -> tuple[str, Rest] | Alternative:
    """Fixed parts: text up to the first mark."""
    for position, part in enumerate(parts):
        if isinstance(part, int):
            return Alternative(text, _behind(parts[position + 1 :], behind), mark=part)
        text += part
    return text, behind
