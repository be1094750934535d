"""Page keys and fingerprints: the part of the contracts that every party must compute alike.

A page is ``PAGE_TOKENS`` tokens of a prompt. Its key is BLAKE2b-128, keyed by digest(cache scope, tokenizer
fingerprint), over the parent's key, the page's ids and the extras inside it. A key is never proof of equality: whoever
attaches a page compares its token ids.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

PAGE_TOKENS = 256
"""Tokens in a page."""

ROOT_KEY = bytes(16)
"""Parent of the first page."""


def digest_fields(*fields: tuple[str, bytes], size: int = 32) -> bytes:
    """BLAKE2b over length-prefixed, tagged fields: no two different lists of fields give the same input."""
    digest = hashlib.blake2b(digest_size=size)
    for tag, value in fields:
        for part in (tag.encode(), value):
            digest.update(struct.pack("<Q", len(part)))
            digest.update(part)
    return digest.digest()


def page_key_secret(cache_scope: str, tokenizer_fingerprint: str) -> bytes:
    """The 32-byte key under which one scope's pages are hashed."""
    return digest_fields(("scope", cache_scope.encode()), ("tokenizer", tokenizer_fingerprint.encode()))


def page_keys(
    secret: bytes, token_ids: bytes | memoryview, extras: Sequence[tuple[int, bytes]] = (), *, parent: bytes = ROOT_KEY
) -> list[bytes]:
    """Chained keys of all whole pages of ``token_ids`` (int32 little-endian); a partial last page has none.

    ``extras`` are (position, digest) with positions relative to ``token_ids``, in order; ``parent`` is the key of the
    page before the first one.
    """
    page_bytes = PAGE_TOKENS * 4
    view = memoryview(token_ids)
    keys: list[bytes] = []
    for start in range(0, len(view) - page_bytes + 1, page_bytes):
        digest = hashlib.blake2b(digest_size=16, key=secret)
        digest.update(parent)
        digest.update(view[start : start + page_bytes])
        first = start // 4
        for position, content in extras:
            if first <= position < first + PAGE_TOKENS:
                digest.update(struct.pack("<II", position - first, len(content)))
                digest.update(content)
        parent = digest.digest()
        keys.append(parent)
    return keys


def state_namespace(
    *,
    cache_scope: str,
    model: str,
    weights_fingerprint: str,
    weight_format: str,
    kv_dtype: str,
    page_format: int,
    numerics: str,
    adapter: str = "",
) -> bytes:
    """The 32-byte namespace inside which state is interchangeable byte for byte."""
    return digest_fields(
        ("scope", cache_scope.encode()),
        ("model", model.encode()),
        ("weights", weights_fingerprint.encode()),
        ("weight_format", weight_format.encode()),
        ("adapter", adapter.encode()),
        ("kv_dtype", kv_dtype.encode()),
        ("page_format", struct.pack("<I", page_format)),
        ("numerics", numerics.encode()),
    )


def tokenizer_fingerprint(model_dir: Path) -> str:
    """Hex digest of ``tokenizer.json``. Raises OSError when it cannot be read."""
    return hashlib.blake2b((model_dir / "tokenizer.json").read_bytes(), digest_size=16).hexdigest()


def weights_fingerprint(model_dir: Path) -> str:
    """Hex digest of the configuration and of every weight file's size, header and sampled content.

    Headers and samples, not gigabytes: 64 stretches of 4 KiB spread over each file tell any two real checkpoints apart.
    Raises OSError when a file cannot be read.
    """
    fields: list[tuple[str, bytes]] = [("config.json", (model_dir / "config.json").read_bytes())]
    for path in sorted(model_dir.glob("*.safetensors")):
        fields += [(path.name, b"".join(_samples(path)))]
    return digest_fields(*fields, size=16).hex()


def _samples(path: Path, stretches: int = 64, length: int = 4096) -> Iterable[bytes]:
    size = path.stat().st_size
    yield struct.pack("<Q", size)
    with path.open("rb") as file:
        for i in range(stretches):
            file.seek(size * i // stretches)
            yield file.read(length)
