"""What the token cache counts, for the metrics page and for the log."""

import logging
import threading
from dataclasses import dataclass

from prometheus_client import Counter

_LOG_EVERY = 1000

_REQUESTS = Counter(
    "fencepost_tokenizer_cache_requests", "Prompts that the token cache took, by how it encoded them.", ["outcome"]
)
_TOKENS = Counter("fencepost_tokenizer_cache_tokens", "Tokens of these prompts, by where they came from.", ["source"])
_HIT, _MISS = _REQUESTS.labels("hit"), _REQUESTS.labels("miss")
_REUSED, _ENCODED = _TOKENS.labels("reused"), _TOKENS.labels("encoded")
_CHECKS = Counter(
    "fencepost_tokenizer_cache_checks", "Prompts encoded twice to verify the cache, by result.", ["result"]
)
_FALLBACKS = Counter(
    "fencepost_tokenizer_cache_resync_fallbacks", "Prompts encoded in full because the seam of a splice did not hold."
)
_FAILURES = Counter("fencepost_tokenizer_cache_failures", "Times the token cache failed and was switched off.")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What a cache holds."""

    anchors: int
    anchor_chars: int
    chunks: int
    chunk_bytes: int


class CacheStatistics:
    """Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests = 0
        self.hits = 0
        """Requests that reused something."""
        self.resync_fallbacks = 0
        self.reused_tokens = 0
        self.encoded_tokens = 0
        self.mismatches = 0

    def count(self, reused_tokens: int, encoded_tokens: int, occupancy: Occupancy) -> None:
        """One request; every thousandth writes a line."""
        (_HIT if reused_tokens else _MISS).inc()
        _REUSED.inc(reused_tokens)
        _ENCODED.inc(encoded_tokens)
        with self._lock:
            self.requests += 1
            self.hits += reused_tokens > 0
            self.reused_tokens += reused_tokens
            self.encoded_tokens += encoded_tokens
            is_due = self.requests % _LOG_EVERY == 0
        if is_due:
            self._write(occupancy)

    def count_resync_fallback(self) -> None:
        """The seam of a splice did not hold."""
        _FALLBACKS.inc()
        with self._lock:
            self.resync_fallbacks += 1

    def count_check(self, *, is_equal: bool) -> None:
        """One verified request."""
        _CHECKS.labels("equal" if is_equal else "different").inc()
        with self._lock:
            self.mismatches += not is_equal

    def count_failure(self) -> None:
        """The cache is switched off."""
        _FAILURES.inc()

    def _write(self, occupancy: Occupancy) -> None:
        _log.info(
            "token cache: %d requests, %.1f%% hits, %.1f%% of tokens reused, %d resync fallbacks, %d mismatches; "
            "holds %d prompts (%d characters) and %d chunks (%d bytes)",
            self.requests,
            100 * self.hits / self.requests,
            100 * self.reused_tokens / max(1, self.reused_tokens + self.encoded_tokens),
            self.resync_fallbacks,
            self.mismatches,
            occupancy.anchors,
            occupancy.anchor_chars,
            occupancy.chunks,
            occupancy.chunk_bytes,
        )
