"""Attention of all rows of a step in one call, by kernels that read the pools through block tables.

A row's queries are the last of its keys: causal attention is aligned at the ends (bottom right), as in FlashAttention
from 2.1 on.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from services.engine.runtime.batch import Batch


@dataclass(frozen=True, slots=True)
class VarlenRows:
    """The rows of a step. Tensors are int32 on the device.

    query_ends, key_ends: [rows + 1], sums of the rows' tokens and of the tokens that they see, from 0 on.
    num_keys: [rows], the tokens that each sees, its own included.
    block_table: [rows, widest table], filled up with 0.
    """

    query_ends: torch.Tensor
    key_ends: torch.Tensor
    num_keys: torch.Tensor
    block_table: torch.Tensor
    max_query: int
    max_keys: int


class VarlenKernel(Protocol):
    """Causal attention of packed rows over pages."""

    def __call__(
        self,
        query: torch.Tensor,
        key_pages: torch.Tensor,
        value_pages: torch.Tensor,
        rows: VarlenRows,
        scale: float,
    ) -> torch.Tensor:
        """Query [T, heads, dim] over pages [blocks, block_tokens, kv_heads, dim], dense in dim alone; as query."""
        ...


def varlen_rows(batch: Batch, block_tokens: int, device: torch.device) -> VarlenRows:
    """Index tensors of a step whose plan was made, so that its rows are known to be right."""
    num_queries = np.array([len(row.token_ids) for row in batch.rows])
    num_keys = num_queries + [row.start for row in batch.rows]
    num_blocks = -(-num_keys // block_tokens)
    table = np.zeros((len(batch.rows), int(num_blocks.max())), dtype=np.int32)
    for place, (row, count) in enumerate(zip(batch.rows, num_blocks.tolist(), strict=True)):
        table[place, :count] = row.block_ids[:count]

    def ends(counts: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(np.append(0, counts.cumsum()).astype(np.int32), device=device)

    return VarlenRows(
        query_ends=ends(num_queries),
        key_ends=ends(num_keys),
        num_keys=torch.as_tensor(num_keys.astype(np.int32), device=device),
        block_table=torch.as_tensor(table, device=device),
        max_query=int(num_queries.max()),
        max_keys=int(num_keys.max()),
    )


def attend_varlen(
    query: torch.Tensor,
    key_pool: torch.Tensor,
    value_pool: torch.Tensor,
    rows: VarlenRows,
    kernel: VarlenKernel,
    block_tokens: int,
    scale: float,
) -> torch.Tensor:
    """As a layer calls it: query [1, heads, T, dim] over pools [kv_heads, slots, dim] gives [1, T, heads, dim].

    The pools must already hold the state of all rows; they are viewed as pages, not copied.
    """
    attended = kernel(
        query[0].transpose(0, 1), _pages(key_pool, block_tokens), _pages(value_pool, block_tokens), rows, scale
    )
    return attended.unsqueeze(0)


def _pages(pool: torch.Tensor, block_tokens: int) -> torch.Tensor:
    heads, num_slots, dim = pool.shape
    return pool.view(heads, num_slots // block_tokens, block_tokens, dim).permute(1, 2, 0, 3)
