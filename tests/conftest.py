"""Fixtures that every kind of test may use."""

from pathlib import Path

import pytest

from services.models.progress import ProgressLines
from services.models.store import DEFAULT_MODEL, resolve


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The default model's directory, from the user's cache; the first run fetches and converts it."""
    return resolve(DEFAULT_MODEL, progress=ProgressLines())
