"""Well-formed UTF-8, byte by byte (Unicode 15, table 3-7): text in values must decode, wherever tokens cut it."""

from __future__ import annotations

START = 0
INVALID = 8
NUM_STATES = 8

# States: 0 between characters; 1, 2, 3 continuation bytes to come; 4 after E0; 5 after ED; 6 after F0; 7 after F4.
_LEADS = (
    (0x00, 0x7F, 0),
    (0xC2, 0xDF, 1),
    (0xE0, 0xE0, 4),
    (0xE1, 0xEC, 2),
    (0xED, 0xED, 5),
    (0xEE, 0xEF, 2),
    (0xF0, 0xF0, 6),
    (0xF1, 0xF3, 3),
    (0xF4, 0xF4, 7),
)
_CONTINUATIONS = (
    (0x80, 0xBF, 0),
    (0x80, 0xBF, 1),
    (0x80, 0xBF, 2),
    (0xA0, 0xBF, 1),
    (0x80, 0x9F, 1),
    (0x90, 0xBF, 2),
    (0x80, 0x8F, 2),
)
"""Of the states from 1 on."""


def _table() -> list[list[int]]:
    table = [[INVALID] * 256 for _ in range(NUM_STATES + 1)]
    for state, ranges in ((0, _LEADS), *((state, (span,)) for state, span in enumerate(_CONTINUATIONS, 1))):
        for first, last, after in ranges:
            table[state][first : last + 1] = [after] * (last - first + 1)
    return table


NEXT = _table()
"""``NEXT[state][byte]``."""
