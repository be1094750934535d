"""Prompt → ids, always those of encoding the whole prompt, at the cost of what is new.

RopeEncoder
├── ChunkedEncoder   where the tokenizer is certified: proven cuts
├── SplicedEncoder   where it is not and has no normalizer: a checked seam
└── WholeEncoder     everything else: short prompts, a cache that is off or has failed
"""

import logging
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from services.tokenizer.rope.certify import has_normalizer, why_not_certified
from services.tokenizer.rope.chunked import ChunkedEncoder
from services.tokenizer.rope.encoded import Encoded
from services.tokenizer.rope.prompt_text import PromptText, TokenIds
from services.tokenizer.rope.seam import SeamSplice
from services.tokenizer.rope.spliced import SplicedEncoder
from services.tokenizer.rope.statistics import CacheStatistics
from services.tokenizer.rope.whole import WholeEncoder

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeLimits:
    """How much the cache may hold, and when it serves."""

    enabled: bool = True
    entries: int = 512
    """Conversations remembered."""
    max_chars: int = 2**26
    """Characters of their prompts, all together."""
    min_chars: int = 4096
    """Shorter prompts are encoded whole and never remembered."""
    chunk_bytes: int = 2**28
    """Bytes of ids that are kept by content."""
    chunk_chars: int = 2048
    overlap_tokens: int = 64
    resync_tokens: int = 32
    verify_rate: float = 0.0
    """Share of prompts that are also encoded whole and compared."""


class RopeEncoder:
    """One tokenizer and its cache; any thread may call."""

    def __init__(self, tokenizer: Path | Tokenizer, limits: RopeLimits) -> None:
        """Takes a Tokenizer over; nobody else may change it. Raises what tokenizers raises for a bad file."""
        loaded = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.from_file(str(tokenizer))
        self.statistics = CacheStatistics()
        self._limits = limits
        self._whole = WholeEncoder(loaded)
        self.why_not = why_not_certified(loaded, self._whole.plain, self._whole.added)
        """Why the tokenizer is not certified."""
        self._cache = self._choose() if limits.enabled else None
        _log.info("token cache: %s; %s", self.mode, limits)

    @property
    def is_certified(self) -> bool:
        """Whether texts may be cut for this tokenizer."""
        return self.why_not is None

    def unspeakable(self) -> tuple[str, ...]:
        """Spellings of added tokens that encode to that token even as plain text: the model's own merges reach it."""
        added, plain = self._whole.added, self._whole.plain
        return tuple(text for text in added.contents if added.id_of(text) in plain.encode(text).ids)

    @property
    def mode(self) -> str:
        """How prompts are encoded, in words for a log."""
        match self._cache:
            case ChunkedEncoder():
                return "rope"
            case SplicedEncoder():
                return f"seam splice, because {self.why_not}"
            case None:
                return f"off, because {self.why_not}" if self._limits.enabled and self.why_not else "off"

    def encode(self, prompt: PromptText, anchor_key: str | None) -> Encoded:
        """The ids of ``prompt``, which is remembered as the latest one of the conversation ``anchor_key``.

        Whoever shares an ``anchor_key`` shares the time that encoding takes, never ids: it should hold the tenant.
        Blocks, and releases the GIL while it encodes. Raises UnicodeEncodeError for lone surrogates.
        """
        cache = self._cache
        if cache is None or len(prompt.text) < self._limits.min_chars:
            return self._encode_whole(prompt)
        try:
            encoded = cache.encode(prompt, anchor_key)
            self.statistics.count(encoded.reused_tokens, encoded.encoded_tokens, cache.occupancy())
        except Exception as error:  # noqa: BLE001 - a fault of the cache must fail no request
            prompt.text.encode()  # not the cache's fault: raises
            self._disable(f"it failed: {error!r}")
            return self._encode_whole(prompt)
        if self._limits.verify_rate and random.random() < self._limits.verify_rate:
            return self._verify(encoded)
        return encoded

    def encode_full(self, prompt: PromptText) -> TokenIds:
        """The slow twin of ``encode``."""
        return self._encode_whole(prompt).ids

    def _choose(self) -> ChunkedEncoder | SplicedEncoder | None:
        limits = self._limits
        if self.is_certified:
            return ChunkedEncoder(self._whole, limits.chunk_chars, limits.chunk_bytes, limits.entries, limits.max_chars)
        if has_normalizer(self._whole.tokenizer):
            return None
        splice = SeamSplice(self._whole.tokenizer, limits.overlap_tokens, limits.resync_tokens)
        return SplicedEncoder(self._whole, splice, limits.entries, limits.max_chars, self.statistics)

    def _encode_whole(self, prompt: PromptText) -> Encoded:
        prompt.text.encode()  # tokenizers would raise an error that names nothing
        return self._whole.encode(prompt)

    def _verify(self, encoded: Encoded) -> Encoded:
        whole = self._whole.encode(encoded.prompt)
        is_equal = np.array_equal(whole.ids, encoded.ids)
        self.statistics.count_check(is_equal=is_equal)
        if is_equal:
            return encoded
        self._disable(f"it gave other ids for a prompt of {encoded.num_chars} characters")
        return whole

    def _disable(self, reason: str) -> None:
        self._cache = None
        self.statistics.count_failure()
        _log.warning("the token cache is switched off, because %s", reason)
