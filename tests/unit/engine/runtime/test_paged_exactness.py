"""The paged runtime against plain forwards, on tiny random models."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.engine.runtime.scenarios import SCENARIOS
from tests.unit.engine.runtime.subject import Subject
from tests.unit.engine.runtime.tiny_models import TINY_MODELS


@pytest.fixture(scope="module", params=TINY_MODELS)
def subject(request: pytest.FixtureRequest, tiny_dirs: dict[str, Path]) -> Subject:
    return Subject.load(tiny_dirs[request.param], num_blocks=40, tolerance=2e-4)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_logits_equal_a_plain_forward(subject: Subject, scenario: Callable[[Subject], None]) -> None:
    subject.reset()
    scenario(subject)
