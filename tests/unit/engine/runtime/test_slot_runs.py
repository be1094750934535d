"""Block tables collapse into runs that keep the token order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.runtime.runs import slot_runs, slots_of


@given(st.data())
def test_runs_hold_the_slots_of_the_table_and_are_as_long_as_possible(data: st.DataObject) -> None:
    block_tokens = data.draw(st.sampled_from([1, 4, 16]))
    blocks = data.draw(st.lists(st.integers(0, 12), unique=True, min_size=1, max_size=10))
    first = data.draw(st.integers(0, len(blocks) * block_tokens - 1))
    stop = data.draw(st.integers(first + 1, len(blocks) * block_tokens))
    runs = slot_runs(blocks, first, stop - first, block_tokens)
    naive = [blocks[i // block_tokens] * block_tokens + i % block_tokens for i in range(first, stop)]
    assert slots_of(runs).tolist() == naive
    assert len(runs) == 1 + int(np.count_nonzero(np.diff(naive) != 1))


def test_an_empty_range_has_no_runs() -> None:
    assert slot_runs([4, 5], 16, 0, 16) == ()


@pytest.mark.parametrize(("first", "num_tokens"), [(-1, 2), (0, 33), (32, 1), (3, -1)])
def test_a_range_outside_the_table_is_refused(first: int, num_tokens: int) -> None:
    with pytest.raises(ValueError, match="outside a table of 2 blocks"):
        slot_runs([4, 5], first, num_tokens, 16)
