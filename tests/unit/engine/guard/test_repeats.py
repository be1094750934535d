"""Run lengths by period, against a look at the whole output."""

from hypothesis import given
from hypothesis import strategies as st

from services.engine.guard.lexicon import Lexicon
from services.engine.guard.repeats import RepeatTracker
from services.engine.guard.rules import RepeatRules

LEXICON = Lexicon([b" words", b" other", b"0", b"|"])
SMALL = RepeatRules(
    max_period=12,
    min_copies=2,
    prose_tokens=((2, 8), (4, 6), (12, 4)),
    few_words_tokens=9,
    mixed_tokens=11,
    data_tokens=14,
)

patterns = st.lists(st.integers(0, 3), min_size=1, max_size=6)
outputs = st.lists(st.tuples(patterns, st.integers(1, 12)), max_size=6).map(
    lambda parts: [token for pattern, times in parts for token in pattern * times]
)


def run_length(output: list[int], period: int) -> int:
    pairs = zip(reversed(output), reversed(output[:-period]), strict=False)
    return next((i for i, (late, early) in enumerate(pairs) if late != early), max(0, len(output) - period))


def loop_period(output: list[int], rules: RepeatRules, factor: int = 1) -> int | None:
    """Slow twin."""
    runs = [run_length(output, period) for period in range(1, rules.max_period + 1)]
    for period, run in enumerate(runs, 1):
        words = sum(token < 2 for token in output[-period:]) / period
        markup = output[-period:].count(3) / period
        is_fundamental = all(smaller < period for smaller in runs[: period - 1])
        if is_fundamental and run >= factor * rules.needed(period, words, markup):
            return period
    return None


@given(outputs, st.sampled_from([1, 2]))
def test_finds_the_loop_that_a_look_at_the_whole_output_finds(output: list[int], factor: int):
    tracker = RepeatTracker(SMALL, LEXICON, factor)
    for length, token in enumerate(output, 1):
        tracker.push(token)
        assert tracker.period == loop_period(output[:length], SMALL, factor), output[:length]


@given(outputs, outputs, outputs)
def test_a_clone_and_its_original_go_their_own_ways(before: list[int], one: list[int], other: list[int]):
    original = RepeatTracker(SMALL, LEXICON)
    for token in before:
        original.push(token)
    clone = original.clone()
    for token in one:
        original.push(token)
    for token in other:
        clone.push(token)
    assert original.period == loop_period(before + one, SMALL)
    assert clone.period == loop_period(before + other, SMALL)


def test_a_long_output_ends_in_the_same_loop_as_a_short_one():
    tracker = RepeatTracker(RepeatRules(), LEXICON)
    for number in range(5000):
        tracker.push(4 + number)
    periods: list[int | None] = []
    for token in [0, 1, 0] * 60:
        tracker.push(token)
        periods.append(tracker.period)
    assert periods.index(3) == 3 + 160 - 1
    assert tracker.token_back(3) == 0


def test_a_pattern_that_is_no_prose_may_go_on_for_longer():
    rules = RepeatRules()
    assert rules.needed(9, words=0.7, markup=0.1) == 160
    assert rules.needed(9, words=0.7, markup=0.3) == 768
    assert rules.needed(9, words=0.3, markup=0.2) == 384
    assert rules.needed(9, words=0.2, markup=0.0) == 768
    assert rules.needed(9, words=0.0, markup=0.3) == 4096
    assert rules.needed(90, words=0.7, markup=0.0) == 270
    assert rules.needed(512, words=0.2, markup=0.0) == 3 * 512
