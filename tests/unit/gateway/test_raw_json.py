"""Slices of a document against what a parser says of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.raw_json import RawJson

_SPACES = st.text(" \t\r\n", max_size=3)
_TEXTS = st.text(st.sampled_from('ab"\\/{}[]:, \n\u2028\u00e9\U0001f600\x00'), max_size=6)
_NUMBERS = st.sampled_from(["0", "-0", "1.0", "1e5", "1E+05", "-12.50", "123456789012345678901234567890"])


@st.composite
def _strings(draw: st.DrawFn) -> str:
    """A string's spelling; any of its characters may be escaped."""
    spelt = ['"']
    for character in draw(_TEXTS):
        escaped = json.dumps(character)[1:-1]
        units = character.encode("utf-16-be").hex()
        hexadecimal = "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
        plain = json.dumps(character, ensure_ascii=False)[1:-1]
        spelt.append(draw(st.sampled_from([plain, escaped, hexadecimal])))
    return "".join(spelt) + '"'


@st.composite
def _containers(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    """A list's or an object's spelling; keys may come twice."""
    is_object = draw(st.booleans())
    members: list[str] = []
    for value in draw(st.lists(inner, max_size=4)):
        key = f"{draw(_strings())}{draw(_SPACES)}:" if is_object else ""
        members.append(f"{draw(_SPACES)}{key}{draw(_SPACES)}{value}{draw(_SPACES)}")
    opening, closing = "{}" if is_object else "[]"
    return opening + (",".join(members) or draw(_SPACES)) + closing


_DOCUMENTS = st.recursive(
    st.sampled_from(["null", "true", "false"]) | _NUMBERS | _strings(), lambda inner: _containers(inner), max_leaves=12
)


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], Any]]:
    """Every place in a parsed document, and what lies there."""
    match value:
        case dict():
            members: Any = value.items()
        case list():
            members = enumerate(value)
        case _:
            members = ()
    return [(path, value), *(found for key, inner in members for found in paths_of(inner, (*path, key)))]


@given(_DOCUMENTS, _SPACES, _SPACES)
def test_every_slice_is_the_parsers_value(spelt: str, before: str, after: str) -> None:
    document = f"{before}{spelt}{after}"
    raw = RawJson(document.encode())
    for path, value in paths_of(json.loads(document)):
        found = raw.text(*path)
        assert found in document
        assert found == found.strip()
        assert json.dumps(json.loads(found)) == json.dumps(value)


@given(_DOCUMENTS, _DOCUMENTS, _strings())
def test_a_slice_is_exactly_what_was_put_in(value: str, neighbour: str, key: str) -> None:
    document = f'{{"x": {neighbour}, {key}: [{neighbour},{value} ], "z": {neighbour}}}'
    if json.loads(key) != "z":
        assert RawJson(document.encode()).text(json.loads(key), 1) == value


def test_the_last_of_equal_keys_counts_however_it_is_spelt() -> None:
    assert RawJson(rb'{"a": 1, "\u0061": [2.0], "b": "\"a\": 3"}').text("a") == "[2.0]"


@pytest.mark.parametrize("path", [("b",), ("a", 1), ("a", -1), ("a", "0"), ("a", 0, "x"), (0,)])
def test_what_is_not_there_is_a_key_error(path: tuple[str | int, ...]) -> None:
    with pytest.raises(KeyError):
        RawJson(b'{"a": ["x"]}').text(*path)


def test_long_runs_of_escapes_and_brackets() -> None:
    for value in ("\\" * 200_000, '"' * 100_000, "[{" * 100_000, "x" * 1_000_000):
        document = json.dumps({"a": [value, {"b": value}], "c": 1.0})
        assert RawJson(document.encode()).text("a", 1, "b") == json.dumps(value)
    deep = b'{"a": ' + b"[" * 1000 + b"]" * 1000 + b"}"
    assert RawJson(deep).text("a") == "[" * 1000 + "]" * 1000
