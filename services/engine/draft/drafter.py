"""Drafts of one sequence: the tokens that may come next, for a step to verify."""

from __future__ import annotations

from collections.abc import Sequence

from services.engine.draft.draft_length import MAX_DRAFT, MAX_FORCED, Draft, GuessRecord
from services.engine.draft.prompt_lookup import PromptLookup

_LONG_AGREEMENT = 4
"""From so many tokens on it is likely a copy; two in a row come again by chance, and say nothing of copies."""


class Drafter:
    """One sequence's guesses and what became of them. Any guess gives the same output; good ones give it sooner."""

    def __init__(self) -> None:
        self._lookup = PromptLookup()
        self._short, self._long = GuessRecord(0.4, 0.6), GuessRecord(1.4, 0.6)
        self._record: GuessRecord | None = None  # of the last proposal, if that was a guess

    def propose(self, token_ids: bytes | bytearray, num_tokens: int, forced: Sequence[int] = ()) -> Draft:
        """Up to ``num_tokens`` ids that may follow ``token_ids``, int32 little-endian: all of the sequence so far.

        ``forced`` are known to follow. The caller says what became of it, by ``verified`` or ``skipped``.
        """
        self._record = None
        if forced:
            return Draft(tuple(forced[: min(num_tokens, MAX_FORCED)]), 1.0)
        self._lookup.read(token_ids)
        guess = self._lookup.guess(min(num_tokens, MAX_DRAFT))
        if guess is None:
            return Draft()
        self._record = self._long if guess.num_agreed >= _LONG_AGREEMENT else self._short
        return Draft(guess.token_ids, self._record.chance)

    def verified(self, num_drafted: int, num_accepted: int) -> None:
        """So many of its tokens were computed, and the first ones of them were right."""
        if self._record is not None:
            self._record.verified(num_drafted, num_accepted)

    def skipped(self) -> None:
        """None of it was computed: it was not worth its cost."""
        if self._record is not None:
            self._record.skipped()
