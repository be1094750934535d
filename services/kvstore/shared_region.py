"""Memory that a reader on the same host lends to a Read, so that state need not travel through a socket.

It is a file in a folder both can open, on a file system in memory. The store writes it with pwrite: whatever the reader
does to its file meanwhile, the store sees an error at worst.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from services.kvstore.errors import InvalidRequestError, NoSharedMemoryError

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class SharedRegion:
    """A part of a reader's file, opened for writing. Any thread may write; close it."""

    def __init__(self, directory: Path | None, name: str, offset: int, length: int) -> None:
        """Raises NoSharedMemoryError where the file cannot be used, InvalidRequestError for a bad name."""
        if not _NAME.fullmatch(name):
            raise InvalidRequestError("region.name: 1 to 64 letters, digits, '-' and '_'")
        if directory is None:
            raise NoSharedMemoryError("this store has no folder of shared memory")
        self.length = length
        self._offset = offset
        try:
            self._file = os.open(directory / name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise NoSharedMemoryError(f"{name}: {error.strerror}") from None
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode) or offset + length > found.st_size:
            self.close()
            raise NoSharedMemoryError(f"{name}: not a file of {offset + length} bytes")

    def write(self, offset: int, data: memoryview) -> None:
        """Put ``data`` at ``offset`` of the region. Raises NoSharedMemoryError."""
        assert offset + len(data) <= self.length
        try:
            while data:
                written = os.pwrite(self._file, data, self._offset + offset)
                data, offset = data[written:], offset + written
        except OSError as error:
            raise NoSharedMemoryError(str(error.strerror)) from None

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)
