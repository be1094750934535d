"""One API key: what is kept of it, and the text that its owner holds.

The text is ``fp_<id>_<secret>``. The secret is drawn at random with 256 bits, so nobody can guess one from its digest:
a plain SHA-256 protects it at rest as well as a slow password hash would, and costs a request microseconds.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from dataclasses import dataclass, field
from datetime import datetime

from services.gateway.tenants.caller import Caller

_ALPHABET = string.digits + string.ascii_letters
_ID_CHARACTERS = 12
_SECRET_CHARACTERS = 43
"""The fewest base-62 characters that hold 256 bits."""
_TEXT = re.compile(r"fp_([0-9A-Za-z]{1,64})_([0-9A-Za-z]{1,128})", re.ASCII)
_LABEL = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Key:
    """What the server keeps. ``digest`` is the SHA-256 of the secret; ``name`` is the operator's own note."""

    key_id: str
    digest: bytes = field(repr=False)
    caller: Caller
    name: str
    created: datetime
    revoked: datetime | None = None

    def opens_with(self, digest: bytes) -> bool:
        """Whether this is the digest of its secret, in a time that tells nothing of either."""
        return hmac.compare_digest(self.digest, digest)


def draw_key(caller: Caller, name: str, created: datetime) -> tuple[Key, str]:
    """A new key and its text, which exists nowhere else."""
    key_id, secret = _draw(_ID_CHARACTERS), _draw(_SECRET_CHARACTERS)
    return Key(key_id, digest_of(secret), caller, name, created), f"fp_{key_id}_{secret}"


def parts_of(text: str) -> tuple[str, str] | None:
    """Id and secret of a key's text; None when it cannot be one."""
    match = _TEXT.fullmatch(text)
    return None if match is None else (match[1], match[2])


def digest_of(secret: str) -> bytes:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def is_label(text: str) -> bool:
    """Whether a tenant or cache scope may be called so: 1 to 64 letters, digits, dots, dashes and underscores."""
    return _LABEL.fullmatch(text) is not None


def _draw(num_characters: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(num_characters))
