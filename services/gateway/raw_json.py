"""How a JSON document spells its values, byte for byte.

A parser keeps values and loses spellings: ``1e5`` and ``1.0``, keys that come twice, escapes, spaces. A schema that is
written anew shares no prefix with the prompts it came in before, so what the model is to see is cut from the body.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import orjson

# A string that holds no escaped quote ends at the first one; the other branch reads its escapes one by one.
_STRING = rb'"(?:[^"]*+(?<!\\)"|(?:[^"\\]++|\\.)*+")'
_SCALAR = re.compile(_STRING + rb"|[^,\]}\s]++", re.DOTALL)
_UP_TO_BRACKET = re.compile(rb'(?:[^"{}\[\]]++|' + _STRING + rb")*+", re.DOTALL)
_SPACE = re.compile(rb"[ \t\n\r]*+")


class RawJson:
    """One document, which must be valid JSON in UTF-8.

    Nothing is read until something is asked for. Then each object or list on the way is read once, over all its bytes,
    since the last of equal keys is the one that counts.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._members_by_path: dict[tuple[str | int, ...], dict[str | int, slice]] = {}

    def text(self, *path: str | int) -> str:
        """The value at ``path`` (keys and list positions) as it is spelt, without the space around it.

        Raises KeyError where there is none.
        """
        return self._data[self._span(path)].decode()

    def _span(self, path: tuple[str | int, ...]) -> slice:
        if path:
            return self._members(path[:-1])[path[-1]]
        start = _after(_SPACE, self._data, 0)
        return slice(start, _value_end(self._data, start))

    def _members(self, path: tuple[str | int, ...]) -> dict[str | int, slice]:
        members = self._members_by_path.get(path)
        if members is None:
            members = dict(_read_members(self._data, self._span(path).start))
            self._members_by_path[path] = members
        return members


def _read_members(data: bytes, start: int) -> Iterator[tuple[str | int, slice]]:
    """Keys or positions, and where their values lie, of the object or list at ``start``; of a scalar, nothing."""
    if data[start] not in b"{[":
        return
    is_object = data[start] == ord("{")
    position = _after(_SPACE, data, start + 1)
    num_read = 0
    while data[position] not in b"}]":
        key: str | int = num_read
        if is_object:
            end = _after(_SCALAR, data, position)
            key = orjson.loads(data[position:end])
            position = _after(_SPACE, data, _after(_SPACE, data, end) + len(b":"))
        end = _value_end(data, position)
        yield key, slice(position, end)
        num_read += 1
        position = _after(_SPACE, data, end)
        if data[position] == ord(","):
            position = _after(_SPACE, data, position + 1)


def _value_end(data: bytes, start: int) -> int:
    if data[start] not in b"{[":
        return _after(_SCALAR, data, start)
    position, depth = start, 0
    while True:
        depth += 1 if data[position] in b"{[" else -1
        position += 1
        if not depth:
            return position
        position = _after(_UP_TO_BRACKET, data, position)


def _after(pattern: re.Pattern[bytes], data: bytes, position: int) -> int:
    match = pattern.match(data, position)
    assert match is not None, "the document is not valid JSON"
    return match.end()
