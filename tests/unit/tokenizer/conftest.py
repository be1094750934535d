"""Fixtures of the tokenizer's unit tests."""

from pathlib import Path

import pytest

from services.tokenizer.models import ServedModel, load_model
from tests.unit.tokenizer.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def tiny(tiny_dir: Path) -> ServedModel:
    return load_model(tiny_dir, None, (), None)
