"""The paged runtime against plain forwards, on tiny random models."""

from collections.abc import Callable
from pathlib import Path

import pytest

from services.engine.runtime.fused import FusedDecoder
from tests.unit.engine.runtime.scenarios import SCENARIOS
from tests.unit.engine.runtime.subject import Subject
from tests.unit.engine.runtime.tiny_models import TINY_MODELS


@pytest.fixture(scope="module", params=[(kind, weights) for kind in TINY_MODELS for weights in ("fp32", "fp16")])
def subject(request: pytest.FixtureRequest, tiny_dirs: dict[str, Path]) -> Subject:
    kind, weights = request.param
    # A plain forward in float32 is itself up to 1e-4 off one in float64.
    return Subject.load(tiny_dirs[kind], num_blocks=40, tolerance=2e-4, weights=weights)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_logits_equal_a_plain_forward(subject: Subject, scenario: Callable[[Subject], None]) -> None:
    subject.reset()
    scenario(subject)


def test_the_models_are_computed_by_the_fused_decoder(subject: Subject) -> None:
    assert isinstance(subject.runtime._model.network, FusedDecoder)
