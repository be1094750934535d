"""Structure: the canonical tokens of all that may stand next, as a trie, and where they meet a value.

Between marks and values a program's text is fixed, so only its canonical encoding is legal: a few ids, most of them
forced. Where a value follows, or has just ended, a token may reach across. Those bytes are the value's *joint*: they
are left to whatever reads the value, which takes them however they are cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from services.engine.fence.allowed import Ids
from services.engine.fence.expansion import Alternative, Expander, PartsFrame, Rest
from services.engine.fence.program import ProgramEnd, Value
from services.engine.fence.tokens import FenceTokens

_MAX_JOINT_BYTES = 16
_MAX_TRIES = 20_000
_JSON_STARTS = b'"{[-0123456789tfn'
_JSON_ENDS = b'"}]0123456789el'


@dataclass(frozen=True, slots=True)
class Opening:
    """A value that begins here, behind ``joint``, bytes of the structure that are still to be written."""

    node: int
    rest: Rest
    joint: bytes


_NO_IDS: frozenset[int] = frozenset()
_NO_MARKS: dict[int, tuple[Rest, ...]] = {}
_NONE_MARKED: dict[int, TrieNode] = {}
"""Shared by most places, hence never changed."""


class TrieNode:
    """A place in the structure; shared, never changed once built but for ``marked``."""

    __slots__ = ("_allowed", "children", "exits", "forced", "ids", "is_end", "marked", "marks", "openings", "resumed")

    def __init__(self) -> None:
        self.children: dict[int, TrieNode] = {}
        self.marks: dict[int, tuple[Rest, ...]] = _NO_MARKS
        """What follows each mark."""
        self.marked: dict[int, TrieNode] = _NONE_MARKED
        """The same, as far as it has been built."""
        self.openings: tuple[Opening, ...] = ()
        self.resumed: tuple[Rest, ...] = ()
        """Where alternatives were cut because there are too many."""
        self.is_end = False
        """The program may be over here."""
        self.ids: frozenset[int] = _NO_IDS
        """The legal tokens, those that end the answer included."""
        self._allowed: Ids | None = None
        self.forced: tuple[int, ...] | None = None
        self.exits: tuple[TrieNode, ...] = ()
        """Of a trie's root: the places in it that lead out of it."""

    @property
    def allowed(self) -> Ids:
        """The same as ``ids``."""
        if self._allowed is None:
            self._allowed = Ids(self.ids)
        return self._allowed

    @property
    def is_fixed(self) -> bool:
        """Nothing but ``ids`` goes on from here."""
        return not self.openings and not self.resumed


class Structure:
    """Tries of one program, built as they are needed and kept."""

    def __init__(self, expander: Expander, tokens: FenceTokens) -> None:
        self.expander = expander
        self.tokens = tokens
        self._ends_with_eos = expander.program.end is ProgramEnd.EOS_ONLY
        self._tries: dict[tuple[tuple[Rest, ...], bytes], TrieNode | None] = {}
        self._expanded: dict[Rest, list[Alternative]] = {}
        self._encode = lru_cache(maxsize=50_000)(self._encode_anew)
        self._cut = lru_cache(maxsize=50_000)(self._cut_anew)
        self._reach = lru_cache(maxsize=50_000)(self._reach_anew)

    def start(self) -> TrieNode:
        """Where the program begins. Raises AssertionError if nothing can be written at all."""
        node = self.at((self.expander.start,))
        assert node is not None
        return node

    def begin(self, rest: Rest, surplus: bytes = b"") -> list[TrieNode] | None:
        """The place where ``rest`` goes on with ``surplus`` of it written, by itself; None if it cannot."""
        node = self.at((rest,), surplus)
        return None if node is None else [node]

    def at(self, rests: tuple[Rest, ...], surplus: bytes = b"") -> TrieNode | None:
        """Where any of ``rests`` begins, with ``surplus`` of it written; None if that is none of their texts'."""
        key = (rests, surplus)
        if key not in self._tries:
            if len(self._tries) >= _MAX_TRIES:
                self._tries.clear()
            self._tries[key] = self._build(rests, surplus)
        return self._tries[key]

    def behind(self, node: TrieNode, token_id: int) -> TrieNode | None:
        """The next place; None if the token is not among ``node``'s, or ends the answer."""
        child = node.children.get(token_id)
        marked = node.marked.get(token_id)
        if marked is None and token_id in node.marks:
            marked = self.at(node.marks[token_id])
            assert marked is not None
            node.marked = {**node.marked, token_id: marked}
        if child is None or marked is None:
            return child or marked
        # A text's token that is a mark of another alternative: marks are no text, so this cannot be.
        raise AssertionError(f"token {token_id} is text and mark")

    def forced(self, node: TrieNode) -> tuple[int, ...]:
        """The tokens that must follow, as far as there is no choice."""
        if node.forced is not None:
            return node.forced
        run: list[int] = []
        passed: list[TrieNode] = []
        at: TrieNode | None = node
        while at is not None and (at.is_fixed or self._resumes(at)):
            if not at.ids and at.resumed:
                at = self.at(at.resumed)
                continue
            if len(at.ids) != 1 or (at.is_end and not self._ends_with_eos):
                break
            if at.forced is not None:
                run.extend(at.forced)
                break
            passed.append(at)
            (token_id,) = at.ids
            run.append(token_id)
            at = self.behind(at, token_id)
        for number, place in enumerate(passed):
            place.forced = tuple(run[number:])
        if node.forced is None:
            node.forced = tuple(run)
        return node.forced

    def _resumes(self, node: TrieNode) -> bool:
        return not (node.ids or node.openings or node.is_end)

    def alternatives(self, rest: Rest) -> list[Alternative]:
        """All that may come."""
        found = self._expanded.get(rest)
        if found is None:
            if len(self._expanded) >= _MAX_TRIES:
                self._expanded.clear()
            found = self._expanded[rest] = self.expander.expand(rest)
        return found

    def tails(self, rest: Rest) -> tuple[bytes, ...]:
        """For a JSON value with ``rest`` behind it: the beginnings of that which tokens may share with the value.

        b"" where an alternative is not reached by any token.
        """
        found: dict[bytes, None] = {}
        for alternative in self.alternatives(rest):
            text = alternative.text
            reach = self._reach(text.encode()[: _MAX_JOINT_BYTES + 1])
            length = 0
            if reach:
                for token_id in self._encode(text):
                    length += len(self.tokens.texts[token_id])
                    if length >= reach and text.encode()[length : length + 1] < b"\x80":
                        break
            found[text.encode()[:length]] = None
        return tuple(found)

    def takes(self, rest: Rest, surplus: bytes) -> bool:
        """Whether a text that follows begins with ``surplus``."""
        return any(one.text.encode().startswith(surplus) for one in self.alternatives(rest))

    def is_closed(self, rest: Rest) -> bool:
        """Whether every alternative begins with a mark or the end, so that no text of it follows."""
        return all(one.text == "" and one.node is None for one in self.alternatives(rest))

    def _build(self, rests: tuple[Rest, ...], surplus: bytes) -> TrieNode | None:
        root = TrieNode()
        is_possible = False
        for rest in rests:
            for alternative in self.alternatives(rest):
                text = alternative.text.encode()
                if text.startswith(surplus):
                    is_possible = True
                    self._add(root, text[len(surplus) :], alternative)
        if not is_possible:
            return None
        self._freeze(root)
        return root

    def _add(self, root: TrieNode, text: bytes, alternative: Alternative) -> None:
        joint = b""
        ids: Iterable[int]
        is_cut = alternative.node is None and alternative.mark is None and alternative.rest is not None
        if alternative.node is not None or is_cut:
            node = None if alternative.node is None else self.expander.program.nodes[alternative.node]
            ids, joint = self._cut(text, isinstance(node, Value))
        else:
            ids = self._encode_bytes(text)
        node = root
        for token_id in ids:
            child = node.children.get(token_id)
            if child is None:
                child = node.children[token_id] = TrieNode()
            node = child
        if alternative.mark is not None:
            rests = (*node.marks.get(alternative.mark, ()), alternative.rest)
            node.marks = {**node.marks, alternative.mark: rests}
        elif alternative.node is not None:
            node.openings = (*node.openings, Opening(alternative.node, alternative.rest, joint))
        elif alternative.rest is None:
            node.is_end = True
        else:
            rest = (PartsFrame((joint.decode(),)), alternative.rest) if joint else alternative.rest
            node.resumed = (*node.resumed, rest)

    def _freeze(self, node: TrieNode) -> None:
        root, pending, exits = node, [node], list[TrieNode]()
        while pending:
            node = pending.pop()
            if node.marks or node.openings or node.resumed:
                exits.append(node)
            eos = self.tokens.eos_ids if node.is_end and self._ends_with_eos else ()
            node.ids = frozenset([*node.children, *node.marks, *eos] if node.marks or eos else node.children)
            pending.extend(node.children.values())
        root.exits = tuple(exits)

    def _encode_anew(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokens.encode(text))

    def _encode_bytes(self, text: bytes) -> tuple[int, ...]:
        """``text`` may begin inside a character, behind a token that ended there."""
        start = 0
        while start < len(text) and text[start] & 0xC0 == 0x80:
            start += 1
        begun = [self.tokens.with_prefix(text[at : at + 1])[0] for at in range(start)]
        return (*begun, *self._encode(text[start:].decode()))

    def _cut_anew(self, text: bytes, is_json: bool) -> tuple[tuple[int, ...], bytes]:
        """The tokens of ``text`` that no token into the value behind it could change, and the bytes behind them."""
        safe = len(text)
        for start in range(max(0, len(text) - _MAX_JOINT_BYTES), len(text)):
            if self._reaches_on(text[start:], is_json):
                safe = start
                break
        ids = self._encode_bytes(text)
        # Of the boundaries between tokens, only those between characters count.
        length = whole = whole_length = 0
        for number, token_id in enumerate(ids):
            if length + len(self.tokens.texts[token_id]) > safe:
                return ids[:whole], text[whole_length:]
            length += len(self.tokens.texts[token_id])
            if text[length : length + 1] < b"\x80" or text[length] & 0xC0 != 0x80:
                whole, whole_length = number + 1, length
        return ids, b""

    def _reaches_on(self, ending: bytes, is_json: bool) -> bool:
        if not self.tokens.has_longer(ending):
            return False
        return not is_json or any(self.tokens.has_prefix(ending + bytes([byte])) for byte in _JSON_STARTS)

    def _reach_anew(self, text: bytes) -> int:
        """How many bytes of ``text`` a token that began in a JSON value before it may cover."""
        return max(
            (length for length in range(1, len(text) + 1) if self.tokens.has_within(text[:length], _JSON_ENDS)),
            default=0,
        )
