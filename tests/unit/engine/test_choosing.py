"""With a draft a choice's tokens are those without: any draft, any sampling."""

from __future__ import annotations

import itertools
import os
import random
from array import array
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.choosing import TokenChooser, choose_tokens, new_chooser
from services.engine.guard.lexicon import Lexicon
from services.engine.request import Request, Sampled, SamplingParams
from services.engine.sampling import Sampler
from services.engine.thinking import Thinking, ThinkingMarks

VOCABULARY = 6

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([None, 1, 3]),
    top_p=st.sampled_from([0.7, 1.0]),
    presence_penalty=st.sampled_from([0.0, 0.9]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.sampled_from([{}, {2: 1.5}]),
    logprobs=st.sampled_from([None, 0, 2]),
    seed=st.integers(0, 3),
)


@cache
def logits_behind(tokens: tuple[int, ...]) -> torch.Tensor:
    """A model: any function of the tokens."""
    return torch.tensor(np.random.default_rng([*tokens, 7]).normal(size=VOCABULARY) * 2, dtype=torch.float32)


def chooser_of(params: SamplingParams, choice: int) -> TokenChooser:
    return TokenChooser(Sampler(params, np.array([1, 2, 3], dtype="<i4").tobytes(), choice))


def plain(params: SamplingParams, choice: int, count: int) -> list[Sampled]:
    chooser, out = chooser_of(params, choice), list[Sampled]()
    for _ in range(count):
        logits = logits_behind((choice, *(one.token_id for one in out)))
        out += choose_tokens(logits[None], [chooser], [()])[0]
    return out


@settings(max_examples=200 if os.environ.get("FENCEPOST_SOAK") else 25)
@given(st.lists(PARAMS, min_size=1, max_size=3), st.integers(0, 10**6))
def test_drafts_change_nothing(all_params: list[SamplingParams], seed: int):
    rng = random.Random(seed)
    expected = [plain(params, choice, 16) for choice, params in enumerate(all_params)]
    choosers = [chooser_of(params, choice) for choice, params in enumerate(all_params)]
    outputs = [list[Sampled]() for _ in choosers]
    while any(len(output) < 10 for output in outputs):
        drafts: list[tuple[int, ...]] = []
        for output, tokens in zip(outputs, expected, strict=True):
            right = [one.token_id for one in tokens[len(output) :][: rng.randint(0, 4)]]
            drafts.append((*right, *(rng.randint(0, VOCABULARY - 1) for _ in range(rng.randint(0, 3)))))
        rows = [
            logits_behind((choice, *(one.token_id for one in output), *draft[:position]))
            for choice, (output, draft) in enumerate(zip(outputs, drafts, strict=True))
            for position in range(1 + len(draft))
        ]
        for output, draft, chosen in zip(
            outputs, drafts, choose_tokens(torch.stack(rows), choosers, drafts), strict=True
        ):
            ids = [one.token_id for one in chosen]
            agreed = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ids, draft, strict=False))
            assert len(ids) == 1 + len(list(agreed))
            output += chosen
    for output, tokens in zip(outputs, expected, strict=True):
        assert close(output[:10], tokens[:10])


def close(one: list[Sampled], other: list[Sampled]) -> bool:
    """Log-probabilities of several rows at once may be summed in another order."""

    def numbers(sampled: Sampled) -> list[float]:
        found = sampled.logprobs
        return [] if found is None else [found.sampled, *(value for _, value in found.top)]

    assert [sampled.token_id for sampled in one] == [sampled.token_id for sampled in other]
    return all(np.allclose(numbers(left), numbers(right), atol=1e-5) for left, right in zip(one, other, strict=True))


def test_a_draft_ends_at_its_first_wrong_token_and_the_drawn_one_takes_its_place():
    logits = torch.eye(4)[[1, 2, 3, 0]]
    chooser = TokenChooser(Sampler(SamplingParams(temperature=0)))
    for draft, ids in {(1, 2, 3): [1, 2, 3, 0], (1, 0, 3): [1, 2], (0, 2, 3): [1]}.items():
        (chosen,) = choose_tokens(logits, [chooser], [draft])
        assert [one.token_id for one in chosen] == ids


LEXICON = Lexicon([b" a", b" b", b" c", b"<think>", b"</think>", b" d"])
MARKS = ThinkingMarks(start_id=3, end_id=4)


def guarded(prompt: list[int] | None = None, marks: ThinkingMarks = MARKS, temperature: float = 0.0) -> TokenChooser:
    ids = np.array(prompt or [1, 2], dtype="<i4").tobytes()
    params = SamplingParams(temperature=temperature, seed=1)
    request = Request(cache_scope="s", token_ids=ids, sampling=params, thinking=marks)
    return new_chooser(request, 0, LEXICON)


def outputs(chooser: TokenChooser, logits: torch.Tensor, count: int, draft: tuple[int, ...] = ()) -> list[Sampled]:
    """What a model says that wants the same whatever came before."""
    found: list[Sampled] = []
    while len(found) < count and not (found and found[-1].is_loop):
        found += choose_tokens(logits.repeat(1 + len(draft), 1), [chooser], [draft])[0]
    return found


STUBBORN = torch.tensor([5.0, 4.0, 1.0, -9.0, -9.0, 0.0])


def test_a_loop_loses_its_next_token_first_and_then_ends():
    found = outputs(guarded(), STUBBORN, 2_000)
    ids = [one.token_id for one in found]
    # Whatever followed before is masked, so each time it is another one.
    assert [token_id for token_id in ids if token_id] == [1, 2, 5]
    assert [one.is_loop for one in found] == [False] * (len(found) - 1) + [True]
    assert len(found) < 400


def test_without_the_guard_a_loop_goes_on():
    request = Request(cache_scope="s", token_ids=b"\1\0\0\0", sampling=SamplingParams(temperature=0), loop_guard=False)
    found = outputs(new_chooser(request, 0, LEXICON), STUBBORN, 2_000)
    assert {one.token_id for one in found} == {0}
    assert not any(one.is_loop for one in found)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("draft", [(0,), (0, 0, 0, 0, 0), (0, 1, 0)])
def test_the_guard_sees_drafts_token_by_token(temperature: float, draft: tuple[int, ...]):
    plain = outputs(guarded(temperature=temperature), STUBBORN, 600)
    drafted = outputs(guarded(temperature=temperature), STUBBORN, 600, draft)
    assert drafted[: len(plain)] == plain[: len(drafted)]
    assert drafted[-1].is_loop == plain[-1].is_loop


def test_a_loop_in_the_thinking_closes_it_and_the_answer_goes_on():
    found = [one.token_id for one in outputs(guarded([1, 3]), STUBBORN, 500)]
    assert found.count(4) == 1
    # Behind it evidence is gathered anew.
    assert len(found) == 500
    assert found.index(4) < 400


def test_thinking_is_closed_when_its_budget_is_spent():
    for prompt, first in (([1, 3], 0), ([1, 3, 2, 4, 2], None), ([3, 1, 2], 0)):
        chooser = guarded(prompt, ThinkingMarks(3, 4, budget_tokens=7))
        found = [one.token_id for one in outputs(chooser, torch.tensor([1.0, 2.0, 3.0, 0.0, 0.0, 0.0]), 20)]
        expected = [2] * 20 if first is None else [2] * 7 + [4] + [2] * 12
        assert found == expected


@given(st.lists(st.sampled_from([0, 1, 3, 4, 256, 257, 3 << 8, 4 << 16, 4 << 24]), max_size=12))
def test_a_prompts_last_tag_decides_whether_thinking_is_open(ids: list[int]):
    tags = [token_id for token_id in ids if token_id in (3, 4)]
    thinking = Thinking(ThinkingMarks(3, 4), array("i", ids).tobytes())
    assert thinking.is_open == (tags[-1:] == [3])


def test_thinking_that_the_output_opens_counts_too():
    thinking = Thinking(ThinkingMarks(3, 4, budget_tokens=2), b"\1\0\0\0")
    for token_id, is_open, is_spent in ((1, False, False), (3, True, False), (1, True, False), (1, True, True)):
        thinking.push(token_id)
        assert (thinking.is_open, thinking.is_spent) == (is_open, is_spent)
    thinking.push(4)
    assert (thinking.is_open, thinking.is_spent) == (False, False)
