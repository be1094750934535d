"""Fixtures of the runtime's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.unit.engine.runtime.tiny_models import TINY_MODELS, save_tiny


@pytest.fixture(scope="session")
def tiny_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Model directories by kind; read only."""
    dirs = {kind: tmp_path_factory.mktemp(kind) for kind in TINY_MODELS}
    for kind, model_dir in dirs.items():
        save_tiny(kind, model_dir)
    return dirs


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Operators this small lose by being split, and lose much when the cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
