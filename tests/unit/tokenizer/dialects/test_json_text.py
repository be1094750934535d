import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.tokenizer.dialects.json_reader import MAX_DEPTH, JsonReader, JsonState
from services.tokenizer.dialects.json_text import (
    Member,
    StringDecoder,
    decode_string,
    escape,
    is_json,
    quote,
    respace,
    same_value,
    split_object,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
dumps = st.builds(json.dumps, values, ensure_ascii=st.booleans(), indent=st.none() | st.just(2))
json_like = st.lists(st.sampled_from([*'{}[]:,"\\ \n-.', "1", "0", "e", "true", "nul", "l", "\\u00e", "x", '"a"'])).map(
    "".join
)


def python_accepts(text: str) -> bool:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(text=dumps | json_like | st.text())
def test_json_is_told_from_other_text_as_python_does(text: str):
    assert is_json(text) == python_accepts(text)


@settings(max_examples=60, deadline=None)
@given(text=dumps, rest=st.sampled_from(["", " ", "}", ",", "</tool_call>", '"']))
def test_the_end_of_a_value_is_found_at_any_chunking(text: str, rest: str):
    whole = JsonReader()
    end = whole.push(text + rest)
    letters = JsonReader()
    position = 0
    for letter in text + rest:
        position += letters.push(letter)
    assert position == end == len(text)
    assert whole.finish() is letters.finish() is JsonState.COMPLETE


def test_nesting_is_bounded():
    assert is_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert not is_json("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))
    assert not same_value("[" * 100_000, "[" * 99_999)


@settings(max_examples=60, deadline=None)
@given(value=values, indent=st.none() | st.just(1))
def test_respacing_changes_whitespace_only(value: object, indent: int | None):
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    assert respace(text) == json.dumps(value, ensure_ascii=False)


def test_respacing_keeps_order_duplicates_and_spelling():
    text = '{"b":1e5 ,"a" : [0.10,-0,9007199254740993],\n"b":"\\u0041 , \\" : "}'
    assert respace(text) == '{"b": 1e5, "a": [0.10, -0, 9007199254740993], "b": "\\u0041 , \\" : "}'
    assert respace("{'a':1}") == "{'a':1}"


@settings(max_examples=60, deadline=None)
@given(value=values)
def test_equal_values_are_the_same_however_they_are_written(value: object):
    text = json.dumps(value, ensure_ascii=False)
    assert same_value(text, json.dumps(value, ensure_ascii=True, indent=3, sort_keys=True))


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("1e5", "100000", True),
        ("0.10", "0.1", True),
        ("-0", "0", True),
        ("9007199254740993", "9007199254740992", False),
        ("0.1", "0.1000000000000000055511151231257827", False),
        ("true", "1", False),
        ("null", "0", False),
        ('"1"', "1", False),
        ("[1, 2]", "[2, 1]", False),
        ('{"a": 1, "b": 2}', '{"b":2,"a":1}', True),
        ('{"a": 1, "a": 2}', '{"a": 2}', True),
        ('{"a": 1, "a": 2}', '{"a": 1}', False),
        ('"\\ud83d\\ude00"', '"😀"', True),
        ("1" * 5000, "1" * 5000 + ".0", True),
        ("1e99999999999999999999", "1E99999999999999999999", False),
        ("not json", "not json", True),
        ("not json", "not  json", False),
    ],
)
def test_values_are_compared_exactly(first: str, second: str, is_same: bool):
    assert same_value(first, second) is is_same
    assert same_value(second, first) is is_same


def test_an_object_is_split_into_texts():
    text = ' {"a" :1e5, "b\\n":[ 1,{"c":2} ],"a":"x, }" } '
    assert split_object(text) == [Member("a", "1e5"), Member("b\n", '[ 1,{"c":2} ]'), Member("a", '"x, }"')]
    assert split_object("{}") == []
    assert split_object("[1]") is None
    assert split_object('{"a": 1} x') is None


@settings(max_examples=60, deadline=None)
@given(text=st.text(), cut=st.integers(0, 10))
def test_pieces_of_a_string_are_escaped_and_decoded_like_the_whole(text: str, cut: int):
    assert f'"{escape(text[:cut])}{escape(text[cut:])}"' == quote(text)
    for written in (quote(text), json.dumps(text)):
        decoder = StringDecoder()
        assert "".join(decoder.push(letter) for letter in written[1:-1]) + decoder.finish() == text
        assert decode_string(written) == text


def test_a_lone_surrogate_becomes_a_replacement_character():
    decoder = StringDecoder()
    decoded = [decoder.push(letter) for letter in "a\\ud83d\\ud83d\\ude00\\ud83d"]
    assert "".join(decoded) + decoder.finish() == "a\ufffd😀\ufffd"
