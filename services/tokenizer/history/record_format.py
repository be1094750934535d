"""A record as bytes, in the kvstore and in capsules.

    "FPtr" | version u16 | zero u16 | text | ids | content | reasoning | number of calls u32 | calls

    text, content, reasoning, and a call's id, name and arguments:  length u32 | UTF-8
    ids:   number u32 | int32 each, not negative
    call:  id | name | arguments | is_custom u8

Integers are little-endian. What is read is untrusted: a length or number is checked against the bytes that are really
there before anything is allocated, and nothing may follow the last field.
"""

import struct

import numpy as np

from services.tokenizer.conversation import Call
from services.tokenizer.history.record import Record
from services.tokenizer.rope.prompt_text import TokenIds

VERSION = 1
MAX_RECORD_BYTES = 16 * 2**20
"""Longer records are neither kept nor read."""

_MAGIC = b"FPtr"
_HEAD = struct.Struct("<4sHH")
_COUNT = struct.Struct("<I")
_CALL_BYTES = 3 * _COUNT.size + 1
"""The shortest call."""


class RecordFormatError(Exception):
    """The bytes are no record of this version. Whoever reads goes on without the record."""


def encode_record(record: Record) -> bytes:
    """Equal records give equal bytes."""
    parts = [_HEAD.pack(_MAGIC, VERSION, 0), _text(record.text)]
    parts += [_COUNT.pack(len(record.ids)), np.ascontiguousarray(record.ids, dtype="<i4").tobytes()]
    parts += [_text(record.content), _text(record.reasoning), _COUNT.pack(len(record.calls))]
    for call in record.calls:
        parts += [_text(call.call_id), _text(call.name), _text(call.arguments), bytes([call.is_custom])]
    return b"".join(parts)


def decode_record(data: bytes) -> Record:
    """Raises RecordFormatError."""
    if len(data) > MAX_RECORD_BYTES:
        raise RecordFormatError("length")
    cursor = _Cursor(data)
    if _HEAD.unpack(cursor.take(_HEAD.size)) != (_MAGIC, VERSION, 0):
        raise RecordFormatError("format")
    text, ids = cursor.text(), cursor.ids()
    content, reasoning = cursor.text(), cursor.text()
    num_calls = cursor.count(_CALL_BYTES)
    calls = tuple(Call(cursor.text(), cursor.text(), cursor.text(), cursor.flag()) for _ in range(num_calls))
    cursor.end()
    return Record(text, ids, content, reasoning, calls)


def _text(text: str) -> bytes:
    data = text.encode()
    return _COUNT.pack(len(data)) + data


class _Cursor:
    """Reads fields in order."""

    def __init__(self, data: bytes) -> None:
        self._view = memoryview(data)
        self._at = 0

    def take(self, num_bytes: int) -> memoryview:
        end = self._at + num_bytes
        if end > len(self._view):
            raise RecordFormatError("length")
        taken = self._view[self._at : end]
        self._at = end
        return taken

    def count(self, item_bytes: int) -> int:
        """A number of items of at least ``item_bytes`` each, which there is room for."""
        count: int = _COUNT.unpack(self.take(_COUNT.size))[0]
        if count * item_bytes > len(self._view) - self._at:
            raise RecordFormatError("length")
        return count

    def text(self) -> str:
        try:
            return str(self.take(self.count(1)), "utf-8")
        except UnicodeDecodeError:
            raise RecordFormatError("text") from None

    def ids(self) -> TokenIds:
        ids = np.frombuffer(bytes(self.take(4 * self.count(4))), dtype="<i4")
        if ids.size and ids.min() < 0:
            raise RecordFormatError("ids")
        return ids

    def flag(self) -> bool:
        value = self.take(1)[0]
        if value > 1:
            raise RecordFormatError("flag")
        return value == 1

    def end(self) -> None:
        if self._at != len(self._view):
            raise RecordFormatError("length")
