"""JSON as text: arguments and schemas are read and compared here, and never parsed and dumped again.

A dump would change what the model or the client wrote (``1e5``, ``0.10``, ``-0``, ``\\u0041``, duplicate keys), and
with it the prompt's tokens.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import NoReturn

from services.tokenizer.dialects.json_reader import JsonReader, JsonState

_SPACE = " \t\n\r"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
_SPACED = {",": ", ", ":": ": "}
_SURROGATE = re.compile("[\ud800-\udfff]")
_WHOLE = re.compile(r"[^\\]+|\\u[0-9a-fA-F]{4}|\\[^u]")
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")


def is_json(text: str) -> bool:
    """Whether ``text`` is one JSON value, with or without whitespace around it."""
    reader = JsonReader()
    end = reader.push(text)
    return reader.finish() is JsonState.COMPLETE and not text[end:].strip(_SPACE)


def respace(text: str) -> str:
    """``text`` with ``", "`` and ``": "`` between its tokens; everything else as it is. Other text than JSON is
    returned unchanged."""
    if not is_json(text):
        return text
    return "".join(_SPACED.get(match.group(), match.group()) for match in _TOKEN.finditer(text))


@dataclass(frozen=True, slots=True)
class Member:
    """Of an object: the decoded key, and the value's text without whitespace around it."""

    key: str
    value: str


def split_object(text: str) -> list[Member] | None:
    """Members in order, duplicates included; None where ``text`` is no JSON object."""
    if not is_json(text) or not text.lstrip(_SPACE).startswith("{"):
        return None
    members: list[Member] = []
    position = text.index("{") + 1
    while True:
        position = _skip_space(text, position)
        if text[position] == "}":
            return members
        if text[position] == ",":
            position = _skip_space(text, position + 1)
        key, position = _take_value(text, position)
        value, position = _take_value(text, text.index(":", position) + 1)
        members.append(Member(decode_string(key), value))


def is_string(text: str) -> bool:
    """Whether a JSON value is a string."""
    return text.lstrip(_SPACE).startswith('"')


def decode_string(text: str) -> str:
    """The characters of a JSON string. A lone surrogate has none: it becomes U+FFFD, since text must encode."""
    decoded = json.loads(text)
    assert isinstance(decoded, str)
    return _SURROGATE.sub("\ufffd", decoded)


def quote(text: str) -> str:
    """``text`` as a JSON string, escaping only what must be."""
    return json.dumps(text, ensure_ascii=False)


def escape(text: str) -> str:
    """A piece of ``quote``'s result, without quotation marks: the pieces' escapes concatenate to the whole's."""
    return quote(text)[1:-1]


def same_value(first: str, second: str) -> bool:
    """Whether two texts are the same JSON value: an echo of arguments is spliced then.

    Numbers are compared exactly (``1e5`` equals ``100000``; 2^53 and 2^53+1 differ), the order of keys does not
    count, and of duplicate keys the last one does, since that is all a client's parser keeps. Texts that are no JSON
    are the same when they are equal.
    """
    if first == second:
        return True
    if not (is_json(first) and is_json(second)):
        return False
    return _value(first) == _value(second)


def _value(text: str) -> object:
    return json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_refuse)


def _number(text: str) -> tuple[Decimal | str]:
    """In a tuple, since to Python ``1 == True``. Exponents beyond Decimal's range (10^18) are compared as text."""
    try:
        return (Decimal(text),)
    except InvalidOperation:
        return (text,)


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is not JSON")


def _take_value(text: str, position: int) -> tuple[str, int]:
    """The text of a value in known JSON, and where it ends."""
    start = _skip_space(text, position)
    end = JsonReader().push(text, start)
    return text[start:end], end


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position


class StringDecoder:
    """Decodes the inside of a JSON string as it arrives; the input is known to be valid."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        """The characters that are certain; a begun escape, or half of a surrogate pair, is held."""
        self._held += text
        end = _certain_length(self._held)
        certain, self._held = self._held[:end], self._held[end:]
        return decode_string(f'"{certain}"')

    def finish(self) -> str:
        """The string is over."""
        rest, self._held = self._held, ""
        return decode_string(f'"{rest}"')


def _certain_length(text: str) -> int:
    """Without a begun escape, and without a high surrogate whose other half may follow."""
    position = certain = 0
    while (match := _WHOLE.match(text, position)) is not None:
        position = match.end()
        if not _HIGH_SURROGATE.fullmatch(match.group()):
            certain = position
    return certain
