"""How prompts that are computed at a time share the tokens of a step. Pure."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

from services.engine.sequence import Sequence

_BACKGROUND_PART = 8
"""Of the tokens of a step that interactive requests wait for, the part that background prompts may have."""


def chunks(
    prefilling: Ordered[Sequence], budget: int, step_tokens: int, *, is_alone: bool
) -> list[tuple[Sequence, int]]:
    """Who computes how many tokens of a prompt; ``prefilling`` in order of admission, background ones last.

    ``is_alone``: no interactive request has a row in the step beside these.
    """
    interactive = [s for s in prefilling if not s.request.is_background]
    background = [s for s in prefilling if s.request.is_background]
    given = shares([s.num_pending for s in interactive], budget)
    budget -= sum(given)
    if interactive or not is_alone:
        budget = min(budget, max(1, step_tokens // _BACKGROUND_PART))
    given += shares([s.num_pending for s in background], budget)
    return [(s, count) for s, count in zip([*interactive, *background], given, strict=True) if count]


def shares(pending: Ordered[int], budget: int) -> list[int]:
    """Tokens of each prompt for one step; ``pending`` is what is left of them, oldest first. Sums to at most
    ``budget``, and to it if there is so much to do.

    The oldest has at least half, so that others at most double its time; of these the shortest goes first, so that what
    a long prompt delays most is another long one.
    """
    given = [0] * len(pending)
    if not pending or budget <= 0:
        return given
    given[0] = min(pending[0], budget - budget // 2)
    left = budget - given[0]
    for place in (*sorted(range(1, len(pending)), key=pending.__getitem__), 0):
        more = min(pending[place] - given[place], left)
        given[place] += more
        left -= more
    return given
