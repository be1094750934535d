"""How a runtime attends and copies on its device: the only choice that devices make beside the model's own layers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from services.engine.runtime import cuda
from services.engine.runtime.attention import attend_gathered, gathered_rows
from services.engine.runtime.batch import Batch
from services.engine.runtime.copies import HostCopies, Pools, StagedCopies, StateCopies
from services.engine.runtime.layout import StateLayout
from services.engine.runtime.plan import StepPlan
from services.engine.runtime.run_attention import RunAttention
from services.engine.runtime.varlen import VarlenKernel, attend_varlen, varlen_rows


class LayerAttention(Protocol):
    """One step's attention, over pools that hold the state of all its rows."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_pool: torch.Tensor,
        value_pool: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """Shapes as in `attention`; [1, T, heads, dim]."""
        ...


Attention = Callable[[Batch, StepPlan], LayerAttention]
"""Prepares a step."""


@dataclass(frozen=True, slots=True)
class Backend:
    """For one device. name: of its attention, for logs."""

    name: str
    attention: Attention
    new_copies: Callable[[Pools], StateCopies]


def backend_of(device: torch.device, layout: StateLayout, block_tokens: int) -> Backend:
    """The fastest that is installed."""
    if device.type == "cpu":
        attention = RunAttention(layout.channels[0].num_heads)
        return Backend(f"runs by {attention.kernel.name}", runs(attention), HostCopies)

    def new_copies(pools: Pools) -> StateCopies:
        return StagedCopies(pools, cuda.CudaLane(device))

    kernel = cuda.find_varlen_kernel(device, layout, block_tokens)
    if kernel is None:
        return Backend("gathered", gathered, new_copies)
    return Backend("varlen", varlen(kernel, block_tokens), new_copies)


def runs(attention: RunAttention) -> Attention:
    """Run by run in place; CPU only."""

    def by_token(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[0].transpose(0, 1)

    def prepare(batch: Batch, plan: StepPlan) -> LayerAttention:
        return lambda query, key, value, key_pool, value_pool, scale: attention(
            by_token(query), by_token(key), by_token(value), key_pool, value_pool, plan.rows, scale
        ).view(1, *by_token(query).shape)

    return prepare


def gathered(batch: Batch, plan: StepPlan) -> LayerAttention:
    """Row by row over copies of what it sees; any device, nothing but torch."""
    rows = gathered_rows(plan)
    return lambda query, key, value, key_pool, value_pool, scale: attend_gathered(
        query, key_pool, value_pool, rows, scale
    )


def varlen(kernel: VarlenKernel, block_tokens: int) -> Attention:
    """All rows in one call of a kernel."""

    def prepare(batch: Batch, plan: StepPlan) -> LayerAttention:
        rows = varlen_rows(batch, block_tokens, plan.slots.device)
        return lambda query, key, value, key_pool, value_pool, scale: attend_varlen(
            query, key_pool, value_pool, rows, kernel, block_tokens, scale
        )

    return prepare
