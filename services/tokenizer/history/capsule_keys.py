"""The keys of capsules, from a file or drawn at random."""

import base64
import binascii
import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from services.tokenizer.errors import KeyFileError

_KEY_BYTES = 32
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyRing:
    """AES-256-GCM by key id; ``sealing_id`` names one of them. Ciphers do not show their keys."""

    cipher_by_id: Mapping[str, AESGCM]
    sealing_id: str


def random_ring() -> KeyRing:
    """One key that nobody else has and that ends with the process."""
    key_id = secrets.token_hex(8)
    return KeyRing({key_id: AESGCM(AESGCM.generate_key(8 * _KEY_BYTES))}, key_id)


def load_ring(path: Path | None) -> KeyRing:
    """The keys of a file of ``KEY_ID:BASE64`` lines, the first to seal and all to open; a random one without a file.

    Empty lines and those that start with ``#`` are skipped. Raises KeyFileError.
    """
    if path is None:
        _log.info("no capsule keys are set: capsules open in this process only, and end with it")
        return random_ring()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise KeyFileError(f"{path}: not a text file") from None
    ciphers: dict[str, AESGCM] = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        key_id, _, encoded = line.partition(":")
        if not _KEY_ID.fullmatch(key_id) or key_id in ciphers:
            raise KeyFileError(f"{path}: line {number}: expected KEY_ID:BASE64, each id once, of A-Z a-z 0-9 . _ -")
        ciphers[key_id] = AESGCM(_key(encoded, f"{path}: line {number}"))
    if not ciphers:
        raise KeyFileError(f"{path}: there is no key in it")
    return KeyRing(ciphers, next(iter(ciphers)))


def _key(encoded: str, place: str) -> bytes:
    try:
        key = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _KEY_BYTES:
        raise KeyFileError(f"{place}: expected {_KEY_BYTES} bytes in base64")
    return key
