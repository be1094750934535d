"""Page keys and fingerprints: the part of the contracts that every party must compute alike.

A page is ``PAGE_TOKENS`` tokens of a prompt. Its key is BLAKE2b-128, keyed by digest(cache scope, tokenizer
fingerprint), over the parent's key, the page's ids and the extras inside it. A key is never proof of equality: whoever
attaches a page compares its token ids.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

PAGE_TOKENS = 256
"""Tokens in a page."""

ROOT_KEY = bytes(16)
"""Parent of the first page."""

_SAMPLE_BYTES = 1024


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
    """The 32-byte namespace inside which state is interchangeable byte for byte.

    Its first 16 bytes are the layout, the digest of everything but the scope: a store sees by them which state belongs
    to no model that is served.
    """
    layout = digest_fields(
        ("model", model.encode()),
        ("weights", weights_fingerprint.encode()),
        ("weight_format", weight_format.encode()),
        ("adapter", adapter.encode()),
        ("kv_dtype", kv_dtype.encode()),
        ("page_format", struct.pack("<I", page_format)),
        ("numerics", numerics.encode()),
        size=16,
    )
    return layout + digest_fields(("scope", cache_scope.encode()), ("layout", layout), size=16)


def tokenizer_fingerprint(model_dir: Path) -> str:
    """Hex digest of ``tokenizer.json``. Raises OSError when it cannot be read."""
    return hashlib.blake2b((model_dir / "tokenizer.json").read_bytes(), digest_size=16).hexdigest()


def weights_fingerprint(model_dir: Path) -> str:
    """Hex digest of the configuration and of every weight file's size, header and samples.

    Samples, not gigabytes: the start, middle and end of each tensor tell apart fine-tunes of one model, whose sizes and
    headers are equal. A change that spares every sample goes unseen. Raises OSError naming the file that cannot be
    read or is no safetensors file.
    """
    fields: list[tuple[str, bytes]] = [("config.json", (model_dir / "config.json").read_bytes())]
    for path in sorted(model_dir.glob("*.safetensors")):
        fields += [(path.name, b"".join(_samples(path)))]
    return digest_fields(*fields, size=16).hex()


def _samples(path: Path) -> Iterable[bytes]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        first = 8 + int.from_bytes(file.read(8), "little")
        try:
            if first > size:
                raise ValueError("the header does not fit")
            header = file.read(first - 8)
            tensors: dict[str, Any] = json.loads(header)
            extents = [tuple(tensors[name]["data_offsets"]) for name in sorted(tensors.keys() - {"__metadata__"})]
            if not all(0 <= begin <= end <= size - first for begin, end in extents):
                raise ValueError("a tensor lies outside")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise OSError(errno.EINVAL, "not a whole safetensors file", str(path)) from None
        yield struct.pack("<Q", size)
        yield header
        for begin, end in extents:
            length = min(_SAMPLE_BYTES, end - begin)
            for offset in (begin, (begin + end - length) // 2, end - length):
                file.seek(first + offset)
                yield file.read(length)
