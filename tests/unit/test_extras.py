"""What each extra installs is what its part of the code asks for."""

import re
import tomllib
from pathlib import Path

import pytest

from services import extras

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("extra", extras.MODULES_BY_EXTRA)
def test_an_extra_declares_every_module_that_it_is_asked_for(extra: str):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {
        re.split(r"[<>=!~\[; ]", requirement)[0].replace("-", "_")
        for requirement in project["optional-dependencies"][extra]
    }
    assert set(extras.MODULES_BY_EXTRA[extra]) <= declared
