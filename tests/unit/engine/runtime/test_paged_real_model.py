"""The paged runtime against plain forwards, on the default model."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.engine.runtime.scenarios import SCENARIOS
from tests.unit.engine.runtime.subject import Subject


@pytest.fixture(scope="module")
def subject(smollm2_dir: Path) -> Subject:
    return Subject.load(smollm2_dir, num_blocks=40, tolerance=1e-3)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_logits_equal_a_plain_forward(subject: Subject, scenario: Callable[[Subject], None]) -> None:
    subject.reset()
    scenario(subject)
