"""The guard has nothing against text that repeats for good reasons."""

import os
from pathlib import Path

import pytest

from services.engine.guard.lexicon import Lexicon
from services.engine.guard.loop_guard import LoopGuard, Verdict
from services.engine.guard.rules import Region
from tests.unit.engine.guard.conftest import Encode
from tests.unit.engine.guard.quiet_texts import WRITTEN, installed_files, text_of

NUM_FILES = 3000 if os.environ.get("FENCEPOST_SOAK") else 150


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
    objections: dict[Path, tuple[int, Verdict]] = {}
    num_files = num_tokens = 0
    for path in installed_files(NUM_FILES):
        token_ids = encode(text_of(path))
        num_files += 1
        num_tokens += len(token_ids)
        objection = first_objection(lexicon, token_ids, Region.PROSE)
        if objection is not None:
            objections[path] = objection
    print(f"{num_files} files, {num_tokens} tokens")
    assert objections == {}
    assert num_files == NUM_FILES
