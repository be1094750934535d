"""A prompt's ids, where they came from, and which of them belongs to which character."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from services.tokenizer.rope.prompt_text import PromptText, TokenIds

Offsets: TypeAlias = NDArray[np.int64]
Locate: TypeAlias = Callable[[PromptText, int, int], list[tuple[int, int]]]
"""Characters of each token of ``[start, end)`` of a prompt, counted from ``start``."""


class EncodePath(Enum):
    """How the ids were made."""

    FULL = auto()
    """From the text alone."""
    DELTA = auto()
    """Some of them were known before."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """All ids of a prompt."""

    prompt: PromptText
    ids: TokenIds
    encoded_tokens: int
    """Ids made now. Exact spans that were not in the prompt before count as neither made nor reused."""
    reused_tokens: int
    piece_chars: Offsets
    """First characters of the pieces that were encoded apart, and the length of the text."""
    piece_tokens: Offsets
    """First tokens of these pieces, and the number of ids."""
    locate: Locate

    @property
    def path(self) -> EncodePath:
        """How the ids were made."""
        return EncodePath.DELTA if self.reused_tokens else EncodePath.FULL

    @property
    def num_chars(self) -> int:
        """Characters of the prompt."""
        return len(self.prompt.text)

    def token_at(self, char: int) -> int:
        """Index of the first token that starts at character ``char`` or behind it; ``len(ids)`` where there is none.

        Costs nothing at the edges of pieces, of which every added token and exact span is one; elsewhere it encodes the
        piece again. Inside an exact span it is the first token behind the span: which of its ids spell what is unknown.
        """
        index = int(np.searchsorted(self.piece_chars, char))
        if index == len(self.piece_chars):
            return len(self.ids)
        if self.piece_chars[index] == char:
            return int(self.piece_tokens[index])
        start, end = int(self.piece_chars[index - 1]), int(self.piece_chars[index])
        first, behind = int(self.piece_tokens[index - 1]), int(self.piece_tokens[index])
        if behind - first > 1 and all(span.start != start for span in self.prompt.exact):
            for token, (token_start, _) in enumerate(self.locate(self.prompt, start, end)):
                if start + token_start >= char:
                    return first + token
        return behind
