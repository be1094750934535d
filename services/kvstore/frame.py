"""The envelope around every stored value, and the cursor that reads what is inside.

    magic 4 bytes | version u16 | zero u16 | body length u32 | body | CRC32C u32 over all before it

Integers are little-endian. Whatever comes back from disk is untrusted: a length or count is checked against the bytes
that are really there before anything is allocated, and nothing may follow the last field.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from services.kvstore.errors import DamageError

FRAME_VERSION = 1
_HEAD = struct.Struct("<4sHHI")
_CRC = struct.Struct("<I")
FRAME_BYTES = _HEAD.size + _CRC.size
"""What the envelope adds to a body."""


def seal(magic: bytes, *parts: bytes | memoryview) -> bytes:
    """Put the concatenation of ``parts`` into an envelope."""
    head = _HEAD.pack(magic, FRAME_VERSION, 0, sum(len(part) for part in parts))
    crc = crc32c(head)
    for part in parts:
        crc = crc32c(part, crc)
    return b"".join((head, *parts, _CRC.pack(crc)))


def unseal(magic: bytes, value: bytes) -> Cursor:
    """A cursor over the body. Raises DamageError."""
    if len(value) < FRAME_BYTES:
        raise DamageError("length")
    found_magic, version, zero, length = _HEAD.unpack_from(value)
    if found_magic != magic or version != FRAME_VERSION or zero != 0:
        raise DamageError("format")
    if length != len(value) - FRAME_BYTES:
        raise DamageError("length")
    view = memoryview(value)
    if crc32c(view[: -_CRC.size]) != _CRC.unpack_from(value, len(value) - _CRC.size)[0]:
        raise DamageError("checksum")
    return Cursor(view[_HEAD.size : -_CRC.size])


class Cursor:
    """Reads fields in order; raises DamageError("length") where they reach beyond the end."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._at = 0

    def take(self, size: int) -> memoryview:
        """The next ``size`` bytes, not copied."""
        end = self._at + size
        if end > len(self._view):
            raise DamageError("length")
        taken = self._view[self._at : end]
        self._at = end
        return taken

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        """The next fields of a fixed layout of integers."""
        return layout.unpack(self.take(layout.size))

    def flag(self) -> bool:
        """One byte, 0 or 1."""
        value = self.take(1)[0]
        if value > 1:
            raise DamageError("format")
        return value == 1

    def end(self) -> None:
        """Raises DamageError unless everything has been read."""
        if self._at != len(self._view):
            raise DamageError("length")
