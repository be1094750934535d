import math

from hypothesis import given
from hypothesis import strategies as st

from services.engine.draft.draft_length import MAX_DRAFT, Draft, GuessRecord, draft_lengths

FULL = (1,) * MAX_DRAFT
DRAFTS = st.builds(Draft, st.integers(0, MAX_DRAFT).map(lambda length: FULL[:length]), st.floats(0.01, 1.0))


def length(record: GuessRecord, num_rows: int = 1) -> int:
    """Of a full draft, in a step with other rows that have none."""
    return draft_lengths([Draft(FULL, record.chance), *[Draft()] * (num_rows - 1)], num_rows, 100)[0]


def test_drafts_that_are_right_grow_to_the_longest():
    record = GuessRecord(0.4, 0.6)
    lengths = [length(record)]
    for _ in range(4):
        record.verified(lengths[-1], lengths[-1])
        lengths.append(length(record))
    assert lengths == sorted(lengths)
    assert 1 < lengths[0] < MAX_DRAFT == lengths[-1]


def test_where_guesses_fail_they_end_and_are_tried_again_rarely():
    record = GuessRecord(0.4, 0.6)
    num_drafted, num_steps = [0, 0], 500
    for step in range(2 * num_steps):
        tokens = length(record)
        num_drafted[step >= num_steps] += tokens
        if tokens:
            record.verified(tokens, 0)
        else:
            record.skipped()
    assert 1 <= num_drafted[1] < num_steps // 10
    assert num_drafted[0] < num_steps // 5


def test_guesses_that_are_right_again_are_noticed():
    record = GuessRecord(0.4, 0.6)
    for _ in range(200):
        if tokens := length(record):
            record.verified(tokens, 0)
        else:
            record.skipped()
    steps = 0
    while length(record) < MAX_DRAFT:
        steps += 1
        if tokens := length(record):
            record.verified(tokens, tokens)
        else:
            record.skipped()
    assert steps < 40


@given(st.lists(st.tuples(st.integers(0, MAX_DRAFT), st.integers(0, MAX_DRAFT)), max_size=50))
def test_a_chance_is_a_probability_whatever_is_seen(drafts: list[tuple[int, int]]):
    record = GuessRecord(0.4, 0.6)
    for one, other in drafts:
        record.verified(max(one, other), min(one, other))
        assert 0 < record.chance < 1


def test_more_rows_make_drafts_shorter():
    record = GuessRecord(0.4, 0.6)
    record.verified(4, 3)
    lengths = [length(record, rows) for rows in (1, 2, 4, 8, 16)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]


def test_beside_a_long_prompt_drafts_cost_next_to_nothing():
    assert draft_lengths([Draft(FULL, 0.6)], 1 + 500, 100)[0] > draft_lengths([Draft(FULL, 0.6)], 1, 100)[0]


@given(
    st.lists(DRAFTS, min_size=1, max_size=8),
    st.integers(0, 60),
    st.integers(0, 300),
)
def test_each_computed_guess_is_worth_no_less_than_any_that_is_left(drafts: list[Draft], limit: int, prefill: int):
    lengths = draft_lengths(drafts, len(drafts) + prefill, limit)
    assert sum(lengths) <= limit
    pairs = list(zip(lengths, drafts, strict=True))
    assert all(0 <= taken <= len(draft.token_ids) for taken, draft in pairs)
    left = [draft.chance ** (taken + 1) for taken, draft in pairs if taken < len(draft.token_ids)]
    least = min((draft.chance**taken for taken, draft in pairs if taken), default=math.inf)
    assert least >= max(left, default=0.0) * (1 - 1e-9)
