"""Vocabularies of real models, or a skipped test."""

from pathlib import Path

import pytest

from bench.fences.vocabularies import compiler
from services.engine.fence.compile import FenceCompiler


def fetched(name: str, smollm2_dir: Path) -> FenceCompiler:
    """Skips what ``make bench-data`` has not fetched."""
    try:
        return compiler(name, smollm2_dir)
    except FileNotFoundError as error:
        pytest.skip(str(error))
