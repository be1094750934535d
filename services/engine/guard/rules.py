"""What counts as a loop. Decision 0010 says where the numbers come from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Region(Enum):
    """Where in an answer a token stands."""

    PROSE = auto()
    REASONING = auto()
    ARGUMENT = auto()
    """Inside a value of a tool call: what is written there may repeat for good reasons."""
    FORCED = auto()
    """Not chosen by the model."""


@dataclass(frozen=True, slots=True)
class RepeatRules:
    """When a repeated pattern is a loop.

    Lengths are in tokens and count what is repeated, not the first copy. A pattern's kind goes by the words in it.
    """

    max_period: int = 512
    min_copies: int = 3
    prose_tokens: tuple[tuple[int, int], ...] = ((2, 200), (16, 160), (512, 96))
    """(longest period, tokens) for a pattern of prose; ascending, the last one for all longer ones."""
    min_words: float = 0.55
    max_markup: float = 0.2
    """Shares of a pattern's tokens by which it is prose."""
    few_words: float = 0.25
    few_words_tokens: int = 384
    """For a pattern with fewer words and as little markup: short lines, sums."""
    mixed_tokens: int = 768
    """For any other pattern with words in it: rows of a table, elements of markup, objects."""
    data_tokens: int = 4096
    """For a pattern without any: zeros, separators, encoded bytes."""
    argument_factor: int = 4

    def needed(self, period: int, words: float, markup: float) -> int:
        """Repeated tokens that make a pattern of ``period`` tokens a loop; of these the two shares are of its kinds."""
        if words >= self.min_words and markup <= self.max_markup:
            least = next((tokens for longest, tokens in self.prose_tokens if period <= longest), 0)
            least = least or self.prose_tokens[-1][1]
        elif words >= self.few_words and markup <= self.max_markup:
            least = self.few_words_tokens
        else:
            least = self.mixed_tokens if words else self.data_tokens
        return max(least, self.min_copies * period)


@dataclass(frozen=True, slots=True)
class EchoRules:
    """When text that comes again and again, with small changes, is a loop.

    An echo is a token inside ``gram_tokens`` that stand in the output already, ``lag`` tokens earlier. A chain is
    echoes with hardly anything new between them. It is a loop if all of these hold.
    """

    history_tokens: int = 4096  # a power of two; longest lag
    gram_tokens: int = 8
    max_gap_tokens: int = 24  # new tokens that end a chain
    min_recurrences: int = 3  # for which a token is deep: it stands there that many times already
    min_deep_tokens: int = 192
    min_lag_tokens: int = 16  # mean of a chain; less is for the repeat rules
    min_units: int = 3  # how many times its mean lag a chain is long
    min_echoed: float = 0.8
    jump_tokens: int = 8  # a change of lag by more is a jump: another passage is repeated
    tokens_per_jump: int = 48
    min_words: float = 0.4
    max_markup: float = 0.15
    max_novel: float = 0.02  # words that had never come before: a list of names is no restart
    min_variety: float = 0.5  # share of different tokens in a mean lag, or the last variety_tokens of it
    variety_tokens: int = 64


@dataclass(frozen=True, slots=True)
class GuardRules:
    """All thresholds. After an intervention the output is on probation; each failed one is another intervention."""

    repeats: RepeatRules = RepeatRules()
    echoes: EchoRules = EchoRules()
    max_exclusions: int = 3  # after so many the region is ended
    probation_tokens: int = 48
    min_echoed: float = 0.7  # share of echoes in a probation for which the loop goes on
    forgiven_tokens: int = 512  # without an intervention, after which they are counted anew
