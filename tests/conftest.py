"""Fixtures that every kind of test may use."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from services.models.progress import ProgressLines
from services.models.store import DEFAULT_MODEL, resolve

# A busy machine is no failure: timings are measured in bench/, never asserted.
settings.register_profile("fencepost", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fencepost")


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The default model's directory, from the user's cache; the first run fetches and converts it."""
    return resolve(DEFAULT_MODEL, progress=ProgressLines())
