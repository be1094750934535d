"""The three implementations of attention agree on any rows and any block tables."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.runtime.attention import (
    attend_gathered,
    gathered_rows,
    paged_attention,
)
from services.engine.runtime.batch import Batch, Row
from services.engine.runtime.errors import UnsupportedModelError
from services.engine.runtime.plan import plan_step
from services.engine.runtime.run_attention import FlashKernel, RunAttention
from services.engine.runtime.varlen import attend_varlen, varlen_rows
from services.engine.runtime.zen import ZenKernel, loads_zen
from tests.unit.engine.runtime.twins import varlen_twin

_CPU = torch.device("cpu")
_KERNELS = (FlashKernel(), ZenKernel()) if loads_zen() else (FlashKernel(),)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 40)), min_size=1, max_size=5),
    heads=st.sampled_from([(1, 1), (2, 2), (2, 6), (3, 9), (1, 4)]),
    dim=st.sampled_from([16, 64]),
    block_tokens=st.sampled_from([1, 4, 16]),
    cuts=st.integers(0, 6),
    gathered_tokens=st.sampled_from([0, 1, 9, 24, 1000]),
    spread=st.sampled_from([1.0, 40.0]),
    seed=st.integers(0, 2**16),
)
def test_runs_and_block_tables_equal_gathering(
    sizes: list[tuple[int, int]],
    heads: tuple[int, int],
    dim: int,
    block_tokens: int,
    cuts: int,
    gathered_tokens: int,
    spread: float,
    seed: int,
) -> None:
    rng, torch_rng = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    needs = [-(-(start + n) // block_tokens) for start, n in sizes]
    pieces = np.array_split(np.arange(sum(needs) + 3), cuts + 1)
    order = np.concatenate([pieces[i] for i in rng.permutation(len(pieces))])
    rows: list[Row] = []
    taken = 0
    for (start, n), need in zip(sizes, needs, strict=True):
        rows.append(Row(np.zeros(n, np.int32), start, order[taken : taken + need].tolist(), 1))
        taken += need
    batch = Batch(tuple(rows))
    plan = plan_step(batch, block_tokens, _CPU, gathered_tokens)

    num_groups, num_heads = heads
    num_packed = plan.token_ids.shape[1]
    query = spread * torch.randn(1, num_heads, num_packed, dim, generator=torch_rng)
    # Slots that no row sees hold NaN; what rows see is finite.
    pools = torch.full((2, num_groups, len(order) * block_tokens, dim), float("nan"))
    for row in gathered_rows(plan):
        shape = (2, num_groups, len(row.slots), dim)
        pools[:, :, row.slots] = torch.randn(shape, generator=torch_rng)
    key, value = pools[:, None, :, plan.slots]

    own_query, own_key, own_value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    slow = attend_gathered(query, pools[0], pools[1], gathered_rows(plan), dim**-0.5)[0].flatten(1)
    for is_spread, kernel in itertools.product((False, True), _KERNELS):
        attention = RunAttention(num_groups, kernel)
        attention.spreads_heads = is_spread
        fast = attention(own_query, own_key, own_value, pools[0], pools[1], plan.rows, dim**-0.5)
        torch.testing.assert_close(fast, slow, atol=2e-5 * spread, rtol=1e-5)

    tables = varlen_rows(batch, block_tokens, _CPU)
    by_table = attend_varlen(query, pools[0], pools[1], tables, varlen_twin, block_tokens, dim**-0.5)
    torch.testing.assert_close(by_table[0].flatten(1), slow, atol=2e-5 * spread, rtol=1e-5)


@pytest.mark.parametrize("num_tokens", [256, 257, 600])
@pytest.mark.parametrize("kernel", _KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_long_rows_attend_to_their_own_tokens_causally(num_tokens: int, kernel: FlashKernel | ZenKernel) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    query = torch.randn(num_tokens, 6, 16, generator=generator)
    key, value = torch.randn(2, num_tokens, 2, 16, generator=generator)
    row = plan_step(Batch((Row(np.zeros(num_tokens, np.int32), 0, range(num_tokens), 1),)), 1, _CPU).rows
    attended = RunAttention(2, kernel)(query, key, value, torch.zeros(2, 0, 16), torch.zeros(2, 0, 16), row, 0.25)
    by_head = [tensor.transpose(0, 1) for tensor in (query, key, value)]
    expected = torch.nn.functional.scaled_dot_product_attention(
        by_head[0], by_head[1], by_head[2], is_causal=True, scale=0.25, enable_gqa=True
    )
    torch.testing.assert_close(attended, expected.transpose(0, 1).flatten(1), atol=2e-5, rtol=1e-5)


class _Layer:
    layer_idx = 3


class _UncalledStep:
    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        raise AssertionError(f"layer {layer} was computed")


@pytest.mark.parametrize("option", [{"sliding_window": 64}, {"softcap": 30.0}, {"s_aux": torch.ones(1)}])
def test_attention_that_is_not_full_and_causal_is_refused(option: dict[str, Any]) -> None:
    nothing = torch.zeros(1, 1, 1, 1)
    with pytest.raises(UnsupportedModelError, match="layer 3"):
        paged_attention(_Layer(), nothing, nothing, nothing, None, scaling=1.0, step=_UncalledStep(), **option)
