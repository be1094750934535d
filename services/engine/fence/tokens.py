"""A model's tokens as fences need them: spellings in order, canonical encoding, packed rows of legal ids.

A *row* is one bit per id, 32 to a word, low bit first, as long as the model's logits are wide (ids that the tokenizer
does not define are never legal).
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import llguidance
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from services.engine.fence.errors import FenceError
from services.vocabulary import Vocabulary

Row = NDArray[np.uint32]


class FenceTokens:
    """Built once per model, which takes seconds; only read after that.

    All added tokens are control tokens here, special or not: text inside a value never becomes one, and a value never
    contains one (whitespace ones excepted, which some vocabularies have).
    """

    def __init__(
        self, vocabulary: Vocabulary, tokenizer_json: str, eos_ids: Iterable[int], num_ids: int | None = None
    ) -> None:
        """``num_ids``: width of the model's logits; by default as many as the tokenizer defines. Raises FenceError."""
        self.num_ids = len(vocabulary.token_bytes) if num_ids is None else num_ids
        self.num_words = -(-self.num_ids // 32)
        self.eos_ids = frozenset(eos_ids)
        if not self.eos_ids or max(self.eos_ids) >= self.num_ids:
            raise FenceError("the model has no end token")
        document: dict[str, Any] = json.loads(tokenizer_json)
        added: list[dict[str, Any]] = document.get("added_tokens") or []
        self.added_ids = frozenset(token["id"] for token in added if token["content"].strip()) | self.eos_ids
        self.spellings = [vocabulary.spell(token_id) for token_id in range(self.num_ids)]
        """Bytes of every id, control tokens' as people see them."""
        self.texts = [
            b"" if token_id in self.added_ids else spelling for token_id, spelling in enumerate(self.spellings)
        ]
        """Bytes of the ids that are text; b"" for all others."""
        self.text_row = self.row(token_id for token_id, text in enumerate(self.texts) if text)
        """Ids that may be part of a value."""
        self.lltokenizer = _lltokenizer(document, self.num_ids, min(self.eos_ids))
        self._encoder = Tokenizer.from_str(json.dumps({**document, "added_tokens": [], "post_processor": None}))
        ordered = sorted((text, token_id) for token_id, text in enumerate(self.texts) if text)
        self._ordered_texts = [text for text, _ in ordered]
        self._ordered_ids = [token_id for _, token_id in ordered]
        backwards = sorted((text[::-1], token_id) for text, token_id in ordered)
        self._reversed_texts = [text for text, _ in backwards]
        self._reversed_ids = [token_id for _, token_id in backwards]
        self._blob = b"".join(self.texts)
        self._starts = np.cumsum(np.array([0, *map(len, self.texts)], np.int64))
        begins_char = (np.frombuffer(self._blob, np.uint8) & 0xC0) != 0x80
        num_before = np.concatenate([[0], np.cumsum(begins_char)])
        self.num_chars = np.diff(num_before[self._starts]).astype(np.int32)
        """Characters that begin in each id's spelling."""
        self.max_chars = int(self.num_chars.max(initial=0))
        self._containing = lru_cache(maxsize=512)(self._find_containing)
        self._check_library()

    def encode(self, text: str) -> list[int]:
        """The canonical ids of ``text``; no control tokens, whatever it spells."""
        return self._encoder.encode(text, add_special_tokens=False).ids

    def row(self, ids: Iterable[int]) -> Row:
        """The row in which these are legal."""
        legal = np.zeros(self.num_ids, np.bool_)
        legal[list(ids)] = True
        return self.row_of(legal)

    def row_of(self, legal: NDArray[np.bool_]) -> Row:
        """The row of a flag per id."""
        flags = np.zeros(self.num_words * 32, np.bool_)
        flags[: self.num_ids] = legal
        return np.packbits(flags, bitorder="little").view(np.uint32)

    @cached_property
    def full_row(self) -> Row:
        """Every id, text or not."""
        return self.row(range(self.num_ids))

    def without(self, row: Row, ids: Iterable[int]) -> Row:
        """A copy of ``row`` in which ``ids`` are not legal."""
        narrowed = row.copy()
        for token_id in ids:
            narrowed[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))
        return narrowed

    def ids(self, row: Row) -> list[int]:
        """The ids that are legal in ``row``, in order."""
        words = np.flatnonzero(row)
        bits = np.unpackbits(row[words].view(np.uint8), bitorder="little").reshape(len(words), 32)
        at, bit = np.nonzero(bits)
        return (words[at] * 32 + bit).tolist()

    def with_prefix(self, prefix: bytes) -> list[int]:
        """The text ids whose spelling begins with ``prefix``, in order of spelling."""
        start, end = _range(self._ordered_texts, prefix)
        return self._ordered_ids[start:end]

    def beginnings(self, text: bytes) -> list[int]:
        """The text ids whose spelling ``text`` begins with, and does not end with."""
        found: list[int] = []
        for length in range(1, len(text)):
            at = bisect_left(self._ordered_texts, text[:length])
            while at < len(self._ordered_texts) and self._ordered_texts[at] == text[:length]:
                found.append(self._ordered_ids[at])
                at += 1
        return found

    def has_prefix(self, prefix: bytes) -> bool:
        """Whether a text id's spelling begins with ``prefix``."""
        start, end = _range(self._ordered_texts, prefix)
        return end > start

    def has_longer(self, prefix: bytes) -> bool:
        """Whether a text id's spelling begins with ``prefix`` and goes on."""
        start, end = _range(self._ordered_texts, prefix)
        return end > start and len(self._ordered_texts[end - 1]) > len(prefix)

    def with_suffix(self, suffix: bytes) -> list[int]:
        """The text ids whose spelling ends with ``suffix``."""
        start, end = _range(self._reversed_texts, suffix[::-1])
        return self._reversed_ids[start:end]

    def has_within(self, ending: bytes, before: Iterable[int]) -> bool:
        """Whether a text id's spelling ends with ``ending`` and has one of the bytes ``before`` in front of it."""
        backwards = ending[::-1]
        start, end = _range(self._reversed_texts, backwards)
        if start == end:
            return False
        return any(
            first < last
            for byte in before
            for first, last in [_range(self._reversed_texts, backwards + bytes([byte]), start, end)]
        )

    def containing(self, text: bytes) -> tuple[int, ...]:
        """The text ids whose spelling contains ``text``."""
        return self._containing(text)

    def _find_containing(self, text: bytes) -> tuple[int, ...]:
        blob, starts = self._blob, self._starts
        found: list[int] = []
        position = blob.find(text)
        while position >= 0:
            token_id = int(np.searchsorted(starts, position, side="right")) - 1
            if position + len(text) <= starts[token_id + 1]:
                found.append(token_id)
                position = blob.find(text, int(starts[token_id + 1]))
            else:
                position = blob.find(text, position + 1)
        return tuple(found)

    def check_marker(self, token_id: int) -> None:
        """Raises FenceError unless the id is a control token that no other token's text spells."""
        if token_id not in self.added_ids:
            raise FenceError(f"marker {token_id} is not an added token of the tokenizer")
        spelling = self.spellings[token_id]
        spelt = self.containing(spelling)
        if spelt:
            raise FenceError(f"marker {spelling.decode(errors='replace')!r} is spelt by token {spelt[0]}, too")

    def check_literals(self, texts: Sequence[str]) -> None:
        """Raises FenceError unless the canonical ids of every text spell it."""
        encodings = self._encoder.encode_batch_fast([*texts], add_special_tokens=False)
        for text, encoding in zip(texts, encodings, strict=True):
            if b"".join(self.texts[token_id] for token_id in encoding.ids) != text.encode():
                raise FenceError(f"the tokenizer cannot write {text!r}")

    def _check_library(self) -> None:
        """llguidance must read the same bytes from the same ids; a sample is compared."""
        step = max(1, len(self._ordered_ids) // 4_000)
        for token_id in self._ordered_ids[::step]:
            # A byte FF is the library's own sign; it is no UTF-8, so never legal.
            text = self.texts[token_id]
            if b"\xff" not in text and self.lltokenizer.decode_bytes([token_id]) != text:
                raise FenceError(f"token {token_id} has two spellings")


def _range(ordered: list[bytes], prefix: bytes, low: int = 0, high: int | None = None) -> tuple[int, int]:
    """Where the texts that begin with ``prefix`` stand in ``ordered``."""
    high = len(ordered) if high is None else high
    start = bisect_left(ordered, prefix, low, high)
    beyond = prefix.rstrip(b"\xff")
    if not beyond:
        return start, high
    end = bisect_left(ordered, beyond[:-1] + bytes([beyond[-1] + 1]), start, high)
    return start, end


def _lltokenizer(document: dict[str, Any], num_ids: int, eos_id: int) -> llguidance.LLTokenizer:
    tokens: list[dict[str, Any]] = document.get("added_tokens") or []
    added = [{**token, "special": bool(token["content"].strip())} for token in tokens]
    text = json.dumps({**document, "added_tokens": added})
    try:
        slices = llguidance.LLTokenizer.json_slices()
        return llguidance.LLTokenizer(text, n_vocab=num_ids, eos_token=eos_id, slices=slices)
    except Exception as error:  # noqa: BLE001 - the library raises bare exceptions
        raise FenceError(f"llguidance cannot read the tokenizer: {error}") from None
