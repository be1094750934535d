"""``tojson`` writes what clients sent as they sent it, in the spacing that models were trained on."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tokenizer.prompt.marked import unmark
from services.tokenizer.prompt.tojson import JsonText, tojson

NUMBERS = ["1e5", "0.10", "-0", "9007199254740993", "1E+2", "100000000000000000000000"]

values = st.recursive(
    st.none() | st.booleans() | st.sampled_from(NUMBERS).map(float) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_stay_as_they_are_spelt(number: str) -> None:
    text = f'{{"b":[{number} ,{number}],"a" : {number}}}'
    value = JsonText(json.loads(text), text)
    assert tojson(value) == f'{{"b": [{number}, {number}], "a": {number}}}'


def test_strings_and_keys_stay_as_they_are_spelt() -> None:
    text = '{"z": "\\u00e9 é </script> \\/ a:b,c", "a": {}, "a": []}'
    assert tojson(JsonText(json.loads(text), text)) == text


@given(st.dictionaries(st.text(max_size=4), values, max_size=4), st.sampled_from([None, (",", ":"), (" , ", " : ")]))
def test_spacing_is_that_of_json_dumps(value: dict[str, object], separators: tuple[str, str] | None) -> None:
    for is_ascii in (True, False):
        text = json.dumps(value, ensure_ascii=is_ascii, separators=separators)
        assert tojson(JsonText(value, text)) == json.dumps(value, ensure_ascii=is_ascii)


@given(values)
def test_other_values_are_dumped_without_escapes_for_html(value: object) -> None:
    assert tojson(value) == json.dumps(value, ensure_ascii=False)


def test_a_template_can_look_into_it() -> None:
    value = JsonText({"type": "object", "properties": {"a": 1}}, "{}")
    assert (value["type"], value.get("x"), list(value["properties"]), isinstance(value, dict)) == (
        "object",
        None,
        ["a"],
        True,
    )


def test_what_is_to_be_laid_out_otherwise_is_dumped() -> None:
    value = JsonText({"b": 1, "a": 2}, '{"b":1,"a":2}')
    assert tojson(value, indent=1) == '{\n "b": 1,\n "a": 2\n}'
    assert tojson(value, separators=(",", ":")) == '{"b":1,"a":2}'
    assert tojson(value, sort_keys=True) == '{"a": 2, "b": 1}'
    assert tojson(JsonText({"a": "é"}, '{"a":"é"}'), ensure_ascii=True) == '{"a": "\\u00e9"}'


def test_marks_surround_the_whole() -> None:
    found = unmark("x" + str(tojson(JsonText({"a": 1}, '{"a":1}', "t"))) + "y")
    assert found is not None
    text, (place,) = found
    assert (text, text[place.start : place.end], place.name) == ('x{"a": 1}y', '{"a": 1}', "t")
    assert unmark(str(tojson(JsonText({"a": 1}, '{"a":1}')))) == ('{"a": 1}', ())
