"""Whole answers, driven out of fences by random and by adversarial tokens, and judged by independent parsers."""

import os
import random
from pathlib import Path

import numpy as np
import pytest

from bench.fences.agent_tools import TOOLS
from bench.fences.driving import CASES, Case, drive, judge
from bench.fences.forcing import is_legal
from bench.fences.programs import Mode
from services.engine.fence.allowed import Allowed, Mask
from services.engine.fence.machine import Fence
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


@pytest.mark.parametrize("case", CASES[::2], ids=lambda case: case.id)
def test_a_draft_on_a_clone_changes_nothing(case: Case, smollm2_dir: Path) -> None:
    fences = fetched(case.vocabulary, smollm2_dir)
    compiled = case.compile(fences, TOOLS, Mode.REQUIRED)
    rng = random.Random(case.id)
    ids = drive(case, compiled, rng, is_adversarial=True).ids
    other = drive(case, compiled, rng, is_adversarial=True).ids
    fence = Fence(compiled)
    for position, token_id in enumerate(ids):
        before = fence.allowed()
        draft = fence.clone()
        for drafted in [token_id, *other[position : position + 4]]:
            if not is_legal(draft, drafted):
                break
            assert draft.push(drafted)
        assert same(fence.allowed(), before)
        twin = fence.clone()
        assert fence.push(token_id)
        assert twin.push(token_id)
        assert same(fence.allowed(), twin.allowed())
        assert (fence.region, fence.forced()) == (twin.region, twin.forced())
    assert fence.is_finishable


def same(one: Allowed, other: Allowed) -> bool:
    if isinstance(one, Mask) and isinstance(other, Mask):
        return np.array_equal(one.row, other.row)
    return one == other
