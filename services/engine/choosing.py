"""Chooses a step's tokens: at each position mask, draw, push, for as long as the draft foretells what is drawn.

With and without a draft a choice's tokens are the same: each is drawn from the same logits by the same generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from services.engine.logprobs import logprobs_of
from services.engine.request import Sampled
from services.engine.sampling import Sampler


class TokenChooser:
    """One choice's tokens. Used by the compute thread, one step at a time."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to report beside a token; None for no log-probabilities."""
        return self._sampler.num_logprobs

    def choose(self, logits: torch.Tensor, likeliest: Sequence[int], draft: Sequence[int]) -> list[int]:
        """The next tokens from ``logits`` [1 + draft, vocabulary], whose ``likeliest`` ids are given.

        Position i > 0 was computed behind ``draft[:i]``, so it counts only if these are the tokens chosen before.
        """
        chosen: list[int] = []
        for position in range(1 + len(draft)):
            token_id = self._next(logits[position], likeliest[position])
            chosen.append(token_id)
            if position < len(draft) and token_id != draft[position]:
                break
        return chosen

    def _next(self, logits: torch.Tensor, likeliest: int) -> int:
        if self._sampler.takes_likeliest:
            return likeliest
        return self._sampler.draw(logits.float().cpu().numpy())


def choose_tokens(
    logits: torch.Tensor, choosers: Sequence[TokenChooser], drafts: Sequence[Sequence[int]]
) -> list[tuple[Sampled, ...]]:
    """At least one token for each chooser, which has 1 + ``draft`` rows of ``logits`` [rows, vocabulary]."""
    likeliest = cast("list[int]", cast(Any, logits.argmax(dim=-1)).tolist())
    chosen: list[int] = list(likeliest)
    places: list[range] = []
    count_by_row: dict[int, int] = {}
    first = 0
    for chooser, draft in zip(choosers, drafts, strict=True):
        last = first + 1 + len(draft)
        token_ids = chooser.choose(logits[first:last], likeliest[first:last], draft)
        rows = range(first, first + len(token_ids))
        chosen[rows.start : rows.stop] = token_ids
        if chooser.num_logprobs is not None:
            count_by_row |= dict.fromkeys(rows, chooser.num_logprobs)
        places.append(rows)
        first = last
    logprobs_by_row = logprobs_of(logits, chosen, count_by_row) if count_by_row else {}
    return [tuple(Sampled(chosen[row], logprobs_by_row.get(row)) for row in rows) for rows in places]
