"""The decision whether to restore: both costs follow what is measured."""

from __future__ import annotations

import random

import pytest

from services.engine.restore_cost import PrefillCost, ReadCost


def taught(each_s: float, slope_s: float, steps: int = 60) -> PrefillCost:
    """A cost that has seen steps of 64 to 512 tokens which took each_s a token and slope_s a position."""
    cost, rng = PrefillCost(0.002), random.Random(1)
    for _ in range(steps):
        count, start = rng.randrange(64, 513), rng.randrange(0, 6_000)
        positions = count * (2 * start + count - 1) // 2
        seconds = each_s * count + slope_s * positions
        cost.observe(count, positions, seconds * rng.uniform(0.9, 1.1))
    return cost


def test_the_first_guess_knows_that_later_tokens_cost_more():
    cost = PrefillCost(0.001)
    assert cost.seconds(0, 512) == pytest.approx(0.52, rel=0.05)
    assert cost.seconds(8_192, 8_704) == pytest.approx(1.04, rel=0.05)


@pytest.mark.parametrize(("each_s", "slope_s"), [(0.0005, 2e-8), (0.02, 3e-6), (0.001, 0.0)])
def test_measured_steps_replace_the_guess(each_s: float, slope_s: float):
    cost = taught(each_s, slope_s)
    for first, last in ((0, 2_048), (2_048, 6_144)):
        true = each_s * (last - first) + slope_s * (first + last - 1) * (last - first) / 2
        assert cost.seconds(first, last) == pytest.approx(true, rel=0.15)


def test_alike_steps_give_a_rate_that_is_never_negative():
    cost = PrefillCost(0.001)
    for _ in range(100):
        cost.observe(512, 512 * 255, 0.9)
    assert cost.seconds(0, 512) == pytest.approx(0.9, rel=0.1)
    assert cost.seconds(0, 1) > 0
    assert cost.seconds(6_000, 6_512) >= cost.seconds(0, 512) * 0.9


def test_single_tokens_teach_nothing():
    cost = PrefillCost(0.001)
    before = cost.seconds(0, 1_000)
    for _ in range(50):
        cost.observe(8, 8_000, 5.0)
    assert cost.seconds(0, 1_000) == before


def test_reading_takes_its_bytes_at_the_rate_seen_lately():
    cost = ReadCost(bytes_per_s=100e6, latency_s=0.01, clock=lambda: 0.0)
    assert cost.seconds(50_000_000) == pytest.approx(0.51)
    for _ in range(40):
        cost.observe(200_000_000, 1.01)
    assert cost.seconds(200_000_000) == pytest.approx(1.01, rel=0.02)
    cost.observe(1_000, 10.0)
    assert cost.seconds(200_000_000) == pytest.approx(1.01, rel=0.02)


def test_a_read_out_of_time_is_believed_at_once_and_forgotten_in_minutes():
    now = [0.0]
    cost = ReadCost(bytes_per_s=100e6, latency_s=0.0, clock=lambda: now[0])
    cost.observe(100_000_000, 400.0, is_whole=False)
    assert cost.seconds(100_000_000) == pytest.approx(400, rel=0.01)
    # Not after a moment: who was just kept waiting would be again.
    now[0] = 10.0
    assert cost.seconds(100_000_000) > 250
    now[0] = 120.0
    assert cost.seconds(100_000_000) == pytest.approx(20, rel=0.01)
    now[0] = 1_200.0
    assert cost.seconds(100_000_000) == pytest.approx(1.0, rel=0.05)
    # That a slow read did not end in time says nothing good of a slower store.
    cost.observe(1_000, 10.0, is_whole=False)
    cost.observe(100_000_000, 2.0, is_whole=False)
    assert cost.seconds(100_000_000) > 10_000
