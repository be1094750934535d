"""Which token ids are words, and which are markup: all that the guard knows of text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

WORD = 1
MARKUP = 2

_MARKUP_BYTES = frozenset(b'()[]{}<>=|;"/\\\n\t_#')


class Lexicon:
    """Made once per model and shared. ``kinds[id]`` is WORD, MARKUP or 0; ids beyond it are 0."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        """``token_bytes`` are the spellings of all ids."""
        self.kinds = bytes(_kind(token) for token in token_bytes)
        self._kinds = np.frombuffer(self.kinds, dtype=np.uint8)

    def shares(self, token_ids: npt.NDArray[np.int32]) -> tuple[float, float]:
        """Of words and of markup among one or more ids, 0 to 1."""
        kinds = self._kinds[token_ids[token_ids < len(self._kinds)]]
        words, markup = np.count_nonzero(kinds == WORD), np.count_nonzero(kinds == MARKUP)
        return words / len(token_ids), markup / len(token_ids)


def _kind(token: bytes) -> int:
    if b"  " in token or not _MARKUP_BYTES.isdisjoint(token):
        return MARKUP
    return WORD if _is_word(token) else 0


def _is_word(token: bytes) -> bool:
    is_led = token.startswith(b" ")
    try:
        text = token[is_led:].decode()
    except UnicodeDecodeError:
        # A part of a character. Three-byte ones and shorter are scripts, four-byte ones mostly pictures.
        return any(0xC2 <= byte < 0xF0 for byte in token)
    letters = text.replace("'", "").replace("’", "")
    if not letters.isalpha():
        return False
    # "AAAA" is encoded zeros; "I" and "a" are words where a space leads them.
    return len(set(letters)) > 1 or not letters.isascii() or (is_led and len(letters) == 1)
