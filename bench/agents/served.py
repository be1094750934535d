"""What became of each request, and whether any waited longer than the engine's bound allows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_SLACK_S = 0.25
"""Between the clocks that a client can see and the engine's: a message, a lookup in the store, a step."""


@dataclass(slots=True)
class Served:
    """One request. Times are seconds of one clock, as its client saw them; None: it did not come so far."""

    arrived_s: float
    prompt_tokens: int
    admitted_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    cached_by_tier: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were not computed for it."""
        return sum(self.cached_by_tier.values())


def starved(requests: Sequence[Served], *, until_s: float, patience_s: float, max_passes: int) -> list[Served]:
    """Those whose wait broke the bound of ``services/engine/waiting.py`` by ``until_s``, admitted in the end or not.

    A request is overdue once it has waited ``patience_s``. With d older ones still waiting then, it is admitted after
    at most (d + 1) · (max_passes + 1) admissions, its own included. O(n²).
    """
    found: list[Served] = []
    for request in requests:
        overdue_s = request.arrived_s + patience_s + _SLACK_S
        others = [one for one in requests if one is not request]
        waited_until_s = until_s if request.admitted_s is None else request.admitted_s
        older = sum(
            one.arrived_s <= request.arrived_s + _SLACK_S and (one.admitted_s is None or one.admitted_s > overdue_s)
            for one in others
        )
        admissions = 1 + sum(
            one.admitted_s is not None and overdue_s < one.admitted_s < waited_until_s for one in others
        )
        if waited_until_s > overdue_s and admissions > (older + 1) * (max_passes + 1):
            found.append(request)
    return found
