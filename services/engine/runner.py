"""Turns a plan into one packed forward and its sampled tokens. Runs in the compute thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services.engine.request import Sampled
from services.engine.runtime.batch import Batch, Row
from services.engine.runtime.paged import PagedRuntime
from services.engine.sampling import Sampler, sample
from services.engine.scheduler import Plan


@dataclass(frozen=True, slots=True)
class Work:
    """A plan without the scheduler's objects: what the compute thread may touch while the loop goes on."""

    copies: tuple[tuple[int, int, int], ...]  # source block, target block, tokens
    batch: Batch
    samplers: tuple[Sampler, ...]


def work_of(plan: Plan) -> Work:
    """Snapshot a plan. Called on the loop, before the sequences can change."""
    rows = tuple(
        Row(
            token_ids=np.frombuffer(row.sequence.ids(row.start, row.start + row.num_tokens), dtype="<i4"),
            start=row.start,
            block_ids=tuple(row.sequence.block_ids),
            wants_logits=row.samples,
        )
        for row in plan.rows
    )
    copies = tuple((copy.source.block_id, copy.target_block, copy.num_tokens) for copy in plan.copies)
    gate = None if plan.restoring is None else plan.restoring.gate
    return Work(copies, Batch(rows, gate), tuple(row.sequence.sampler for row in plan.rows if row.samples))


def run(runtime: PagedRuntime, work: Work) -> list[Sampled]:
    """Compute one step; a sampled token per sampling row, in row order."""
    for source, target, num_tokens in work.copies:
        runtime.copy_rows(source, target, num_tokens)
    if not work.batch.rows:
        return []
    logits = runtime.forward(work.batch)
    return sample(logits, work.samplers) if work.samplers else []
