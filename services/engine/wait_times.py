"""How long clients stay away, by what they wait for: learnt online, for each cache scope by itself.

A class of waits is an opaque name that a client gives, such as a digest of a tool's name. What was seen of it is kept
as counts over bins whose width grows with the wait, older ones fading. They are drawn to a first guess by the weight of
one observation, so that past all that was seen the guess decides. The guess is a Lomax distribution with the median and
the 99th percentile of tool waits of coding agents (5.2 s, 81 s): the longer the wait, the less likely its end.

What is kept for a client takes up space until it comes back. So a wait is told by its rate: the chance of a return
within a horizon, per second that one would then have waited, at the horizon where this is highest (hit density, as in
LHD, Beckmann, Chen and Cidon 2018; over all horizons it is the Gittins index). A long wait whose end is near is worth
more than when it began, and one that is over its time less.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

_HORIZONS_S = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
_SHAPE, _SCALE_S = 2.7, 17.8
_UNKNOWN_SHAPE = 0.5
"""Of waits that nobody has named: for a person, or for ever. Half take longer than 53 s, a tenth over half an hour."""
_EDGES_S = (0.0, *(0.125 * 2 ** (i / 2) for i in range(41)))
"""Where bins begin: two an octave, from an eighth of a second to a day and a half. What lies behind is never."""
_FORGET = 0.98
_GUESS_WEIGHT = 1.0
_MIN_OBSERVATIONS = 8
"""Of a class, before it is trusted."""
_MAX_CLASSES = 4_096


def unknown_return_rate(waited_s: float) -> float:
    """Returns per second to expect after ``waited_s`` of a wait of which nothing is known; falls with the wait."""
    return _UNKNOWN_SHAPE / (_SCALE_S + waited_s)


@dataclass(frozen=True, slots=True)
class WaitEstimate:
    """What was known of a wait when it began. It lasts until the slowest of its parts is over: one curve for each."""

    curves: tuple[_Curve, ...]

    def survival(self, waited_s: float) -> float:
        """Chance of a wait longer than ``waited_s``; the parts are taken as independent."""
        if len(self.curves) == 1:
            return self.curves[0].survival(waited_s)
        ended = 1.0
        for curve in self.curves:
            ended *= 1 - curve.survival(waited_s)
        return 1 - ended

    def return_rate(self, waited_s: float) -> float:
        """Returns per second to expect, given that ``waited_s`` have passed without one."""
        now = self.survival(waited_s)
        if now <= 0:
            return 0.0
        best, held_s, before_s, before = 0.0, 0.0, 0.0, 1.0
        for horizon_s in _HORIZONS_S:
            left = min(before, self.survival(waited_s + horizon_s) / now)
            held_s += (before + left) / 2 * (horizon_s - before_s)
            best = max(best, (1 - left) / held_s)
            before_s, before = horizon_s, left
        return best


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait under way, of a class that is known well enough; ``since_s`` is on the tree's clock."""

    estimate: WaitEstimate
    since_s: float

    def return_rate(self, now_s: float) -> float:
        """Returns per second to expect at ``now_s``."""
        return self.estimate.return_rate(max(0.0, now_s - self.since_s))


class WaitTimes:
    """What was seen of waits. Bounded: of many classes, those seen last."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, tuple[str, ...]], _Histogram] = OrderedDict()

    def observe(self, cache_scope: str, wait_classes: Collection[str], waited_s: float | None) -> None:
        """A wait for all these classes at once is over after ``waited_s``; None: nobody came back, or nobody will."""
        key = cache_scope, _joint(wait_classes)
        self._seen.setdefault(key, _Histogram()).observe(waited_s)
        self._seen.move_to_end(key)
        if len(self._seen) > _MAX_CLASSES:
            self._seen.popitem(last=False)

    def estimate(self, cache_scope: str, wait_classes: Collection[str]) -> WaitEstimate | None:
        """From waits for the same classes, else for each of them alone; None while too little is known."""
        joint = _joint(wait_classes)
        for parts in ([joint], [(one,) for one in joint]):
            found = [self._seen.get((cache_scope, part)) for part in parts]
            curves = [seen.curve() for seen in found if seen is not None and seen.is_trusted]
            if curves and len(curves) == len(parts):
                return WaitEstimate(tuple(curves))
        return None


@dataclass(frozen=True, slots=True)
class _Curve:
    """Observed share of waits beyond each edge, and the weight of the guess beside it; both sum to 1 at 0."""

    beyond: tuple[float, ...]
    guess: float

    def survival(self, waited_s: float) -> float:
        at = bisect_right(_EDGES_S, waited_s) - 1
        seen = self.beyond[at]
        if at + 1 < len(_EDGES_S):
            into = (waited_s - _EDGES_S[at]) / (_EDGES_S[at + 1] - _EDGES_S[at])
            seen += into * (self.beyond[at + 1] - seen)
        return seen + self.guess * (_SCALE_S / (_SCALE_S + waited_s)) ** _SHAPE


class _Histogram:
    def __init__(self) -> None:
        self._num_observed = 0
        self._counts = [0.0] * len(_EDGES_S)  # by bin; the last one has no end

    @property
    def is_trusted(self) -> bool:
        return self._num_observed >= _MIN_OBSERVATIONS

    def observe(self, waited_s: float | None) -> None:
        self._num_observed += 1
        self._counts = [_FORGET * count for count in self._counts]
        at = len(_EDGES_S) if waited_s is None else bisect_right(_EDGES_S, max(0.0, waited_s))
        self._counts[at - 1] += 1

    def curve(self) -> _Curve:
        total = sum(self._counts) + _GUESS_WEIGHT
        beyond = [0.0] * len(_EDGES_S)
        behind = 0.0
        for at in reversed(range(len(_EDGES_S))):
            behind += self._counts[at]
            beyond[at] = behind / total
        # Waits in the last bin have no end that could be interpolated to.
        return _Curve(tuple(beyond), _GUESS_WEIGHT / total)


def _joint(wait_classes: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(set(wait_classes)))
