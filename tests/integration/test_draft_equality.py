"""With and without drafts the default model's tokens are the same, greedy and seeded, and a copy takes few steps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.engine.request import SamplingParams
from tests.integration.step_loop import QUESTIONS, StepLoop

MAX_TOKENS = 120 if os.environ.get("FENCEPOST_SOAK") else 16
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0, max_tokens=MAX_TOKENS),
    "seeded": SamplingParams(temperature=0.7, top_p=0.95, seed=3, frequency_penalty=0.1, max_tokens=MAX_TOKENS),
}


@pytest.fixture(scope="module")
def loop(smollm2_dir: Path) -> StepLoop:
    return StepLoop(smollm2_dir)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_four_kinds_of_answers_at_once_are_those_without_drafts(loop: StepLoop, sampling: SamplingParams):
    prompts = [loop.prompt(*question) for question in QUESTIONS.values()]
    drafted = loop.play(prompts, sampling, drafts=True)
    plain = loop.play(prompts, sampling, drafts=False)
    assert [s.token_ids for s in drafted.sequences] == [s.token_ids for s in plain.sequences]
    assert [s.finish_reason for s in drafted.sequences] == [s.finish_reason for s in plain.sequences]
    assert sum(s.num_drafted for s in drafted.sequences) > 0 == sum(s.num_drafted for s in plain.sequences)
    assert drafted.num_steps <= plain.num_steps


def test_a_copy_alone_takes_few_steps(loop: StepLoop):
    # The file is no longer: what the model says behind it is no copy.
    sampling = SamplingParams(temperature=0, max_tokens=min(MAX_TOKENS, 40))
    prompts = [loop.prompt(*QUESTIONS["echo"])]
    drafted = loop.play(prompts, sampling, drafts=True)
    plain = loop.play(prompts, sampling, drafts=False)
    (one,), (other,) = drafted.sequences, plain.sequences
    assert one.token_ids == other.token_ids
    assert plain.num_steps == other.num_output
    assert drafted.num_steps <= plain.num_steps // 2
    assert drafted.num_steps + one.num_accepted == one.num_output
