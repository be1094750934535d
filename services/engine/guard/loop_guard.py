"""What to do about a loop: first mask what it would go on with, then end the thinking or the output."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from services.engine.guard.echoes import EchoTracker
from services.engine.guard.lexicon import Lexicon
from services.engine.guard.repeats import RepeatTracker
from services.engine.guard.rules import GuardRules, Region


class Action(Enum):
    """What a caller does before the next token is sampled."""

    NONE = auto()
    EXCLUDE = auto()
    """Mask the verdict's tokens for one sample. Where a fence leaves nothing else, the fence wins."""
    CLOSE_REASONING = auto()
    """Force the token that ends the thinking; where there is none, end the output."""
    END = auto()
    """End the output as a loop."""


class LoopKind(Enum):
    """What repeats."""

    TOKEN = auto()
    PATTERN = auto()
    RESTART = auto()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of the output so far. ``kind`` and ``period`` (tokens back to the latest copy) are for logs and counts."""

    action: Action = Action.NONE
    excluded: frozenset[int] = frozenset()
    kind: LoopKind | None = None
    period: int | None = None


_CLEAR = Verdict()
_STANDARD = GuardRules()


class LoopGuard:
    """One choice's. Pushed every token of the output in order; ``verdict`` holds for the next sample.

    Drafts are verified on a clone: push them one by one, and cut before the first that the verdict excludes, or
    after the one whose verdict closes or ends. Regions are judged each by itself: another one starts anew, save for
    forced tokens, which are passed over.
    """

    def __init__(self, lexicon: Lexicon, rules: GuardRules = _STANDARD) -> None:
        self._lexicon, self._rules = lexicon, rules
        self._enter(Region.PROSE)

    def clone(self) -> LoopGuard:
        """An independent copy; some microseconds."""
        other = object.__new__(LoopGuard)
        other._lexicon, other._rules, other._region = self._lexicon, self._rules, self._region
        other._repeats, other._echoes = self._repeats.clone(), self._echoes.clone()
        other._num_tokens, other._num_interventions = self._num_tokens, self._num_interventions
        other._intervened_at, other._judged_at = self._intervened_at, self._judged_at
        other._echoes_then, other.verdict = self._echoes_then, self.verdict
        return other

    def push(self, token_id: int, region: Region = Region.PROSE) -> None:
        """Add a token of the output."""
        if region is Region.FORCED:
            self.verdict = _CLEAR
            return
        if region is not self._region:
            self._enter(region)
        self._num_tokens += 1
        self._repeats.push(token_id)
        if region is not Region.ARGUMENT:
            self._echoes.push(token_id)
        if not self._num_interventions and self._repeats.period is None and not self._echoes.is_loop:
            return
        if self.verdict.action in (Action.CLOSE_REASONING, Action.END):
            return
        self.verdict = self._intervene() if self._has_loop() else _CLEAR

    def _enter(self, region: Region) -> None:
        rules = self._rules
        factor = rules.repeats.argument_factor if region is Region.ARGUMENT else 1
        self._region = region
        self._repeats = RepeatTracker(rules.repeats, self._lexicon, factor)
        self._echoes = EchoTracker(rules.echoes, self._lexicon)
        self._num_tokens = 0
        self._num_interventions = 0
        self._intervened_at = 0
        self._judged_at = 0  # where the probation began
        self._echoes_then = 0
        self.verdict = _CLEAR

    def _has_loop(self) -> bool:
        """Whether there is a loop whose next token is known, or one goes on in spite of an intervention."""
        rules, echoes = self._rules, self._echoes
        has_loop = self._repeats.period is not None or echoes.is_loop
        if not self._num_interventions:
            return has_loop
        num_tokens = self._num_tokens - self._judged_at
        if num_tokens < rules.probation_tokens:
            return False
        goes_on = echoes.is_echo and echoes.num_echoes - self._echoes_then >= rules.min_echoed * num_tokens
        if has_loop or goes_on:
            return True
        if num_tokens >= rules.probation_tokens + rules.echoes.gram_tokens:
            # Passed. The few tokens more are for an echo that a changed token has just broken.
            self._begin_probation()
        if self._num_tokens - self._intervened_at >= rules.forgiven_tokens:
            self._num_interventions = 0
        return False

    def _begin_probation(self) -> None:
        self._judged_at, self._echoes_then = self._num_tokens, self._echoes.num_echoes

    def _intervene(self) -> Verdict:
        self._num_interventions += 1
        self._intervened_at = self._num_tokens
        self._begin_probation()
        period = self._repeats.period
        kind = LoopKind.RESTART if period is None else LoopKind.TOKEN if period == 1 else LoopKind.PATTERN
        distance = self._echoes.lag if period is None else period
        if self._region is not Region.ARGUMENT and self._num_interventions > self._rules.max_exclusions:
            is_thinking = self._region is Region.REASONING
            return Verdict(Action.CLOSE_REASONING if is_thinking else Action.END, frozenset(), kind, distance)
        excluded = self._echoes.successors() if period is None else frozenset((self._repeats.token_back(period),))
        return Verdict(Action.EXCLUDE, excluded, kind, distance)
