"""Keys and values of records; docs/kv-format.md describes every byte.

A record is two rows under one key, always written together: a small head (family ``index``) by which records are
counted, listed and swept, and a body (family ``records``) that holds the value and can be read without the head.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from services.kvstore.errors import DamageError
from services.kvstore.frame import FRAME_BYTES, seal, unseal

HEAD_PREFIX = b"R"
_HEAD_MAGIC, _BODY_MAGIC = b"FPrh", b"FPrb"
_KEY = struct.Struct(">BH")
_HEAD = struct.Struct("<QI")
_BODY = struct.Struct("<QHI")


class Kind(IntEnum):
    """What a record is for."""

    RESPONSE = 1
    REPLAY = 2


@dataclass(frozen=True, slots=True)
class Head:
    """When a record expires (milliseconds since 1970) and the length of its value."""

    expires_ms: int
    value_bytes: int


def record_prefix(kind: Kind, tenant: str) -> bytes:
    """What the keys of one tenant's records of a kind begin with; no other key does."""
    owner = tenant.encode()
    return _KEY.pack(kind, len(owner)) + owner


def head_key(record_key: bytes) -> bytes:
    """Key in the family ``index``; in ``records`` it is the record key itself."""
    return HEAD_PREFIX + record_key


def encode_head(head: Head) -> bytes:
    """Value of the head row."""
    return seal(_HEAD_MAGIC, _HEAD.pack(head.expires_ms, head.value_bytes))


def decode_head(value: bytes) -> Head:
    """Raises DamageError."""
    cursor = unseal(_HEAD_MAGIC, value)
    expires_ms, value_bytes = cursor.fields(_HEAD)
    cursor.end()
    return Head(expires_ms, value_bytes)


def encode_body(record_key: bytes, expires_ms: int, value: bytes) -> bytes:
    """Value of the body row."""
    return seal(_BODY_MAGIC, _BODY.pack(expires_ms, len(record_key), len(value)), record_key, value)


def decode_body(record_key: bytes, stored: bytes) -> tuple[int, bytes]:
    """(milliseconds since 1970 at which it expires, value). Raises DamageError."""
    cursor = unseal(_BODY_MAGIC, stored)
    expires_ms, key_bytes, value_bytes = cursor.fields(_BODY)
    key, value = bytes(cursor.take(key_bytes)), bytes(cursor.take(value_bytes))
    cursor.end()
    if key != record_key:
        raise DamageError("format")
    return expires_ms, value


def record_bytes(record_key: bytes, value_bytes: int) -> int:
    """Stored bytes of a record: both rows and their keys."""
    head = len(HEAD_PREFIX) + len(record_key) + FRAME_BYTES + _HEAD.size
    return head + 2 * len(record_key) + FRAME_BYTES + _BODY.size + value_bytes
