"""What a coding agent will ask, turn by turn, whatever the engine answers. Pure.

Prompts are made of named pieces: the same name is the same tokens in every session, so what sessions share is said by
names alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

_FIRST_ID, _LAST_ID = 100, 48_000
"""Ordinary tokens of SmolLM2's vocabulary."""


@dataclass(frozen=True, slots=True)
class Piece:
    """``num_tokens`` tokens that follow from the name."""

    name: str
    num_tokens: int

    def ids(self) -> list[int]:
        """Its tokens; a shorter piece of a name is the beginning of a longer one."""
        seed = int.from_bytes(hashlib.blake2b(self.name.encode(), digest_size=8).digest())
        return np.random.default_rng(seed).integers(_FIRST_ID, _LAST_ID, self.num_tokens).tolist()


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: what it keeps of the conversation so far, what it adds, and what comes then."""

    pieces: tuple[Piece, ...]
    output_tokens: int
    wait_s: float
    """Between this answer and the next request."""
    wait_classes: tuple[str, ...] = ()
    keeps: int | None = None
    """Leading tokens of the last prompt and its answer; None: all."""

    def prompt(self, before: list[int]) -> list[int]:
        """The request's tokens, where ``before`` are those of the last one and of its answer."""
        return before[: self.keeps] + [token for piece in self.pieces for token in piece.ids()]


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation. Names are unique within a workload."""

    name: str
    turns: tuple[Turn, ...]

    def from_turn(self, number: int) -> Session:
        """The same session joined late: its first request holds all that came before turn ``number``.

        Answers before it are made up, as nobody has given them.
        """
        if not number:
            return self
        if any(turn.keeps is not None for turn in self.turns[1 : number + 1]):
            raise ValueError(f"{self.name}: a conversation that drops some of its tokens cannot be joined late")
        pieces: list[Piece] = []
        for at, turn in enumerate(self.turns[:number]):
            pieces += [*turn.pieces, Piece(f"{self.name} answer {at}", turn.output_tokens)]
        joined = self.turns[number]
        return replace(self, turns=(replace(joined, pieces=(*pieces, *joined.pieces)), *self.turns[number + 1 :]))

    def prompt_tokens(self) -> list[int]:
        """Lengths of its prompts."""
        lengths: list[int] = []
        before = 0
        for turn in self.turns:
            kept = before if turn.keeps is None else min(before, turn.keeps)
            lengths.append(kept + sum(piece.num_tokens for piece in turn.pieces))
            before = lengths[-1] + turn.output_tokens
        return lengths
