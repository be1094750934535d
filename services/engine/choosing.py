"""Chooses a step's tokens: at each position mask, draw, push, for as long as the draft foretells what is drawn.

With and without a draft a choice's tokens are the same: each is drawn from the same logits by the same generator, and
whatever watches over the output sees the tokens one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from prometheus_client import Counter

from services.engine.fence.allowed import Allowed, Free, Ids
from services.engine.fence.machine import Fence
from services.engine.fence.machine import Region as FenceRegion
from services.engine.fence.masking import is_allowed, masked
from services.engine.fence.program import Relaxed
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
_REGIONS = {
    FenceRegion.REASONING: Region.REASONING,
    FenceRegion.PROSE: Region.PROSE,
    FenceRegion.VALUE: Region.ARGUMENT,
    FenceRegion.STRUCTURE: Region.FORCED,
    FenceRegion.OVER: Region.FORCED,
}


class TokenChooser:
    """One choice's tokens. Used by the compute thread, one step at a time."""

    def __init__(
        self,
        sampler: Sampler,
        guard: LoopGuard | None = None,
        thinking: Thinking | None = None,
        fence: Fence | None = None,
    ) -> None:
        self._sampler = sampler
        self._guard = guard
        self._thinking = thinking
        self._fence = fence
        self.is_loop = False
        """The output goes round in circles and ends with the last chosen token."""
        self.is_broken = False
        """The fence did not take the last chosen token: this output fails, and no other."""

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to report beside a token; None for no log-probabilities."""
        return self._sampler.num_logprobs

    @property
    def relaxed(self) -> tuple[Relaxed, ...]:
        """What of the fence is not enforced, as far as it was met."""
        return () if self._fence is None else self._fence.relaxed

    def forced(self) -> Sequence[int]:
        """Tokens that must come next, as far as there is no choice."""
        return () if self._fence is None else self._fence.forced()

    def choose(self, logits: torch.Tensor, likeliest: Sequence[int], draft: Sequence[int]) -> list[Sampled]:
        """The next tokens from ``logits`` [1 + draft, vocabulary], whose ``likeliest`` ids are given.

        They come without log-probabilities. Position i > 0 was computed behind ``draft[:i]``, so it counts only if
        these are the tokens chosen before.
        """
        chosen: list[Sampled] = []
        for position in range(1 + len(draft)):
            token_id = self._next(logits[position], likeliest[position])
            is_inside = self._push(token_id)
            chosen.append(Sampled(token_id, None, self.is_loop, is_inside, self.is_broken))
            if self.is_loop or self.is_broken or (position < len(draft) and token_id != draft[position]):
                break
        return chosen

    def _next(self, logits: torch.Tensor, likeliest: int) -> int:
        allowed = Free() if self._fence is None else self._fence.allowed()
        if self._thinking is not None and self._must_close(self._thinking, allowed):
            self._sampler.take(self._thinking.end_id)
            return self._thinking.end_id
        excluded = frozenset[int]() if self._guard is None else self._guard.verdict.excluded
        if isinstance(allowed, Ids) and len(allowed.ids) == 1:
            (token_id,) = allowed.ids
            self._sampler.take(token_id)
            return token_id
        if self._sampler.takes_likeliest and likeliest not in excluded and is_allowed(allowed, likeliest):
            return likeliest
        row = logits.float().cpu().numpy()
        if excluded or not isinstance(allowed, Free):
            row = masked(row, allowed, excluded)
        return int(row.argmax()) if self._sampler.takes_likeliest else self._sampler.draw(row)

    def _must_close(self, thinking: Thinking, allowed: Allowed) -> bool:
        closes = self._guard is not None and self._guard.verdict.action is Action.CLOSE_REASONING
        return (thinking.is_spent or (thinking.is_open and closes)) and is_allowed(allowed, thinking.end_id)

    def _push(self, token_id: int) -> bool:
        """Show a token to all that watch; whether it is inside a fence's structure."""
        region, is_inside = Region.PROSE, False
        if self._thinking is not None:
            region = Region.REASONING if self._thinking.is_open else region
            self._thinking.push(token_id)
        if self._fence is not None:
            before = self._fence.region
            region = _REGIONS[before]
            self.is_broken = not self._fence.push(token_id)
            is_inside = (before.is_inside and token_id not in self._fence.tokens.eos_ids) or self._fence.is_inside
        if self._guard is not None:
            self._watch(self._guard, token_id, region)
        return is_inside

    def _watch(self, guard: LoopGuard, token_id: int, region: Region) -> None:
        before = guard.verdict
        guard.push(token_id, region)
        verdict = guard.verdict
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
        None if request.fence is None else Fence(request.fence),
    )


def choose_tokens(
    logits: torch.Tensor, choosers: Sequence[TokenChooser], drafts: Sequence[Sequence[int]]
) -> list[tuple[Sampled, ...]]:
    """At least one token for each chooser, which has 1 + ``draft`` rows of ``logits`` [rows, vocabulary]."""
    likeliest = cast("list[int]", cast(Any, logits.argmax(dim=-1)).tolist())
    token_ids: list[int] = list(likeliest)
    outputs: list[tuple[range, list[Sampled]]] = []
    count_by_row: dict[int, int] = {}
    first = 0
    for chooser, draft in zip(choosers, drafts, strict=True):
        last = first + 1 + len(draft)
        chosen = chooser.choose(logits[first:last], likeliest[first:last], draft)
        rows = range(first, first + len(chosen))
        token_ids[rows.start : rows.stop] = [one.token_id for one in chosen]
        if chooser.num_logprobs is not None:
            count_by_row |= dict.fromkeys(rows, chooser.num_logprobs)
        outputs.append((rows, chosen))
        first = last
    if not count_by_row:
        return [tuple(chosen) for _, chosen in outputs]
    logprobs_by_row = logprobs_of(logits, token_ids, count_by_row)
    return [
        tuple(replace(one, logprobs=logprobs_by_row.get(row)) for row, one in zip(rows, chosen, strict=True))
        for rows, chosen in outputs
    ]
