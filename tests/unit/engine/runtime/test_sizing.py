"""Memory for state: the arithmetic, and the step whose peak is measured."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.runtime import PagedRuntime, load_model
from services.engine.runtime.sizing import largest_step, state_bytes

_GIB = 2**30


def test_state_gets_what_weights_the_peak_and_others_leave_of_the_share() -> None:
    weights, peak, others = 15 * _GIB, 3 * _GIB, 2 * _GIB
    assert state_bytes(80 * _GIB, 80 * _GIB - weights - peak - others, 0.9) == 72 * _GIB - weights - peak - others


def test_a_device_that_is_taken_beyond_the_share_has_nothing_for_state() -> None:
    assert state_bytes(80 * _GIB, 8 * _GIB, 0.9) == 0
    assert state_bytes(80 * _GIB, 7 * _GIB, 0.9) == 0


@given(
    step_tokens=st.integers(1, 600),
    max_running=st.integers(1, 40),
    context_tokens=st.integers(1, 3000),
    block_tokens=st.sampled_from([16, 64, 256]),
)
def test_the_largest_step_is_full_and_at_the_end_of_the_context(
    step_tokens: int, max_running: int, context_tokens: int, block_tokens: int
) -> None:
    batch, num_blocks = largest_step(
        step_tokens=step_tokens, max_running=max_running, context_tokens=context_tokens, block_tokens=block_tokens
    )
    counts = [len(row.token_ids) for row in batch.rows]
    assert len(counts) == max_running
    assert sum(counts) == max(max_running, step_tokens) or counts[0] == context_tokens
    for row, count in zip(batch.rows, counts, strict=True):
        assert row.num_logits == count
        assert row.start + count == context_tokens <= len(row.block_ids) * block_tokens
        assert set(row.block_ids) <= set(range(num_blocks))


@pytest.mark.parametrize("max_running", [1, 5])
def test_the_largest_step_can_be_computed_on_few_blocks(tiny_dirs: dict[str, Path], max_running: int) -> None:
    model = load_model(tiny_dirs["llama"])
    batch, num_blocks = largest_step(
        step_tokens=40, max_running=max_running, context_tokens=model.context_tokens, block_tokens=16
    )
    runtime = PagedRuntime(model, num_blocks=num_blocks, block_tokens=16)
    assert runtime.forward(batch).shape == (40, 500)
    assert runtime.allocated_bytes < runtime.layout.bytes_per_token * model.context_tokens
