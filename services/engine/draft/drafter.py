"""Drafts of one sequence: the tokens that may come next, for a step to verify."""

from __future__ import annotations

from services.engine.draft.draft_length import MAX_DRAFT, GuessRecord, Wish
from services.engine.draft.prompt_lookup import PromptLookup


class Drafter:
    """One sequence's guesses and what became of them. Any guess is correct; good ones are fast."""

    def __init__(self) -> None:
        self._lookup = PromptLookup()
        self._record = GuessRecord()

    def propose(self, token_ids: bytes | bytearray, num_tokens: int) -> tuple[int, ...]:
        """Up to ``num_tokens`` ids that may follow ``token_ids``, int32 little-endian: all of the sequence so far."""
        self._lookup.read(token_ids)
        return self._lookup.guess(min(num_tokens, MAX_DRAFT))

    def wish(self, draft: tuple[int, ...]) -> Wish:
        """How much of a proposed draft could be computed, and its chance."""
        return Wish(len(draft), self._record.chance)

    def verified(self, num_drafted: int, num_accepted: int) -> None:
        """Of a draft so many tokens were computed, and the first ones of them were right."""
        self._record.verified(num_drafted, num_accepted)

    def skipped(self) -> None:
        """A proposal was not computed: it was not worth its cost."""
        self._record.skipped()
