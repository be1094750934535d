"""The one spelling of JSON that survives a round trip: what `json.loads` and `json.dumps` (``ensure_ascii=False``) or
JavaScript's pair would write again.

An automaton over the bytes of a value. It does not check that they are JSON, only how they are spelt:

- a number has no exponent, is not ``-0``, has no zero at the end of its fraction, and with a fraction at most 15
  digits that count (what a double holds exactly) and at most three zeros behind ``0.`` (smaller ones are written with
  an exponent);
- a string escapes only what it must, in the shortest way (U+007F may be escaped, too, since the grammar library
  insists).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

_MAX_DIGITS = 15
_MAX_ZEROS = 3
_DIGITS = b"0123456789"
_SHORT_ESCAPES = b'"\\bfnrt'
_NAMED_CONTROLS = (0x08, 0x09, 0x0A, 0x0C, 0x0D)
_ESCAPED = frozenset(f"u{code:04x}".encode() for code in (*range(0x20), 0x7F) if code not in _NAMED_CONTROLS)

# A state is a tuple: ("out",), ("string",), ("escape", begun), ("minus",), ("zero", negative), ("int", digits),
# ("point", digits), ("zeros", zeros, digits), ("digits", digits), ("digits0", digits).
_State = tuple[object, ...]
_OUT: _State = ("out",)
_STRING: _State = ("string",)


def _after(state: _State, byte: int) -> _State | None:
    """The state behind one more byte; None where the spelling is not canonical."""
    match state:
        case ("string",):
            if byte == ord('"'):
                return _OUT
            return ("escape", b"") if byte == ord("\\") else _STRING
        case ("escape", bytes(begun)):
            if not begun and byte in _SHORT_ESCAPES:
                return _STRING
            longer = begun + bytes([byte])
            if longer in _ESCAPED:
                return _STRING
            return ("escape", longer) if any(escape.startswith(longer) for escape in _ESCAPED) else None
        case _:
            return _after_number(state, byte)


def _after_number(state: _State, byte: int) -> _State | None:
    if byte in _DIGITS:
        return _after_digit(state, byte == ord("0"))
    if byte in b"eE" and state[0] in ("zero", "int", "digits", "digits0"):
        return None
    if byte == ord("."):
        match state:
            case ("zero", bool()):
                return ("zeros", 0)
            case ("int", int(digits)):
                return ("point", digits) if digits < _MAX_DIGITS else None
            case _:
                return _OUT
    if state in (("zero", True), ("minus",)) or state[0] in ("zeros", "point", "digits0"):
        return None
    if byte == ord('"'):
        return _STRING
    return ("minus",) if byte == ord("-") else _OUT


def _after_digit(state: _State, is_zero: bool) -> _State | None:
    match state:
        case ("out",):
            return ("zero", False) if is_zero else ("int", 1)
        case ("minus",):
            return ("zero", True) if is_zero else ("int", 1)
        case ("int", int(digits)):
            return ("int", min(digits + 1, _MAX_DIGITS))
        case ("zeros", int(zeros)):
            if not is_zero:
                return ("digits", 1)
            return ("zeros", zeros + 1) if zeros < _MAX_ZEROS else None
        case ("point" | "digits" | "digits0", int(digits)):
            if digits >= _MAX_DIGITS or (is_zero and digits + 1 == _MAX_DIGITS):
                return None
            return ("digits0" if is_zero else "digits", digits + 1)
        case _:
            return None


START = 0
"""State before a value."""


def canonical_table() -> NDArray[np.uint8]:
    """``[states, 256]``; the last state is the one in which the spelling is not canonical."""
    return _tables()[0]


def unfinished_numbers() -> NDArray[np.bool_]:
    """By state: whether a number has begun that is not canonical if it ends there."""
    return _tables()[1]


@cache
def _tables() -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    numbers: dict[_State, int] = {_OUT: START}
    rows: list[list[_State | None]] = []
    pending = [_OUT]
    for state in pending:
        row = [_after(state, byte) for byte in range(256)]
        rows.append(row)
        for after in row:
            if after is not None and after not in numbers:
                numbers[after] = len(numbers)
                pending.append(after)
    wrong = len(numbers)
    assert wrong < 256
    table = [[wrong if after is None else numbers[after] for after in row] for row in rows]
    unfinished = [state[0] not in ("string", "escape") and _after(state, ord(",")) is None for state in numbers]
    return np.array([*table, [wrong] * 256], np.uint8), np.array([*unfinished, False])
