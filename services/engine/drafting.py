"""Drafts for the decode rows of a step, for which nobody gives way."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import replace

from services.engine.cache_manager import CacheManager
from services.engine.draft.draft_length import Draft, draft_lengths
from services.engine.sequence import Sequence
from services.engine.step import PlanRow


def with_drafts(
    rows: Many[PlanRow], num_prefill: int, budget: int, cache: CacheManager, context_tokens: int
) -> list[PlanRow]:
    """Decode rows with drafts: at most half of the ``budget`` of tokens where prompts need it, and free blocks only.

    ``num_prefill`` prompt tokens are computed in the same step.
    """
    drafts = [_draft(row.sequence, context_tokens) for row in rows]
    lengths = draft_lengths(drafts, len(rows) + num_prefill, budget // 2 if num_prefill else budget)
    drafting: list[PlanRow] = []
    for row, draft, length in zip(rows, drafts, lengths, strict=True):
        sequence = row.sequence
        if draft.token_ids and not length:
            sequence.drafter.skipped()
        num_blocks = cache.borrow(sequence, sequence.num_tokens + length)
        room = len(sequence.block_ids) * cache.block_tokens - sequence.num_tokens
        drafting.append(replace(row, draft=draft.token_ids[: min(length, room)], draft_blocks=num_blocks))
    return drafting


def _draft(sequence: Sequence, context_tokens: int) -> Draft:
    # At least one token is sampled behind a draft.
    left = min(sequence.max_tokens - sequence.num_output, context_tokens - sequence.num_tokens)
    if left < 2 or not sequence.request.drafts:
        return Draft()
    return sequence.drafter.propose(sequence.token_ids, left - 1, sequence.chooser.forced())
