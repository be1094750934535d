"""The guard has nothing against text that repeats for good reasons."""

import os

import pytest

from services.engine.guard.lexicon import Lexicon
from services.engine.guard.loop_guard import LoopGuard, Verdict
from services.engine.guard.rules import Region
from tests.unit.engine.guard.encoding import Encode
from tests.unit.engine.guard.quiet_texts import WRITTEN, beginning_of, installed_files

IS_SOAK = bool(os.environ.get("FENCEPOST_SOAK"))
NUM_FILES = 3000 if IS_SOAK else 150
MAX_CHARS = 40_000 if IS_SOAK else 8_000
"""40,000 are an answer of some ten thousand tokens."""


def first_objection(lexicon: Lexicon, token_ids: list[int], region: Region) -> tuple[int, Verdict] | None:
    """Tokens until the guard intervenes, and how."""
    guard = LoopGuard(lexicon)
    quiet = guard.verdict
    for length, token_id in enumerate(token_ids, 1):
        guard.push(token_id, region)
        if guard.verdict != quiet:
            return length, guard.verdict
    return None


@pytest.mark.parametrize("region", [Region.PROSE, Region.ARGUMENT])
@pytest.mark.parametrize("name", WRITTEN)
def test_written_texts(name: str, region: Region, lexicon: Lexicon, encode: Encode):
    assert first_objection(lexicon, encode(WRITTEN[name]), region) is None


def test_files_of_the_installation(lexicon: Lexicon, encode: Encode):
    objections: dict[str, tuple[int, Verdict]] = {}
    num_files = 0
    for path in installed_files(NUM_FILES):
        num_files += 1
        objection = first_objection(lexicon, encode(beginning_of(path, MAX_CHARS)), Region.PROSE)
        if objection is not None:
            objections[path] = objection
    assert objections == {}
    assert num_files == NUM_FILES
