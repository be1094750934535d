import numpy as np
import pytest
import torch

from services.engine.request import SamplingParams
from services.engine.sampling import Sampler, sample


def draws(params: SamplingParams, logits: np.ndarray, count: int) -> list[int]:
    sampler = Sampler(params)
    return [sampler.draw(logits.astype(np.float32)) for _ in range(count)]


def test_equal_seeds_give_equal_draws_whatever_else_is_in_the_batch():
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(50, 3, 200, generator=generator)
    alone, mixed = Sampler(SamplingParams(seed=7)), Sampler(SamplingParams(seed=7))
    others = [Sampler(SamplingParams(seed=1)), Sampler(SamplingParams(temperature=0))]
    for step in rows:
        assert sample(step[:1], [alone]) == sample(step, [mixed, *others])[:1]


def test_temperature_zero_takes_the_likeliest():
    logits = torch.randn(4, 100)
    assert sample(logits, [Sampler(SamplingParams(temperature=0))] * 4) == logits.argmax(-1).tolist()


def test_frequencies_follow_the_probabilities():
    probabilities = np.array([0.5, 0.3, 0.15, 0.05])
    counts = np.bincount(draws(SamplingParams(seed=3), np.log(probabilities), 20_000), minlength=4) / 20_000
    assert np.abs(counts - probabilities).max() < 0.015


def test_temperature_sharpens():
    logits = np.log([0.6, 0.4])
    cool = np.mean(draws(SamplingParams(seed=3, temperature=0.5), logits, 5_000))
    assert cool == pytest.approx(0.16 / 0.52, abs=0.03)


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    logits = np.log([0.1, 0.4, 0.2, 0.3])
    assert set(draws(SamplingParams(seed=5, top_p=0.65), logits, 500)) == {1, 3}
    assert set(draws(SamplingParams(seed=5, top_p=0.75), logits, 500)) == {1, 2, 3}
    assert set(draws(SamplingParams(seed=5, top_p=1e-6), logits, 50)) == {1}


def test_top_p_beyond_the_sorted_head_is_exact():
    logits = np.zeros(4096)
    seen = set(draws(SamplingParams(seed=5, top_p=0.5), logits, 3_000))
    assert max(seen) < 2048
    assert len(seen) > 1024


def test_top_k_bounds_the_choice_and_top_p_applies_inside_it():
    logits = np.log([0.1, 0.4, 0.2, 0.3])
    assert set(draws(SamplingParams(seed=5, top_k=3), logits, 500)) == {1, 2, 3}
    assert set(draws(SamplingParams(seed=5, top_k=2, top_p=0.5), logits, 200)) == {1}
