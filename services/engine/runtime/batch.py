"""What the scheduler asks the runtime to compute in one step.

A batch is packed: rows of any length (prefill chunks, appends, single decode tokens) share one
forward, without padding. Values only; the runtime derives everything else (see plan.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.engine.runtime.gate import LayerGate


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's share of a step: n ≥ 1 consecutive tokens.

    token_ids: the n tokens to compute.
    start: tokens of this sequence already in the pool, so the position of token_ids[0].
    block_ids: the sequence's block table; covers at least start + n tokens.
    num_logits: the logits after each of the last so many tokens are returned.
    """

    token_ids: npt.NDArray[np.int32]
    start: int
    block_ids: Sequence[int]
    num_logits: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step, at least one.

    Within a step every layer writes the state of all rows before it attends, so a row may
    read blocks that another row of the same batch fills. Invariant: no two rows write the
    same slot.
    gate: what the rows read is still being filled; each layer waits for its own.
    """

    rows: tuple[Row, ...]
    gate: LayerGate | None = None
