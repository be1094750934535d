"""Rows that depend on the vocabulary alone, worked out once per model."""

from __future__ import annotations

import numpy as np

from services.engine.fence import utf8
from services.engine.fence.byte_tables import walk_all
from services.engine.fence.json_text import canonical_table, unfinished_numbers
from services.engine.fence.tokens import FenceTokens


class TokenRows:
    """Takes some tenths of a second to build; only read after that."""

    def __init__(self, tokens: FenceTokens) -> None:
        self.tokens = tokens
        after = walk_all(tokens.texts, np.array(utf8.NEXT, np.uint8), np.arange(utf8.NUM_STATES, dtype=np.uint8))
        self.utf8 = tuple(tokens.row_of(states != utf8.INVALID) & tokens.text_row for states in after)
        """The text tokens that go on well-formed, by the state of the character begun."""
        table, unfinished = canonical_table(), unfinished_numbers()
        wrong = len(table) - 1
        after = walk_all(tokens.texts, table, np.arange(wrong, dtype=np.uint8))
        self.canonical = tuple(tokens.row_of(states != wrong) for states in after)
        """The tokens that go on as canonical JSON, by state of ``json_text``."""
        self.unfinished = tuple(tokens.row_of(unfinished[states]) for states in after)
        """The tokens behind which a number is not canonical yet."""
