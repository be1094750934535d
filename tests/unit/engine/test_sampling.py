import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.engine.choosing import TokenChooser, choose_tokens
from services.engine.request import Sampled, SamplingParams
from services.engine.sampling import Sampler


def draws(params: SamplingParams, logits: np.ndarray, count: int) -> list[int]:
    sampler = Sampler(params)
    return [sampler.draw(logits.astype(np.float32)) for _ in range(count)]


def ids(sampled: list[Sampled]) -> list[int]:
    return [one.token_id for one in sampled]


def sample(logits: torch.Tensor, samplers: list[Sampler]) -> list[Sampled]:
    choosers = [TokenChooser(sampler) for sampler in samplers]
    return [one for (one,) in choose_tokens(logits, choosers, [()] * len(choosers))]


def packed(token_ids: list[int]) -> bytes:
    return np.array(token_ids, dtype="<i4").tobytes()


def test_equal_seeds_give_equal_draws_whatever_else_is_in_the_batch():
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(50, 3, 200, generator=generator)
    alone, mixed = Sampler(SamplingParams(seed=7)), Sampler(SamplingParams(seed=7))
    others = [Sampler(SamplingParams(seed=1)), Sampler(SamplingParams(temperature=0))]
    for step in rows:
        assert sample(step[:1], [alone]) == sample(step, [mixed, *others])[:1]


def test_temperature_zero_takes_the_likeliest():
    logits = torch.randn(4, 100)
    assert ids(sample(logits, [Sampler(SamplingParams(temperature=0))] * 4)) == logits.argmax(-1).tolist()


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


def test_min_p_drops_what_is_too_far_below_the_likeliest():
    logits = np.log([0.1, 0.4, 0.2, 0.3])
    assert set(draws(SamplingParams(seed=5, min_p=0.4), logits, 500)) == {1, 2, 3}
    assert set(draws(SamplingParams(seed=5, min_p=0.6), logits, 500)) == {1, 3}
    assert set(draws(SamplingParams(seed=5, min_p=1), logits, 50)) == {1}
    assert set(draws(SamplingParams(seed=5, min_p=0.5, top_k=2), logits, 500)) == {1, 3}


def test_choices_draw_independently_and_the_first_as_if_alone():
    logits = np.zeros(1000, dtype=np.float32)

    def drawn(sampler: Sampler) -> list[int]:
        return [sampler.draw(logits) for _ in range(20)]

    params = SamplingParams(seed=2**64 - 1, choices=3)
    choices = [drawn(Sampler(params, choice=choice)) for choice in range(3)]
    assert choices[0] == drawn(Sampler(SamplingParams(seed=2**64 - 1)))
    assert choices == [drawn(Sampler(params, choice=choice)) for choice in range(3)]
    assert choices[0] != choices[1] != choices[2] != choices[0]


def naive(logits: list[float], params: SamplingParams, prompt: list[int], output: list[int]) -> list[float]:
    """Each definition as its authors wrote it down, token by token."""
    adjusted = list(logits)
    for token in range(len(logits)):
        if token in prompt or token in output:
            penalty = params.repetition_penalty
            adjusted[token] = adjusted[token] * penalty if adjusted[token] < 0 else adjusted[token] / penalty
        count = output.count(token)
        adjusted[token] -= count * params.frequency_penalty + (count > 0) * params.presence_penalty
        adjusted[token] += params.logit_bias.get(token, 0)
    return adjusted


def naive_support(logits: list[float], params: SamplingParams) -> set[int]:
    weights = [math.exp((logit - max(logits)) / params.temperature) for logit in logits]
    kept = sorted(range(len(logits)), key=lambda token: (-weights[token], token))[: params.top_k]
    total, reached, nucleus = sum(weights[token] for token in kept), 0.0, set[int]()
    for token in kept:
        if reached >= params.top_p:
            break
        nucleus.add(token)
        reached += weights[token] / total
    return {token for token in nucleus if weights[token] >= params.min_p * max(weights)}


SIZE = 8
# Steps of a quarter: no two ways to add or compare them differ by rounding alone.
QUARTERS = st.integers(-12, 12).map(lambda n: n / 4)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    top_p=st.sampled_from([0.3, 0.7, 1.0]),
    top_k=st.none() | st.integers(1, SIZE + 2),
    min_p=st.sampled_from([0.0, 0.2, 0.9]),
    presence_penalty=st.sampled_from([-2.0, 0.0, 0.5]),
    frequency_penalty=st.sampled_from([-0.5, 0.0, 2.0]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 2.0]),
    logit_bias=st.dictionaries(st.integers(0, SIZE - 1), QUARTERS, max_size=3),
    seed=st.integers(0, 2**64 - 1),
)
TOKENS = st.lists(st.integers(0, SIZE - 1), max_size=5)


@given(PARAMS, st.lists(QUARTERS, min_size=SIZE, max_size=SIZE), TOKENS)
def test_tokens_come_from_where_the_definitions_allow(params: SamplingParams, logits: list[float], prompt: list[int]):
    sampler = Sampler(params, packed(prompt))
    output: list[int] = []
    for _ in range(6):
        adjusted = naive(logits, params, prompt, output)
        token = sampler.draw(np.array(logits, dtype=np.float32))
        if params.temperature == 0 or params.top_k == 1:
            assert adjusted[token] == max(adjusted)
        else:
            assert token in naive_support(adjusted, params)
        output.append(token)


def test_of_equal_tokens_at_the_cut_those_with_the_lowest_ids_stay():
    flat = np.zeros(300)
    assert set(draws(SamplingParams(seed=1, top_k=3), flat, 100)) == {0, 1, 2}
    raised = np.where(np.arange(300) == 250, 1.0, 0.0)
    assert set(draws(SamplingParams(seed=1, top_k=3), raised, 200)) == {0, 1, 250}


def test_a_bias_of_a_hundred_decides():
    logits = np.array([3.0, 1.0, 2.0])
    assert set(draws(SamplingParams(seed=1, logit_bias={1: 100.0}), logits, 50)) == {1}
    assert set(draws(SamplingParams(seed=1, logit_bias={0: -100.0}), logits, 200)) == {1, 2}
    assert draws(SamplingParams(temperature=0, logit_bias={0: -100.0}), logits, 1) == [2]


def test_penalties_spread_a_greedy_output():
    flat = np.array([1.0, 0.9, 0.8, 0.7])
    assert draws(SamplingParams(temperature=0, frequency_penalty=1), flat, 8) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert Counter(draws(SamplingParams(temperature=0, presence_penalty=1), flat, 4)) == Counter(range(4))
    again = Sampler(SamplingParams(temperature=0, repetition_penalty=2), packed([0, 1]))
    assert [again.draw(flat.astype(np.float32)) for _ in range(3)] == [2, 3, 0]


def test_log_probabilities_are_the_models_own():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(3))
    expected = torch.log_softmax(logits, -1)
    samplers = [
        Sampler(SamplingParams(temperature=0, logprobs=3)),
        Sampler(SamplingParams(temperature=0)),
        Sampler(SamplingParams(temperature=0.1, seed=1, logprobs=0, logit_bias={7: 100.0})),
        Sampler(SamplingParams(temperature=0, logprobs=20)),
    ]
    first, plain, biased, many = sample(logits, samplers)
    assert plain.logprobs is None
    assert first.logprobs is not None
    assert biased.logprobs is not None
    assert many.logprobs is not None
    assert first.logprobs.sampled == pytest.approx(float(expected[0].max()))
    assert [token for token, _ in first.logprobs.top] == logits[0].topk(3).indices.tolist()
    assert [value for _, value in first.logprobs.top] == pytest.approx(expected[0].topk(3).values.tolist())
    assert biased.token_id == 7
    assert biased.logprobs.sampled == pytest.approx(float(expected[2, 7]))
    assert biased.logprobs.top == ()
    assert len(many.logprobs.top) == 20


def test_more_alternatives_than_the_vocabulary_has_are_all():
    (sampled,) = sample(torch.zeros(1, 4), [Sampler(SamplingParams(temperature=0, logprobs=20))])
    assert sampled.logprobs is not None
    assert sorted(token for token, _ in sampled.logprobs.top) == [0, 1, 2, 3]
