"""A step's plan: the index arithmetic of a batch, done once and used by every layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from services.engine.runtime.batch import Batch, Row
from services.engine.runtime.runs import Run, slot_runs, slots_of

_GATHERED_TOKENS = 256
"""On CPU, attending one run more costs as much as copying so many tokens, about."""


class RowPlan(NamedTuple):
    """One row of the packed token axis; a type that compiled functions can take.

    first, num_tokens: the row's tokens are packed[first : first + num_tokens].
    context: pool runs that every token of the row sees whole. A single-token row has its own
        token in them; a longer row only what came before, as it attends its own tokens causally.
    scattered: slots [n] that belong to the context too, in runs too short to be attended one by one.
    """

    first: int
    num_tokens: int
    context: list[tuple[int, int]]
    scattered: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """T packed tokens. All tensors are int64 on the model's device.

    token_ids, positions: [1, T]. slots: [T], where each token's state goes in the pools.
    logits_at: packed indices of the tokens whose logits are wanted, in row order.
    rows: how the T tokens attend. last_rows: how those of logits_at do, packed without the others.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    logits_at: torch.Tensor
    rows: list[RowPlan]
    last_rows: list[RowPlan]


def plan_step(
    batch: Batch, block_tokens: int, device: torch.device, gathered_tokens: int = _GATHERED_TOKENS
) -> StepPlan:
    """Plan a batch. gathered_tokens: runs below this many tokens are short, on CPU.

    Raises ValueError if a row is empty, its block table is too short or it wants more logits than it has tokens.
    """

    def attended(row: Row, num_tokens: int, first: int) -> RowPlan:
        """The last num_tokens of a row, packed from first on."""
        num_context = row.start + len(row.token_ids) - (0 if num_tokens == 1 else num_tokens)
        context = slot_runs(row.block_ids, 0, num_context, block_tokens)
        return RowPlan(first, num_tokens, *_parted(context, gathered_tokens if device.type == "cpu" else 0))

    rows: list[RowPlan] = []
    written: list[Run] = []
    positions: list[Run] = []
    logits_at: list[int] = []
    num_packed = 0
    for row in batch.rows:
        num_tokens = len(row.token_ids)
        if num_tokens == 0:
            raise ValueError("a row computes at least one token")
        if not 0 <= row.num_logits <= num_tokens:
            raise ValueError(f"a row of {num_tokens} tokens has no logits for {row.num_logits}")
        written += slot_runs(row.block_ids, row.start, num_tokens, block_tokens)
        positions.append((row.start, row.start + num_tokens))
        rows.append(attended(row, num_tokens, num_packed))
        num_packed += num_tokens
        logits_at += range(num_packed - row.num_logits, num_packed)
    last_rows = rows
    if len(logits_at) < num_packed:
        last_rows = list[RowPlan]()
        num_wanted = 0
        for row in batch.rows:
            if row.num_logits > 0:
                last_rows.append(attended(row, row.num_logits, num_wanted))
                num_wanted += row.num_logits
    token_ids = np.concatenate([row.token_ids for row in batch.rows]).astype(np.int64)
    return StepPlan(
        token_ids=torch.as_tensor(token_ids, device=device).unsqueeze(0),
        positions=torch.as_tensor(slots_of(positions), device=device).unsqueeze(0),
        slots=torch.as_tensor(slots_of(written), device=device),
        logits_at=torch.tensor(logits_at, dtype=torch.int64, device=device),
        rows=rows,
        last_rows=last_rows,
    )


def _parted(context: Sequence[Run], gathered_tokens: int) -> tuple[list[Run], torch.Tensor | None]:
    """The long runs and the slots of the short ones. A single short run is as good as a long one."""
    short = [run for run in context if run[1] - run[0] < gathered_tokens]
    if len(short) < 2:
        return list(context), None
    return [run for run in context if run[1] - run[0] >= gathered_tokens], torch.as_tensor(slots_of(short))
