"""Restarts: the output writes again what it has written, changes a little, and comes to nothing new.

Follows the earlier copy that the output repeats, as a match model in compression does (Mahoney 2005, PAQ): the lag is
kept for as long as the copy goes on, and looked up by the last ``gram_tokens`` tokens where it does not.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace

from services.engine.guard.lexicon import MARKUP, WORD, Lexicon
from services.engine.guard.rules import EchoRules

_HASH_BITS = 61
_HASH_MASK = (1 << _HASH_BITS) - 1
_MULTIPLIER = 0x1E3779B97F4A7C15  # odd: high bits of the sum depend on all bits of all tokens
_SLOT_BITS = 14
_SEEN_BITS = 14


@dataclass(slots=True)
class _Totals:
    """Of the output so far, in tokens."""

    words: int = 0
    markup: int = 0
    novel: int = 0  # words that had not come before


@dataclass(slots=True)
class _Chain:
    """Echoes in a row. ``start`` is the first one's place; ``before`` the totals there, to within a gram."""

    start: int
    before: _Totals
    echoed: int = 0
    deep: int = 0
    jumps: int = 0
    lags: int = 0  # sum over its echoes


class EchoTracker:
    """One output's. A push takes constant time; memory is fixed.

    A missed or wrongly found slot costs an echo, never correctness: what is found is compared token by token.
    """

    def __init__(self, rules: EchoRules, lexicon: Lexicon) -> None:
        self._rules, self._lexicon = rules, lexicon
        size = rules.history_tokens
        assert size & (size - 1) == 0, "a power of two"
        self._leaving = pow(_MULTIPLIER, rules.gram_tokens, 1 << _HASH_BITS)
        self._history = array("i", [-1]) * size  # ring, by place
        self._depths = bytearray(size)  # ring: how often the token stood there before, up to 255
        self._place_by_slot = array("i", [-1]) * (1 << _SLOT_BITS)
        self._seen = bytearray(1 << _SEEN_BITS)
        self._num_tokens = 0
        self._hash = 0
        self._lag = 0  # 0: none
        self._agreed = 0  # tokens in a row that equal those a lag earlier
        self._last_echo = -1
        self._totals = _Totals()
        self._chain: _Chain | None = None
        self.num_echoes = 0
        """Tokens of the output that are echoes."""
        self.is_echo = False
        """Whether the last token ends an echo."""
        self.is_loop = False
        """Whether the chain that the last token belongs to is a loop."""

    def clone(self) -> EchoTracker:
        """An independent copy."""
        other = object.__new__(EchoTracker)
        other._rules, other._lexicon, other._leaving = self._rules, self._lexicon, self._leaving
        other._history = self._history[:]
        other._depths = self._depths[:]
        other._place_by_slot = self._place_by_slot[:]
        other._seen = self._seen[:]
        other._num_tokens, other._hash = self._num_tokens, self._hash
        other._lag, other._agreed, other._last_echo = self._lag, self._agreed, self._last_echo
        other._totals = replace(self._totals)
        other._chain = None if self._chain is None else replace(self._chain)  # its ``before`` is never written
        other.num_echoes, other.is_echo, other.is_loop = self.num_echoes, self.is_echo, self.is_loop
        return other

    @property
    def lag(self) -> int:
        """How many tokens earlier the copy stands that is repeated; 0 before the first echo."""
        return self._lag

    def push(self, token_id: int) -> None:
        """Add a token."""
        history, gram = self._history, self._rules.gram_tokens
        mask = len(history) - 1
        place = self._num_tokens
        self._num_tokens = place + 1
        leaving = history[(place - gram) & mask] + 1  # 0 where nothing has come yet
        self._hash = (self._hash * _MULTIPLIER + token_id + 1 - leaving * self._leaving) & _HASH_MASK
        history[place & mask] = token_id
        self._count(token_id)

        if self._lag and history[(place - self._lag) & mask] == token_id:
            self._agreed += 1
        else:
            self._agreed = 0
        # Not at once behind a change: tokens that reach back over it may stand in an older copy that happens to say the
        # same there, while the copy that is followed goes on behind it, perhaps some tokens off.
        is_lost = self._agreed < gram and place - self._last_echo >= gram + self._rules.jump_tokens
        has_jumped = is_lost and self._find_copy(place)
        self._place_by_slot[self._hash >> (_HASH_BITS - _SLOT_BITS)] = place
        self.is_echo = self._agreed >= gram
        if self.is_echo:
            self._carry_on(place, has_jumped)
        else:
            self._depths[place & mask] = 0
            self.is_loop = False

    def successors(self) -> frozenset[int]:
        """What followed the last ``gram_tokens`` tokens wherever they stand earlier. Slow: takes all the history."""
        gram, mask, place = self._rules.gram_tokens, len(self._history) - 1, self._num_tokens - 1
        oldest = max(gram - 1, self._num_tokens - len(self._history) + gram - 1)
        found = [at for at in range(oldest, place) if self._agreement(at, place, gram) == gram]
        return frozenset(self._history[(at + 1) & mask] for at in found)

    def _count(self, token_id: int) -> None:
        totals, kinds = self._totals, self._lexicon.kinds
        kind = kinds[token_id] if token_id < len(kinds) else 0
        if kind == WORD:
            totals.words += 1
            seen = token_id & ((1 << _SEEN_BITS) - 1)
            if not self._seen[seen]:
                self._seen[seen] = 1
                totals.novel += 1
        elif kind == MARKUP:
            totals.markup += 1

    def _find_copy(self, place: int) -> bool:
        """Look up the last tokens; whether that is a jump to another passage."""
        rules = self._rules
        reach = rules.gram_tokens + rules.jump_tokens
        found = self._place_by_slot[self._hash >> (_HASH_BITS - _SLOT_BITS)]
        lag = place - found
        if found < 0 or lag > len(self._history) - reach:
            return False
        agreed = self._agreement(found, place, reach)
        if agreed < rules.gram_tokens:
            return False
        has_jumped = abs(lag - self._lag) > rules.jump_tokens
        self._lag, self._agreed = lag, agreed
        return has_jumped

    def _agreement(self, one: int, other: int, limit: int) -> int:
        """How many tokens up to two places are equal, at most ``limit``."""
        history, mask = self._history, len(self._history) - 1
        for back in range(limit):
            if history[(one - back) & mask] != history[(other - back) & mask]:
                return back
        return limit

    def _carry_on(self, place: int, has_jumped: bool) -> None:
        """The tokens up to ``place`` are an echo: it belongs to the chain, or begins one."""
        rules, depths, lag, chain = self._rules, self._depths, self._lag, self._chain
        mask = len(depths) - 1
        distance = place - self._last_echo
        num_new = min(distance, self._agreed)
        for at in range(place - num_new + 1, place + 1):
            # Oldest first: where the lag is shorter than a gram, depths build on each other.
            depths[at & mask] = min(255, depths[(at - lag) & mask] + 1)
        self._last_echo = place
        self.num_echoes += num_new
        if chain is None or distance - num_new > rules.max_gap_tokens:
            chain = self._chain = _Chain(place - num_new + 1, replace(self._totals))
        chain.echoed += num_new
        chain.jumps += has_jumped
        chain.lags += lag * num_new
        if depths[place & mask] >= rules.min_recurrences:
            chain.deep += num_new
        self.is_loop = chain.deep >= rules.min_deep_tokens and self._is_restart(chain, place)

    def _is_restart(self, chain: _Chain, place: int) -> bool:
        rules, totals, before = self._rules, self._totals, chain.before
        num_tokens = place - chain.start + 1
        mean_lag = chain.lags / chain.echoed
        return (
            rules.min_lag_tokens <= mean_lag <= num_tokens / rules.min_units
            and chain.echoed >= rules.min_echoed * num_tokens
            and chain.jumps * rules.tokens_per_jump <= num_tokens
            and totals.words - before.words >= rules.min_words * num_tokens
            and totals.markup - before.markup <= rules.max_markup * num_tokens
            and totals.novel - before.novel <= rules.max_novel * num_tokens
            and self._has_variety(place, int(mean_lag))
        )

    def _has_variety(self, place: int, num_tokens: int) -> bool:
        history, mask = self._history, len(self._history) - 1
        num_tokens = min(num_tokens, self._rules.variety_tokens)
        last = {history[(place - back) & mask] for back in range(num_tokens)}
        return len(last) >= self._rules.min_variety * num_tokens
