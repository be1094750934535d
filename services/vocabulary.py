"""The bytes behind token ids, read from ``tokenizer.json``.

The tokenizer streams text from them and the engine finds stop texts in them, so both must agree; neither needs the
tokenizers library for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAX_IDS = 2**24
"""More than any vocabulary has, and few enough for a table."""


class VocabularyError(Exception):
    """``tokenizer.json`` is missing, malformed or of a kind whose bytes are not known; the message names the file."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Spelling of every token id.

    ``token_bytes[id]`` is b"" for ids that the tokenizer does not define. Ids in ``special_ids`` are spelt for people
    (``<|im_end|>``) but are no text.
    """

    token_bytes: Sequence[bytes]
    special_ids: frozenset[int]

    def spell(self, token_id: int) -> bytes:
        """Bytes of one id; b"" beyond the vocabulary (models pad their output rows)."""
        return self.token_bytes[token_id] if token_id < len(self.token_bytes) else b""


def load_vocabulary(model_dir: Path) -> Vocabulary:
    """Read a byte-level or byte-fallback BPE ``tokenizer.json``. Raises VocabularyError."""
    path = model_dir / "tokenizer.json"
    try:
        return parse_vocabulary(path.read_bytes())
    except OSError as error:
        raise VocabularyError(f"{path}: {error.strerror}") from None
    except VocabularyError as error:
        raise VocabularyError(f"{path}: {error}") from None


def parse_vocabulary(tokenizer_json: str | bytes) -> Vocabulary:
    """Read the text of a byte-level or byte-fallback BPE ``tokenizer.json``. Raises VocabularyError."""
    try:
        document: dict[str, Any] = json.loads(tokenizer_json)
        vocab: dict[str, int] = document["model"]["vocab"]
        added: list[dict[str, Any]] = document.get("added_tokens") or []
        spell = _spelling(document)
        ids = [*vocab.values(), *(token["id"] for token in added)]
        if min(ids) < 0 or max(ids) >= _MAX_IDS:
            raise ValueError(f"ids from {min(ids)} to {max(ids)}")
        table = [b""] * (max(ids) + 1)
        for text, token_id in vocab.items():
            table[token_id] = spell(text)
        for token in added:
            table[token["id"]] = token["content"].encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise VocabularyError(f"not a usable tokenizer.json ({error})") from None
    return Vocabulary(table, frozenset(token["id"] for token in added if token.get("special")))


def _spelling(document: dict[str, Any]) -> Any:
    decoder = json.dumps(document.get("decoder"))
    if '"ByteLevel"' in decoder:
        byte_by_char = {char: byte for byte, char in enumerate(_byte_level_alphabet())}

        def byte_level(text: str) -> bytes:
            # A few vocabularies carry added tokens in plain spelling among the byte-level ones.
            if all(char in byte_by_char for char in text):
                return bytes(byte_by_char[char] for char in text)
            return text.encode()

        return byte_level
    if '"ByteFallback"' in decoder:

        def byte_fallback(text: str) -> bytes:
            if re.fullmatch(r"<0x[0-9A-F]{2}>", text):
                return bytes([int(text[3:5], 16)])
            return text.replace("\u2581", " ").encode()

        return byte_fallback
    raise ValueError("its decoder is neither ByteLevel nor ByteFallback")


def _byte_level_alphabet() -> list[str]:
    """GPT-2's printable character for each byte value (Radford et al. 2019, ``bytes_to_unicode``)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet: list[str] = []
    shifted = 0
    for byte in range(256):
        if byte in printable:
            alphabet.append(chr(byte))
        else:
            alphabet.append(chr(256 + shifted))
            shifted += 1
    return alphabet
