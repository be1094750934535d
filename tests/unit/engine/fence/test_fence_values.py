"""JSON values by schema, and grammars of a caller's own."""

import json
import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.engine.fence.json_text import START, canonical_table
from services.engine.fence.machine import Fence
from services.engine.fence.open_keys import OpenKeys
from services.engine.fence.program import Branch, Choose, Grammar, GrammarSyntax, Literal, Mark, Sequence, Value
from services.engine.fence.schema import JsonSchema, Strictness
from services.engine.fence.values import ValueCompiler
from tests.unit.engine.fence.small_fences import (
    eos,
    fence,
    is_over,
    legal,
    marker,
    program,
    small_compiler,
    small_tokens,
    takes,
    write,
)

WRONG = len(canonical_table()) - 1


def value(schema: Any, **more: Any) -> Fence:
    """``schema`` between ``">`` and ``</`` with a marker."""
    after = "</<tool_call>"
    return fence(Value(json.dumps(schema), '">', after, **more), markers=["<tool_call>"])


def takes_value(schema: Any, text: str, **more: Any) -> bool:
    return takes(value(schema, **more), '">', text, "</", marker("<tool_call>"), eos())


def relaxed(schema: Any) -> list[tuple[str, str]]:
    compiled = small_compiler().compile(program(Value(json.dumps(schema))))
    return [(one.path, one.keyword) for one in compiled.relaxed]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, ["0", "-7", "12345678901234567890"], ["-0", "01", "1.0", "1e5", " 1", '"1"']),
        ({"type": "number"}, ["0.5", "-0.5", "1.25", "0.0001", "7"], ["-0", "-0.0", "1.0", "0.10", "1e5", "0.00001"]),
        ({"type": "integer", "minimum": 3, "maximum": 12}, ["3", "12"], ["2", "13", "3.5"]),
        ({"type": "string", "maxLength": 2}, ['""', '"é字"', '"\\n"'], ['"abc"', '"\\u0041"', '"\\/"', '"\\u000a"']),
        ({"type": "boolean"}, ["true", "false"], ["True", "null"]),
        ({"enum": ["a", 1, None]}, ['"a"', "1", "null"], ['"b"', "2"]),
        (
            {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
            ["[]", "[1, 2]"],
            ["[1,2]", "[1, 2, 3]", "[ ]"],
        ),
        ({"type": "object"}, ["{}", '{"a": [{"b": null}], "c": "}"}'], ['{"a":1}', "[]", '{"a": 1, "a": 2}', "{ }"]),
    ],
)
def test_a_value_fits_its_schema_in_canonical_form(schema: Any, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not takes_value(schema, text)] == []
    assert [text for text in bad if takes_value(schema, text)] == []


def test_properties_are_required_known_and_in_the_schemas_order() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert takes_value(schema, '{"a": 1}')
    assert takes_value(schema, '{"a": 1, "b": "x"}')
    for text in ("{}", '{"b": "x"}', '{"a": 1, "c": 2}', '{"a": 1, "a": 2}', '{"b": "x", "a": 1}'):
        assert not takes_value(schema, text)


def test_keys_that_a_schema_leaves_open_come_once() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    assert takes_value(schema, '{"a": "a", "ab": "a", "b": "a"}')
    assert not takes_value(schema, '{"a": "x", "ab": "x", "a"')
    nested = {"type": "array", "items": {"type": "object"}}
    assert takes_value(nested, '[{"a": {"a": 1}}, {"a": 2, "b": [{"a": "\\"a\\""}]}]')
    assert not takes_value(nested, '[{"a": {"a": 1}, "a"')


def test_other_spellings_are_legal_where_canonical_form_is_not_wanted() -> None:
    assert takes_value({"type": "number"}, "1.0e5", is_canonical=False)
    assert takes_value({"type": "number"}, "-0", is_canonical=False)


def test_a_number_is_not_led_to_where_it_cannot_end() -> None:
    most = value({"type": "number", "maximum": 90, "minimum": 90})
    write(most, '">', "90")
    assert not takes(most, ".")
    whole = value({"type": "integer"})
    write(whole, '">', "-")
    assert not takes(whole, "0")


def test_digits_that_a_double_cannot_hold_are_illegal() -> None:
    assert takes_value({"type": "number"}, "8.50771100084032")
    assert not takes_value({"type": "number"}, "8.507711000840321")
    assert not takes(fence(Sequence((1, 2)), Value('{"type": "number"}'), Literal(";")), "8.507711000840320")


def test_where_only_another_spelling_fits_the_schema_wins() -> None:
    assert takes_value({"const": -0.0}, "-0")


def test_forbidden_texts_do_not_appear_in_strings() -> None:
    schema = {"type": "string"}
    assert takes_value(schema, '"</x>"', forbidden=("｜DSML｜",))
    assert not takes_value(schema, '"｜DSML｜', forbidden=("｜DSML｜",))


def test_control_tokens_and_the_end_are_illegal_inside_strings() -> None:
    one = value({"type": "string"})
    write(one, '">"a')
    assert legal(one).isdisjoint({eos(), marker("<think>"), marker("<tool_call>"), marker("｜DSML｜")})


def test_the_value_may_be_over_or_go_on() -> None:
    one = fence(Sequence((1, 2)), Value('{"type": "integer"}'), Literal("0!"))
    write(one, "12")
    assert takes(one, "0!")
    assert takes(one, "30!")
    assert takes(one, "00!")
    assert not takes(one, "!")


def test_behind_what_begins_one_alternative_no_other_begins() -> None:
    keys = Choose((Branch("k", 3), Branch("read_", 4)))
    one = fence(Sequence((1, 2)), Value('{"type": "integer"}'), keys, Literal("a"), Literal("b"))
    for text in ("7", "re"):
        (token_id,) = small_tokens().encode(text)
        assert token_id in legal(one)
        assert one.push(token_id)
    assert takes(one, "ad_b")
    assert not takes(one, "ka")
    assert not takes(one, "read_b")


def test_a_value_with_nothing_behind_it_ends_the_answer() -> None:
    one = fence(Value('{"type": "integer"}'))
    assert not one.is_finishable
    assert is_over(one, "1")
    assert takes(one, "12", eos())


@pytest.mark.parametrize(
    ("schema", "places"),
    [
        ({"type": "array", "uniqueItems": True}, [("nodes[0]", "uniqueItems")]),
        (
            {"type": "object", "properties": {"a": {"type": "string", "format": "odd"}, "description": {}}},
            [("nodes[0]/properties/a", "format")],
        ),
        ({"type": "string", "pattern": "(?=x)"}, [("nodes[0]", "pattern")]),
        ({"type": "integer", "minimum": 5, "maximum": 2}, [("nodes[0]", "minimum"), ("nodes[0]", "maximum")]),
        ({"$ref": "http://example.com/schema"}, [("nodes[0]", "$ref")]),
        ({"type": "nonsense"}, [("nodes[0]", "type")]),
        ({"not": {"type": "string"}}, [("nodes[0]", "not")]),
        (False, [("nodes[0]", "schema")]),
    ],
)
def test_what_cannot_be_enforced_is_named_and_relaxed(schema: Any, places: list[tuple[str, str]]) -> None:
    assert relaxed(schema) == places


def test_relaxing_keeps_what_it_can() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?!x)"}}, "required": ["a"]}
    assert ("nodes[0]/properties/a", "pattern") in relaxed(schema)
    assert takes_value(schema, '{"a": "x"}')
    assert not takes_value(schema, '{"a": 1')
    assert not takes_value(schema, "{}")


def test_one_value_relaxed_leaves_the_others_alone() -> None:
    one = fence(Sequence((1, 2)), Value('{"type": "integer", "pattern": "("}', after=","), Value('{"type": "boolean"}'))
    assert takes(one, "1,true")
    assert not takes(one, "1,1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "{",
        "\ud800".encode(errors="replace").decode(),
        '{"enum": ["' + "x" * 100_000 + '"]}',
        "[" * 5_000,
        '{"items":' * 3_000 + "{}" + "}" * 3_000,
        '{"type": "string", "pattern": "(a{1000}){1000}(b{1000}){1000}"}',
        '{"type": "string", "pattern": "' + "(x+x+)+" * 40 + 'y"}',
        '{"type": "array", "maxItems": 1000000000, "minItems": 999999999}',
        '{"type": "integer", "minimum": 1e999}',
        '{"$ref": "#"}',
        '{"allOf": [' + ",".join(['{"type": "object", "properties": {"a": {}}}'] * 200) + "]}",
    ],
)
def test_a_hostile_schema_neither_fails_nor_hangs(text: str) -> None:
    one = Fence(small_compiler().compile(program(Value(text))))
    for _ in range(20):
        allowed = sorted(legal(one))
        assert allowed
        assert one.push(allowed[len(allowed) // 2])
        if one.is_finishable:
            break


def test_what_other_values_met_does_not_weaken_a_schema() -> None:
    schema = {"type": "string", "pattern": "^(a{0,30000}|b{0,30000})$"}
    compiled = small_compiler().compile(program(Value(json.dumps(schema))))
    for letter in "abab":
        one = Fence(compiled)
        for token_id in small_tokens().encode('"' + letter * 29_000):
            assert one.push(token_id)
        assert takes(one, letter)
        assert not takes(one, "ab".replace(letter, ""))
        assert takes(one, '"', eos())
    assert compiled.relaxed == ()


@pytest.mark.parametrize(
    "bad", ['{"type": "nonsense-that-stays", "minimum": "x"}', '{"type": "array", "uniqueItems": true}']
)
def test_values_compiled_together_are_those_compiled_alone(bad: str) -> None:
    schemas = ['{"type": "integer", "minimum": 7}', '{"items": {"enum": ["a", "b"]}}', bad, '{"type": "string"}', "{}"]
    wanted = [(Value(schema), b'">', (b"</", b"")) for schema in schemas]
    together, alone = (ValueCompiler(small_compiler().rows) for _ in range(2))
    together.compile_together(wanted, math.inf)
    rng = random.Random(bad)
    for node, joint, tails in wanted:
        one, other = (values.compile(node, joint, tails) for values in (together, alone))
        assert one is not None
        assert other is not None
        assert (one.dropped, one.strictness) == (other.dropped, other.strictness)
        first, second = one.matcher.deep_copy(), other.matcher.deep_copy()
        for _ in range(60):
            bits = first.compute_bitmask()
            assert bits == second.compute_bitmask()
            legal_ids = [at for at in range(small_tokens().num_ids) if bits[at >> 3] >> (at & 7) & 1]
            if not legal_ids:
                break
            token_id = rng.choice(legal_ids)
            assert (first.consume_token(token_id), second.consume_token(token_id)) == (True, True)
            assert first.is_accepting() == second.is_accepting()


def test_a_schema_is_compiled_once() -> None:
    first = small_compiler().compile(program(Value('{"type": "integer", "minimum": 41}')))
    assert small_compiler().compile(program(Value('{"type": "integer", "minimum": 41}'))) is first
    text = JsonSchema('{"type": "string", "description": "x", "properties": {"title": {"title": "t"}}}')
    assert json.loads(text.text(Strictness.WHOLE)) == {"type": "string", "properties": {"title": {}}}


def test_grammars_of_a_callers_own() -> None:
    lark = fence(Sequence((1, 2)), Grammar(GrammarSyntax.LARK, 'start: "ab" | "cd" NAME\nNAME: /[xy]+/'), Literal("!"))
    assert takes(lark, "ab!")
    assert takes(lark, "cdxyx!")
    assert not takes(lark, "cd!")
    regex = fence(Sequence((1, 2)), Grammar(GrammarSyntax.REGEX, "[0-9]{2}/x"), Mark(marker("<think>")))
    assert takes(regex, "12/x", marker("<think>"))
    assert not takes(regex, "1/")
    schema = fence(Grammar(GrammarSyntax.JSON_SCHEMA, '{"type": "array", "items": {"type": "integer"}}'))
    assert takes(schema, "[1, 2]", eos())
    assert not takes(schema, "[1,2")


def test_a_grammar_that_does_not_compile_is_relaxed() -> None:
    compiled = small_compiler().compile(program(Grammar(GrammarSyntax.LARK, "start: nothing_like_it(")))
    assert [(one.path, one.keyword) for one in compiled.relaxed] == [("nodes[0]", "grammar")]
    assert takes(Fence(compiled), "anything", eos())


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=6)
    | st.decimals(-1000, 1000, places=3).map(float).filter(lambda number: number != int(number)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3).filter(str.isprintable), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(json_values)
@settings(max_examples=30)
def test_what_json_dumps_writes_is_canonical_and_legal(found: Any) -> None:
    text = json.dumps(found, ensure_ascii=False)
    state = START
    for byte in text.encode():
        state = int(canonical_table()[state][byte])
        assert state != WRONG
    assert takes_value({}, text)


@given(json_values)
def test_open_keys_are_those_written_so_far(found: Any) -> None:
    keys = OpenKeys()
    keys.push(b"[")
    keys.push(json.dumps(found, ensure_ascii=False).encode())
    assert list(keys.repeating()) == []
    keys.push(b', {"a": {"b": "c", "d\\"": 1}, "e": [2')
    assert sorted(keys.repeating()) == []
    keys.push(b"], ")
    assert sorted(keys.repeating()) == [b'"a"', b'"e"']
    keys.push(b'"a')
    assert list(keys.repeating()) == [b'"']
    keys.push(b'f": {')
    assert list(keys.repeating()) == []
    keys.push(b"}")
    assert sorted(keys.repeating()) == [b', "a"', b', "af"', b', "e"']


@pytest.mark.parametrize(
    "inner",
    [
        {"$id": "http://x/a.json", "$ref": "#/$defs/whole", "$defs": {"whole": {"type": "integer"}}},
        {"$ref": "numbers.json"},
        {"$ref": "http://x/root.json#/$defs/number"},
    ],
)
def test_references_are_resolved_by_the_ids_of_the_schemas_they_are_in(inner: Any) -> None:
    schema = {
        "$id": "http://x/root.json",
        "type": "object",
        "properties": {"a": inner},
        "$defs": {
            "whole": {"type": "string"},
            "number": {"type": "integer"},
            "other": {"$id": "numbers.json", "type": "integer"},
        },
    }
    assert relaxed(schema) == []
    assert takes_value(schema, '{"a": 1}')
    assert not takes_value(schema, '{"a": "1"}')


def test_an_id_that_nothing_refers_to_costs_nothing() -> None:
    schema = {"$id": "no uri", "type": "array", "items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"const": 1}}}
    assert relaxed(schema) == []
    assert takes_value(schema, "[1]")
    assert not takes_value(schema, "[2]")


def test_counts_may_be_written_with_a_fraction_of_zero() -> None:
    assert relaxed({"type": "string", "minLength": 1.0, "maxLength": 2.0}) == []
    assert not takes_value({"type": "string", "minLength": 1.0, "maxLength": 2.0}, '"abc"')


def test_a_keyword_that_is_ignored_in_several_places_is_named() -> None:
    inner = {"$dynamicAnchor": "x", "type": "integer"}
    schema = {"type": "array", "prefixItems": [inner, inner], "items": False}
    assert relaxed(schema) == [(f"nodes[0]/prefixItems/{place}", "$dynamicAnchor") for place in (0, 1)]


def test_a_type_that_json_does_not_have_is_dropped_and_nothing_else() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "String", "enum": ["x"]}, "b": {"type": ["integer", "long"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    assert relaxed(schema) == [(f"nodes[0]/properties/{name}", "type") for name in "ab"]
    assert takes_value(schema, '{"a": "x", "b": "y"}')
    for text in ('{"a": "y"', '{"b": 1', '{"a": "x"}', '{"a": "x", "b": 1, "c"'):
        assert not takes_value(schema, text)
