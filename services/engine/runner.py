"""Turns a plan into one packed forward and its chosen tokens. Runs in the compute thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from services.engine.choosing import TokenChooser, choose_tokens
from services.engine.request import Sampled
from services.engine.runtime.batch import Batch, Row
from services.engine.runtime.paged import PagedRuntime
from services.engine.step import Plan, PlanRow


@dataclass(frozen=True, slots=True)
class Work:
    """A plan without the scheduler's objects: what the compute thread may touch while the loop goes on."""

    copies: tuple[tuple[int, int, int], ...]  # source block, target block, tokens
    batch: Batch
    choosers: tuple[TokenChooser, ...]
    drafts: tuple[tuple[int, ...], ...]  # one for each chooser


def work_of(plan: Plan) -> Work:
    """Snapshot a plan. Called on the loop, before the sequences can change."""
    rows = tuple(
        Row(
            token_ids=_ids(row),
            start=row.start,
            block_ids=tuple(row.sequence.block_ids),
            num_logits=1 + len(row.draft) if row.samples else 0,
        )
        for row in plan.rows
    )
    copies = tuple((copy.source.block_id, copy.target_block, copy.num_tokens) for copy in plan.copies)
    gate = None if plan.restoring is None else plan.restoring.gate
    sampling = [row for row in plan.rows if row.samples]
    return Work(
        copies,
        Batch(rows, gate),
        tuple(row.sequence.chooser for row in sampling),
        tuple(row.draft for row in sampling),
    )


def run(runtime: PagedRuntime, work: Work) -> list[tuple[Sampled, ...]]:
    """Compute one step; the tokens chosen for each sampling row, in row order."""
    for source, target, num_tokens in work.copies:
        runtime.copy_rows(source, target, num_tokens)
    if not work.batch.rows:
        return []
    logits = runtime.forward(work.batch)
    return choose_tokens(logits, work.choosers, work.drafts) if work.choosers else []


def _ids(row: PlanRow) -> npt.NDArray[np.int32]:
    known = np.frombuffer(row.sequence.ids(row.start, row.start + row.num_tokens), dtype="<i4")
    return np.concatenate((known, np.array(row.draft, dtype="<i4"))) if row.draft else known
