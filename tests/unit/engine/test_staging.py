"""Memory lent to a store."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from services.engine.staging import Staging


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def test_two_files_are_taken_in_turn_and_removed_at_the_end(tmp_path: Path):
    staging = Staging(tmp_path, 64 * 1024)
    first, second = await staging.take(), await staging.take()
    assert files(tmp_path) == {first.name, second.name}
    third = asyncio.create_task(staging.take())
    await asyncio.sleep(0)
    assert not third.done()
    staging.give_back(first, is_quiet=True)
    assert await third is first
    staging.close()
    assert not files(tmp_path)


async def test_a_file_that_may_still_be_written_to_is_replaced(tmp_path: Path):
    staging = Staging(tmp_path, 64 * 1024)
    first, second = await staging.take(), await staging.take()
    staging.give_back(first, is_quiet=False)
    other = await staging.take()
    assert other.name not in (first.name, second.name)
    assert files(tmp_path) == {second.name, other.name}
    staging.close()
    assert not files(tmp_path)


def test_what_a_killed_engine_left_is_removed_and_what_is_in_use_stays(tmp_path: Path):
    staging = Staging(tmp_path, 64 * 1024)
    for name, age_s in (("fencepost-left", 60.0), ("fencepost-new", 0.0), ("other", 60.0)):
        (tmp_path / name).write_bytes(b"x")
        then = time.time() - age_s
        os.utime(tmp_path / name, (then, then))
    for name in files(tmp_path):
        if name not in ("fencepost-new", "other"):
            os.utime(tmp_path / name, (1.0, 1.0))
    in_use = files(tmp_path) - {"fencepost-left"}
    other = Staging(tmp_path, 64 * 1024)
    assert "fencepost-left" not in files(tmp_path)
    assert in_use < files(tmp_path)
    other.close()
    staging.close()
    assert files(tmp_path) == {"fencepost-new", "other"}
