"""The folder in memory through which ``fencepost up`` lets its engines and its kvstore exchange state."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_STAGING_BYTES = 64 * 2**20
"""What an engine lends, by default."""


@contextmanager
def memory_dir(data_dir: Path, num_engines: int, root: Path = Path("/dev/shm")) -> Generator[Path | None]:
    """A folder in memory that is this user's alone; None where the system has none, or too little of it.

    ``data_dir`` is in use by one stack at a time, and so is the folder that is named after it.
    """
    path = root / f"fencepost-{hashlib.blake2b(str(data_dir.resolve()).encode(), digest_size=8).hexdigest()}"
    try:
        if path.exists() and path.stat().st_uid == os.getuid():
            shutil.rmtree(path)
        has_room = shutil.disk_usage(root).free >= 2 * num_engines * _STAGING_BYTES
        path.mkdir(mode=0o700)
    except OSError:
        yield None
        return
    try:
        yield path if has_room else None
    finally:
        shutil.rmtree(path, ignore_errors=True)
