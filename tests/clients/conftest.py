"""The scripted model's directory."""

from pathlib import Path

import pytest

from tests.clients.stack import write_model


@pytest.fixture(scope="session")
def model(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without weights that matter: what it says is scripted."""
    return write_model(tmp_path_factory.mktemp("model") / "scripted", smollm2_dir)
