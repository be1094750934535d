"""Capsules: an answer's thinking, which the client keeps for us and can neither read nor change.

They travel as ``encrypted_content`` and ``signature``, for clients that send back nothing else of the thinking.

    version u8 | length of key id u8 | key id | nonce, 12 bytes | AES-GCM(zlib(record)) with its tag, 16 bytes

Authenticated with it: version, key id, tenant and tokenizer fingerprint.
"""

import secrets
import zlib

from cryptography.exceptions import InvalidTag

from services.identity import digest_fields
from services.tokenizer import metrics
from services.tokenizer.history.capsule_keys import KeyRing
from services.tokenizer.history.record import Record
from services.tokenizer.history.record_format import MAX_RECORD_BYTES, RecordFormatError, decode_record, encode_record

VERSION = 1
MAX_CAPSULE_BYTES = 2**20
"""Longer capsules are neither made nor opened: every later request of the conversation carries them."""

_HEAD_BYTES = 2
# Random nonces are safe for 2^32 capsules of one key; a new first key in the file starts anew.
_NONCE_BYTES = 12
_TAG_BYTES = 16


class Capsules:
    """Seals and opens; immutable, safe to use from several threads. Nothing here raises on what a client sent."""

    def __init__(self, ring: KeyRing, tokenizer_fingerprint: str) -> None:
        self._ring = ring
        self._fingerprint = tokenizer_fingerprint

    def seal(self, tenant: str, record: Record) -> bytes | None:
        """A capsule that only this tenant can send back; None where it would be too long."""
        key_id = self._ring.sealing_id
        packed = zlib.compress(encode_record(record))
        head = bytes([VERSION, len(key_id)]) + key_id.encode()
        if len(head) + _NONCE_BYTES + len(packed) + _TAG_BYTES > MAX_CAPSULE_BYTES:
            metrics.CAPSULES.labels("seal", "too_long").inc()
            return None
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._ring.cipher_by_id[key_id].encrypt(nonce, packed, self._bound_to(tenant, head))
        metrics.CAPSULES.labels("seal", "done").inc()
        return head + nonce + sealed

    def open(self, tenant: str, capsule: bytes) -> Record | None:
        """What is in a capsule; None, and a count of the reason, for one that this service did not make for
        ``tenant`` with one of its keys and this tokenizer."""
        opened, outcome = self._open(tenant, capsule)
        metrics.CAPSULES.labels("open", outcome).inc()
        return opened

    def _open(self, tenant: str, capsule: bytes) -> tuple[Record | None, str]:
        if len(capsule) > MAX_CAPSULE_BYTES:
            return None, "too_long"
        if len(capsule) < _HEAD_BYTES or capsule[0] != VERSION:
            return None, "malformed"
        head = capsule[: _HEAD_BYTES + capsule[1]]
        nonce, sealed = capsule[len(head) : len(head) + _NONCE_BYTES], capsule[len(head) + _NONCE_BYTES :]
        if len(sealed) < _TAG_BYTES:
            return None, "malformed"
        cipher = self._ring.cipher_by_id.get(head[_HEAD_BYTES:].decode("ascii", "replace"))
        if cipher is None:
            return None, "unknown_key"
        try:
            packed = cipher.decrypt(nonce, sealed, self._bound_to(tenant, head))
        except InvalidTag:
            return None, "refused"
        try:
            return decode_record(_unpack(packed)), "done"
        except (RecordFormatError, zlib.error):
            # Another release wrote it.
            return None, "malformed"

    def _bound_to(self, tenant: str, head: bytes) -> bytes:
        return digest_fields(("capsule", head), ("tenant", tenant.encode()), ("tokenizer", self._fingerprint.encode()))


def _unpack(packed: bytes) -> bytes:
    # One byte more than a record may have: decode_record refuses it.
    return zlib.decompressobj().decompress(packed, MAX_RECORD_BYTES + 1)
