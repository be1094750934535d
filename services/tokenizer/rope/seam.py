"""The tail of a prompt spliced to the ids of its beginning, checked over a seam: for tokenizers that cannot be cut.

The prompt is encoded again from some tokens before the end of the known text. The splice is taken when the first of
these ids are the known ones. That is evidence, not proof: a normalizer can make it lie (combining marks move across
the seam), so it serves only tokenizers without one.
"""

from dataclasses import dataclass

import numpy as np
from tokenizers import Encoding, Tokenizer

from services.tokenizer.rope.prompt_text import TokenIds


@dataclass(frozen=True, slots=True)
class Seam:
    """An encoded text and where a longer one would be encoded again from."""

    text: str
    ids: TokenIds
    first_token: int
    """Index of the token with which encoding would start again."""
    first_char: int
    """Where that token starts in the text."""

    @property
    def num_chars(self) -> int:
        """Characters held."""
        return len(self.text)


@dataclass(frozen=True, slots=True)
class SeamSplice:
    """Immutable; any thread may call."""

    tokenizer: Tokenizer
    """Must give the offsets of whole tokens, leading spaces included."""
    overlap_tokens: int
    """How many tokens before the end of the known text are encoded again."""
    resync_tokens: int
    """How many of these must be as they were."""

    def begin(self, text: str) -> tuple[TokenIds, Seam | None]:
        """All ids of ``text``; no seam where it is too short to have one."""
        encoding = self._encode(text)
        ids = np.array(encoding.ids, np.int32)
        return ids, self._seam(text, ids, encoding, 0, 0)

    def extend(self, seam: Seam, text: str) -> tuple[TokenIds, Seam | None] | None:
        """Ids of ``text``, which begins with the seam's text, encoding only its tail; None where the seam shows."""
        encoding = self._encode(text[seam.first_char :])
        tail = np.array(encoding.ids, np.int32)
        num_compared = min(self.resync_tokens, len(tail), len(seam.ids) - seam.first_token)
        known = seam.ids[seam.first_token : seam.first_token + num_compared]
        if num_compared == 0 or not np.array_equal(tail[:num_compared], known):
            return None
        ids = np.concatenate((seam.ids[: seam.first_token], tail))
        return ids, self._seam(text, ids, encoding, seam.first_token, seam.first_char)

    def _encode(self, text: str) -> Encoding:
        # encode() would hold the GIL; encode_batch_fast() gives no offsets.
        return self.tokenizer.encode_batch([text], add_special_tokens=False)[0]

    def _seam(self, text: str, ids: TokenIds, encoding: Encoding, first_token: int, first_char: int) -> Seam | None:
        """The seam of ``ids``, whose part from ``first_token`` on is ``encoding``, of the text from ``first_char``."""
        index = len(ids) - self.overlap_tokens
        if index <= 0 or index < first_token:
            return None
        return Seam(text, ids, index, first_char + encoding.offsets[index - first_token][0])
