"""Whole answers, driven out of fences by random and by adversarial tokens, and judged by independent parsers."""

import os
import random
from pathlib import Path

import pytest

from bench.fences.agent_tools import TOOLS
from bench.fences.driving import CASES, Case, drive, judge
from bench.fences.programs import Mode
from tests.unit.engine.fence.fetched import fetched

NUM_ANSWERS = 1_000 if os.environ.get("FENCEPOST_SOAK") else 7
"""For each dialect, vocabulary and mode."""


@pytest.mark.parametrize("mode", Mode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_whatever_is_sampled_is_canonical_and_fits_its_schemas(case: Case, mode: Mode, smollm2_dir: Path) -> None:
    fences = fetched(case.vocabulary, smollm2_dir)
    for number in range(NUM_ANSWERS):
        rng = random.Random(f"{case.id} {mode.value} {number}")
        tools, max_calls = TOOLS, None
        if mode is Mode.NAMED:
            name = rng.choice(list(TOOLS))
            tools, max_calls = {name: TOOLS[name]}, 1
        compiled = case.compile(fences, tools, mode, max_calls)
        answer = drive(case, compiled, rng, is_adversarial=number % 2 == 1)
        calls = judge(answer, case, tools, mode)
        assert calls
        assert max_calls is None or len(calls) == max_calls
