"""Memory lent to a store on this host, into which it puts what a restore reads.

Some files in a folder that both processes can open, on a file system in memory: some are filled while another is copied
out of. They are made once and used again and again, because taking memory from the system costs more than filling it.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import secrets
import time
from pathlib import Path

NUM_FILES = 2
_PREFIX = "fencepost-"
_SETTLED_S = 10.0


class LentFile:
    """One file, mapped into this process and locked by it; ``view`` are its bytes."""

    def __init__(self, directory: Path, num_bytes: int) -> None:
        """Raises OSError naming the folder."""
        self.name = f"{_PREFIX}{secrets.token_hex(12)}"
        self._path = directory / self.name
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Tells others that its owner lives.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Allocated, not only sized: a full file system must fail here and not at a write into the mapping.
            os.posix_fallocate(self._file, 0, num_bytes)
            self._memory = mmap.mmap(self._file, num_bytes)
        except OSError:
            self.remove()
            raise
        self.view = memoryview(self._memory)
        for offset in range(0, num_bytes, mmap.PAGESIZE):
            self._memory[offset] = 0

    def remove(self) -> None:
        """Take it off the file system; the memory goes when nobody has it mapped any more."""
        self._path.unlink(missing_ok=True)
        os.close(self._file)


class Staging:
    """The files. Owned by the event loop."""

    def __init__(self, directory: Path, num_bytes: int) -> None:
        """``num_bytes`` of all together. Raises OSError."""
        _remove_abandoned(directory)
        self._directory = directory
        self._is_closed = False
        self.file_bytes = num_bytes // NUM_FILES // mmap.PAGESIZE * mmap.PAGESIZE
        self._free: asyncio.Queue[LentFile] = asyncio.Queue()
        self._files = [LentFile(directory, self.file_bytes) for _ in range(NUM_FILES)]
        for file in self._files:
            self._free.put_nowait(file)

    async def take(self) -> LentFile:
        """Wait for a file that nobody writes to."""
        return await self._free.get()

    def give_back(self, file: LentFile, *, is_quiet: bool) -> None:
        """``is_quiet``: the store has said that it writes to it no more. Otherwise another file takes its place."""
        if self._is_closed:
            return
        if not is_quiet:
            self._files.remove(file)
            file.remove()
            file = LentFile(self._directory, self.file_bytes)
            self._files.append(file)
        self._free.put_nowait(file)

    def close(self) -> None:
        """Remove the files."""
        self._is_closed = True
        for file in self._files:
            file.remove()
        self._files = []


def _remove_abandoned(directory: Path) -> None:
    """Remove what engines left behind that ended without notice: files that nobody holds locked."""
    for path in directory.glob(f"{_PREFIX}*"):
        try:
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            # One that is just being made is not locked yet.
            if time.time() - os.fstat(file).st_mtime > _SETTLED_S:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
        except OSError:
            pass
        finally:
            os.close(file)
