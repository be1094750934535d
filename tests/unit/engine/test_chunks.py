from hypothesis import given
from hypothesis import strategies as st

from services.engine.chunks import shares


def test_short_prompts_pass_a_long_one_which_keeps_half():
    assert shares([1_000, 100, 20], 200) == [100, 80, 20]
    assert shares([1_000, 10, 20], 200) == [170, 10, 20]
    assert shares([30, 1_000, 1_000], 200) == [30, 170, 0]
    assert shares([], 200) == []
    assert shares([5, 5], 0) == [0, 0]


@given(st.lists(st.integers(1, 300), max_size=8), st.integers(-5, 500))
def test_shares_use_the_budget_and_never_more(pending: list[int], budget: int):
    given_ = shares(pending, budget)
    assert all(0 <= count <= most for count, most in zip(given_, pending, strict=True))
    assert sum(given_) == min(sum(pending), max(0, budget))
    if pending and budget > 0:
        assert given_[0] >= min(pending[0], budget / 2)
