"""What one step computes and what it ends: the values between scheduler, runner and the loop."""

from __future__ import annotations

from dataclasses import dataclass

from services.engine.cache_manager import BlockCopy
from services.engine.node import Node
from services.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PlanRow:
    """Compute tokens [start, start + num_tokens) of a sequence; sample behind them if ``samples``.

    ``draft`` are guesses of what will be sampled, computed behind them; ``draft_blocks`` were borrowed for it.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool
    draft: tuple[int, ...] = ()
    draft_blocks: int = 0

    @property
    def num_computed(self) -> int:
        """Tokens that go through the model."""
        return self.num_tokens + len(self.draft)


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. ``copies`` are made before the rows are computed; ``restores`` are begun beside it.

    ``restoring`` is the one sequence of the rows whose state is still being filled, layer before layer.
    """

    rows: tuple[PlanRow, ...]
    copies: tuple[BlockCopy, ...]
    restores: tuple[Sequence, ...]
    restoring: Sequence | None = None


@dataclass(frozen=True, slots=True)
class Terminal:
    """A sequence that has ended by itself: its state of ``num_tokens`` tokens is cached up to ``node``."""

    sequence: Sequence
    node: Node
    num_tokens: int
