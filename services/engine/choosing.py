"""Chooses a step's tokens: at each position mask, draw, push, for as long as the draft foretells what is drawn.

With and without a draft a choice's tokens are the same: each is drawn from the same logits by the same generator, and
whatever watches over the output sees the tokens one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from prometheus_client import Counter

from services.engine.guard.lexicon import Lexicon
from services.engine.guard.loop_guard import Action, LoopGuard
from services.engine.guard.rules import Region
from services.engine.logprobs import logprobs_of
from services.engine.request import Request, Sampled
from services.engine.sampling import Sampler
from services.engine.thinking import Thinking

_INTERVENTIONS = Counter(
    "fencepost_engine_loop_interventions_total", "What the loop guard did, by what repeated.", ["action", "kind"]
)


class TokenChooser:
    """One choice's tokens. Used by the compute thread, one step at a time."""

    def __init__(self, sampler: Sampler, guard: LoopGuard | None = None, thinking: Thinking | None = None) -> None:
        self._sampler = sampler
        self._guard = guard
        self._thinking = thinking
        self.is_loop = False
        """The output goes round in circles and ends with the last chosen token."""

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
            self._push(token_id)
            if self.is_loop or (position < len(draft) and token_id != draft[position]):
                break
        return chosen

    def _next(self, logits: torch.Tensor, likeliest: int) -> int:
        if self._thinking is not None and self._must_close(self._thinking):
            self._sampler.take(self._thinking.end_id)
            return self._thinking.end_id
        if self._guard is not None and (excluded := self._guard.verdict.excluded):
            logits = logits.index_fill(0, torch.tensor(sorted(excluded), device=logits.device), -torch.inf)
            likeliest = int(logits.argmax())
        if self._sampler.takes_likeliest:
            return likeliest
        return self._sampler.draw(logits.float().cpu().numpy())

    def _must_close(self, thinking: Thinking) -> bool:
        closes = self._guard is not None and self._guard.verdict.action is Action.CLOSE_REASONING
        return thinking.is_spent or (thinking.is_open and closes)

    def _push(self, token_id: int) -> None:
        is_open = self._thinking is not None and self._thinking.is_open
        if self._thinking is not None:
            self._thinking.push(token_id)
        if self._guard is None:
            return
        before = self._guard.verdict
        self._guard.push(token_id, Region.REASONING if is_open else Region.PROSE)
        verdict = self._guard.verdict
        if verdict is not before and verdict.kind is not None:
            _INTERVENTIONS.labels(verdict.action.name.lower(), verdict.kind.name.lower()).inc()
        self.is_loop = verdict.action is Action.END


def new_chooser(request: Request, choice: int, lexicon: Lexicon | None = None) -> TokenChooser:
    """For one choice of a request; ``lexicon`` None: without a loop guard."""
    marks = request.thinking
    return TokenChooser(
        Sampler(request.sampling, request.token_ids, choice),
        None if lexicon is None or not request.loop_guard else LoopGuard(lexicon),
        None if marks is None else Thinking(marks, request.token_ids),
    )


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
    return [
        tuple(
            Sampled(chosen[row], logprobs_by_row.get(row), is_loop=chooser.is_loop and row == rows[-1]) for row in rows
        )
        for chooser, rows in zip(choosers, places, strict=True)
    ]
