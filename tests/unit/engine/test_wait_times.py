import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.wait_times import WaitTimes, guessed_return_probability


def seen(*waits: float | None, scope: str = "a", classes: tuple[str, ...] = ("bash",)) -> WaitTimes:
    times = WaitTimes()
    for waited_s in waits:
        times.observe(scope, classes, waited_s)
    return times


def test_the_guess_has_the_waits_of_coding_agents():
    # Chance of a wait over t is (17.8 / (17.8 + t)) ** 2.7: half are over after 5.2 s, 99 % after 81 s.
    assert guessed_return_probability(0) == pytest.approx(1 - (17.8 / 27.8) ** 2.7)
    assert guessed_return_probability(0) == pytest.approx(0.700, abs=1e-3)
    assert guessed_return_probability(81) == pytest.approx(1 - (98.8 / 108.8) ** 2.7)


@given(st.lists(st.floats(0, 10**5), min_size=2, max_size=9, unique=True))
def test_the_guess_falls_with_the_wait(waits: list[float]):
    chances = [guessed_return_probability(waited_s) for waited_s in sorted(waits)]
    assert chances == sorted(chances, reverse=True)


def test_short_waits_are_expected_back_and_then_no_more():
    estimate = seen(*[4.0] * 8).estimate("a", ["bash"])
    assert estimate is not None
    # Eight observations that fade by 2 % each weigh (1 − 0.98 ** 8) / 0.02 = 7.462; the guess weighs 1.
    guess = 1 / 8.4618
    assert estimate.survival(0) == pytest.approx(1)
    assert estimate.survival(4.0) == pytest.approx(7.4618 / 8.4618 + guess * (17.8 / 21.8) ** 2.7, rel=1e-4)
    assert estimate.survival(4.828) == pytest.approx(3.7309 / 8.4618 + guess * (17.8 / 22.628) ** 2.7, rel=1e-3)
    assert estimate.return_probability(0) == pytest.approx(1 - guess * (17.8 / 27.8) ** 2.7, rel=1e-4)
    assert estimate.return_probability(20) == pytest.approx(guessed_return_probability(20))
    assert estimate.return_probability(10**6) == pytest.approx(guessed_return_probability(10**6), abs=1e-9)


def test_long_waits_are_worth_little_at_first_and_much_when_they_are_nearly_over():
    estimate = seen(*[60.0] * 20).estimate("a", ["bash"])
    assert estimate is not None
    assert estimate.return_probability(0) < 0.05
    assert estimate.return_probability(30) < 0.05 < 0.2 < estimate.return_probability(40)
    assert estimate.return_probability(55) > 0.99


def test_who_never_comes_back_is_not_expected():
    estimate = seen(*[None] * 8).estimate("a", ["bash"])
    assert estimate is not None
    assert estimate.return_probability(0) == pytest.approx(1 - (7.4618 + (17.8 / 27.8) ** 2.7) / 8.4618, rel=1e-4)
    assert estimate.return_probability(10**5) < 1e-9
    half = seen(*[2.0, None] * 10).estimate("a", ["bash"])
    assert half is not None
    assert half.return_probability(0) == pytest.approx(0.5, abs=0.05)


def test_a_class_is_not_trusted_before_eight_observations():
    assert seen(*[4.0] * 7).estimate("a", ["bash"]) is None
    assert seen(*[4.0] * 8).estimate("a", ["bash"]) is not None


def test_scopes_share_no_timing():
    times = seen(*[4.0] * 8)
    assert times.estimate("b", ["bash"]) is None
    assert times.estimate("a", ["read"]) is None


def test_parallel_calls_wait_for_the_slowest():
    times = seen(*[1.0] * 8, classes=("read",))
    for _ in range(8):
        times.observe("a", ["bash"], 60.0)
    fast, slow = times.estimate("a", ["read"]), times.estimate("a", ["bash"])
    both = times.estimate("a", ["read", "bash", "read"])
    assert fast is not None
    assert slow is not None
    assert both is not None
    assert both.survival(5) == pytest.approx(1 - (1 - fast.survival(5)) * (1 - slow.survival(5)))
    assert both.return_probability(0) < 0.1 < 0.9 < fast.return_probability(0)
    assert times.estimate("a", ["read", "unknown"]) is None


def test_what_was_seen_of_the_classes_together_counts_before_their_parts():
    times = seen(*[1.0] * 8, classes=("read",))
    for _ in range(8):
        times.observe("a", ["read", "bash"], 60.0)
    both, turned = times.estimate("a", ["bash", "read"]), times.estimate("a", ["read", "bash"])
    assert both is not None
    assert both == turned
    assert both.return_probability(0) < 0.1


def test_old_observations_fade():
    times = seen(*[1.0] * 50)
    for _ in range(100):
        times.observe("a", ["bash"], 300.0)
    estimate = times.estimate("a", ["bash"])
    assert estimate is not None
    # 100 steps of 2 % leave an eighth of what weighed 31.8 of 51.
    assert estimate.return_probability(0) == pytest.approx(0.098, abs=0.01)


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 10**7)), min_size=8, max_size=40),
    st.floats(0, 10**7),
    st.floats(0, 10**7),
)
def test_estimates_are_probabilities(waits: list[float | None], first: float, second: float):
    estimate = seen(*waits).estimate("a", ["bash"])
    assert estimate is not None
    early, late = sorted((first, second))
    assert 1 + 1e-9 >= estimate.survival(early) >= estimate.survival(late) - 1e-12 >= -1e-12
    assert 0 <= estimate.return_probability(early) <= 1


def test_classes_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("services.engine.wait_times._MAX_CLASSES", 2)
    times = WaitTimes()
    for name in ("x", "y", "x", "z"):
        for _ in range(8):
            times.observe("a", [name], 1.0)
    assert [times.estimate("a", [name]) is not None for name in "xyz"] == [True, False, True]
