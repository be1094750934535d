import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.wait_times import WaitTimes, unknown_return_rate


def seen(*waits: float | None, scope: str = "a", classes: tuple[str, ...] = ("bash",)) -> WaitTimes:
    times = WaitTimes()
    for waited_s in waits:
        times.observe(scope, classes, waited_s)
    return times


def test_of_unknown_waits_half_take_longer_than_a_minute_nearly():
    # The rate of a wait that is longer than t with the chance (17.8 / (17.8 + t)) ** 0.5.
    assert unknown_return_rate(0) == pytest.approx(0.02809, abs=1e-5)
    assert unknown_return_rate(53.4) == pytest.approx(0.5 / 71.2)


@given(st.lists(st.floats(0, 10**5), min_size=2, max_size=9, unique=True))
def test_the_guess_falls_with_the_wait(waits: list[float]):
    chances = [unknown_return_rate(waited_s) for waited_s in sorted(waits)]
    assert chances == sorted(chances, reverse=True)


def test_short_waits_are_expected_back_and_then_no_more():
    estimate = seen(*[4.0] * 8).estimate("a", ["bash"])
    assert estimate is not None
    # Eight observations that fade by 2 % each weigh (1 − 0.98 ** 8) / 0.02 = 7.462; the guess weighs 1.
    guess = 1 / 8.4618
    assert estimate.survival(0) == pytest.approx(1)
    assert estimate.survival(4.0) == pytest.approx(7.4618 / 8.4618 + guess * (17.8 / 21.8) ** 2.7, rel=1e-4)
    assert estimate.survival(4.828) == pytest.approx(3.7309 / 8.4618 + guess * (17.8 / 22.628) ** 2.7, rel=1e-3)
    # Past all that was seen the guess is left alone, whose rate is highest at the shortest horizon.
    left = (37.8 / 42.8) ** 2.7
    assert estimate.return_rate(20) == pytest.approx((1 - left) / ((1 + left) / 2 * 5))
    # At first, all but the guess's share is back within 10 s: 0.56 of 1 are left at 5 s, 0.04 at 10 s.
    at_5, at_10 = estimate.survival(5), estimate.survival(10)
    assert estimate.return_rate(0) == pytest.approx((1 - at_10) / ((1 + at_5) / 2 * 5 + (at_5 + at_10) / 2 * 5))
    assert estimate.return_rate(0) == pytest.approx(0.208, abs=1e-3)


def test_a_long_wait_is_worth_more_the_nearer_its_end():
    estimate = seen(*[60.0] * 20).estimate("a", ["bash"])
    assert estimate is not None
    rates = [estimate.return_rate(waited_s) for waited_s in (0, 20, 40, 55)]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(1 / 60, rel=0.3)
    assert rates[3] > 0.2
    assert estimate.return_rate(70) < rates[2], "it is over its time"


def test_who_never_comes_back_is_not_expected():
    estimate = seen(*[None] * 8).estimate("a", ["bash"])
    assert estimate is not None
    assert estimate.survival(10) == pytest.approx((7.4618 + (17.8 / 27.8) ** 2.7) / 8.4618, rel=1e-4)
    assert estimate.return_rate(0) < 0.015
    assert estimate.return_rate(10**5) < 1e-9
    half = seen(*[2.0, None] * 10).estimate("a", ["bash"])
    assert half is not None
    assert half.survival(300) == pytest.approx(0.5, abs=0.05)


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
    assert both.return_rate(0) < 0.03 < 0.2 < fast.return_rate(0)
    assert times.estimate("a", ["read", "unknown"]) is None


def test_what_was_seen_of_the_classes_together_counts_before_their_parts():
    times = seen(*[1.0] * 8, classes=("read",))
    for _ in range(8):
        times.observe("a", ["read", "bash"], 60.0)
    both, turned = times.estimate("a", ["bash", "read"]), times.estimate("a", ["read", "bash"])
    assert both is not None
    assert both == turned
    assert both.return_rate(0) < 0.03


def test_old_observations_fade():
    times = seen(*[1.0] * 50)
    for _ in range(100):
        times.observe("a", ["bash"], 300.0)
    estimate = times.estimate("a", ["bash"])
    assert estimate is not None
    # 100 steps of 2 % leave an eighth of what weighed 31.8 of 51.
    assert estimate.survival(10) == pytest.approx(1 - 0.098, abs=0.01)


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 10**7)), min_size=8, max_size=40),
    st.floats(0, 10**7),
    st.floats(0, 10**7),
)
def test_estimates_are_chances_and_rates(waits: list[float | None], first: float, second: float):
    estimate = seen(*waits).estimate("a", ["bash"])
    assert estimate is not None
    early, late = sorted((first, second))
    assert 1 + 1e-9 >= estimate.survival(early) >= estimate.survival(late) - 1e-12 >= -1e-12
    assert 0 <= estimate.return_rate(early) <= 0.4 + 1e-9, "back within 5 s, by trapezoids"


def test_classes_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("services.engine.wait_times._MAX_CLASSES", 2)
    times = WaitTimes()
    for name in ("x", "y", "x", "z"):
        for _ in range(8):
            times.observe("a", [name], 1.0)
    assert [times.estimate("a", [name]) is not None for name in "xyz"] == [True, False, True]
