"""What is read out of JSON Schemas, of agents and of others."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from services.tokenizer.dialects.schema import ALL_TYPES, types_of
from services.tokenizer.fence.parameters import read_arguments
from services.tokenizer.fence.patterns import whole_pattern
from services.tokenizer.fence.program import Relaxed
from services.tokenizer.fence.schemas import TextRule, literals_of, standalone, text_rule, without_strings
from tests.unit.tokenizer.fence.agent_tools import tool

TEXTS = ("", "a", "ab", "ba", "abc", "a|b", "1", "a\nb", "^a", "$", "x-1", "ab^", "]", "é", "aab\n")


@pytest.mark.parametrize(
    "pattern",
    [
        "a",
        "^a",
        "b$",
        "^ab$",
        "^a|b$",
        "^(a|b)+$",
        "a|^b",
        "^[^a]$",
        "\\$$",
        "[|]",
        "^a\\|b$",
        "\\^",
        "(b)?",
        "",
        "^",
        "$",
    ],
)
def test_a_pattern_for_the_whole_text_finds_the_same_texts(pattern: str):
    whole = whole_pattern(pattern)
    assert whole is not None
    for text in TEXTS:
        # `$` of JSON Schema's dialect is the end, not the place before a last newline.
        found = re.search(re.sub(r"(?<!\\)\$$", r"\\Z", pattern), text)
        assert bool(re.fullmatch(whole, text)) == bool(found), text


@pytest.mark.parametrize("pattern", ["(^a|b$)", "a$b", "(a", "a)", "^a(?=b$)", "x^"])
def test_anchors_inside_are_not_understood(pattern: str):
    assert whole_pattern(pattern) is None


@pytest.mark.parametrize(
    ("schema", "rule"),
    [
        ({"type": "string"}, TextRule()),
        ({"type": "string", "minLength": 2, "maxLength": 5}, TextRule(None, 2, 5)),
        ({"type": "string", "minLength": 5, "maxLength": 2}, TextRule(None, 5, None, None, ("maxLength",))),
        ({"type": "string", "maxLength": 2**40, "minLength": True}, TextRule()),
        ({"type": "string", "pattern": "^a+$"}, TextRule(pattern="a+")),
        ({"type": "string", "pattern": "(^a)"}, TextRule(dropped=("pattern",))),
        ({"type": "string", "format": "uri"}, TextRule(dropped=("format",))),
        ({"enum": ["a", "b", "a", 1, "\ud800"]}, TextRule(("a", "b"))),
        ({"const": "a"}, TextRule(("a",))),
        ({"enum": ["\ud800"]}, TextRule(dropped=("enum",))),
        ({"anyOf": [{"const": "a"}, {"enum": ["b"]}, {"type": "null"}]}, TextRule(("a", "b"))),
        ({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}]}, TextRule(max_chars=3)),
        ({"anyOf": [{"const": "a"}, {"type": "string"}]}, TextRule()),
        ({"anyOf": [{"const": "a"}, {"type": "string", "minLength": 9}]}, TextRule(dropped=("anyOf",))),
        ({"$ref": "#/$defs/Name"}, TextRule(max_chars=7)),
        ({"$ref": "#/$defs/Nothing"}, TextRule()),
    ],
)
def test_rules_for_strings(schema: dict[str, Any], rule: TextRule):
    assert text_rule(schema, {"$defs": {"Name": {"type": "string", "maxLength": 7}}}) == rule


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"type": "boolean"}, [True, False]),
        ({"type": "null"}, [None]),
        ({"type": "string"}, None),
        ({"type": "integer", "enum": [1, "a", 2]}, [1, 2]),
        ({"anyOf": [{"type": "null"}, {"enum": ["a"]}]}, [None, "a"]),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, None),
    ],
)
def test_values_that_are_listed_one_by_one(schema: dict[str, Any], values: list[object] | None):
    assert literals_of(schema, {}) == values


@pytest.mark.parametrize(
    ("schema", "rest"),
    [
        ({"type": ["string", "integer"], "minimum": 3}, {"type": ["integer"], "minimum": 3}),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, {"type": "integer"}),
        ({"enum": ["a", 1, None]}, {"enum": [1, None]}),
        ({}, {"type": ["array", "boolean", "integer", "null", "number", "object"]}),
    ],
)
def test_the_part_of_a_schema_that_is_not_about_strings(schema: dict[str, Any], rest: dict[str, Any]):
    assert without_strings(schema, {}) == rest


def test_a_schema_by_itself_means_what_it_meant_in_its_place():
    properties: dict[str, Any] = {
        "node": {"$ref": "#/$defs/Node"},
        "same": {"$ref": "#/properties/node"},
        "own": {"$ref": "#/properties/own/$defs/Own", "$defs": {"Own": {"const": 1}}},
        "whole": {"type": "array", "items": {"$ref": "#"}},
        "odd": {"$ref": "#/$defs/a~1b%25"},
        "either": {"anyOf": [{"const": "a"}, {"const": "b"}]},
        "inside": {"$ref": "#/properties/either/anyOf/1"},
    }
    root = {
        "properties": properties,
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {"next": {"$ref": "#/$defs/Node"}, "x": {"$ref": "#/definitions/X"}},
            },
            "a/b%": {"type": "null"},
        },
        "definitions": {"X": {"type": "integer"}},
        "required": ["node"],
    }
    cases: list[tuple[str, Any, bool]] = [
        ("node", {"next": {"next": {}, "x": 1}}, True),
        ("node", {"next": {"x": "1"}}, False),
        ("same", {"x": 1}, True),
        ("same", 3, False),
        ("own", 1, True),
        ("own", 2, False),
        ("whole", [{"node": {}}], True),
        ("whole", [{}], False),
        ("odd", None, True),
        ("odd", 1, False),
        ("inside", "b", True),
        ("inside", "a", False),
    ]
    for key, value, is_valid in cases:
        alone = json.loads(standalone(properties[key], root))
        assert Draft202012Validator(alone).is_valid(value) is is_valid, (key, value)


def test_references_that_lead_nowhere_stay():
    schema = {"$ref": "https://example.org/schema", "items": {"$ref": "#/nowhere"}}
    assert json.loads(standalone(schema, {})) == schema


def test_schemas_that_refer_to_each_other_many_times_cost_no_more_than_their_size():
    doubled = {f"D{n}": {"anyOf": [{"$ref": f"#/$defs/D{n + 1}"}] * 2} for n in range(200)}
    root = {"$defs": doubled | {"D200": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/D0"}}}
    assert types_of(root["properties"]["a"], root) <= ALL_TYPES
    arguments = read_arguments(tool("f", root))
    assert arguments is not None
    (parameter,) = arguments.parameters
    text_rule(parameter.schema, root)
    literals_of(parameter.schema, root)
    assert len(parameter.json_schema()) < 100_000


def test_what_keys_cannot_say_of_an_object_is_reported():
    schema = {
        "type": "object",
        "properties": {"a": {}},
        "minProperties": 1,
        "anyOf": [{"required": ["a"]}],
        "title": "T",
    }
    arguments = read_arguments(tool("f", schema))
    assert arguments is not None
    assert arguments.relaxed == (Relaxed("tools.f", "minProperties"), Relaxed("tools.f", "anyOf"))


@pytest.mark.parametrize(
    ("schema", "is_open"),
    [
        ({}, True),
        ({"type": "object"}, True),
        ({"properties": {}}, False),
        ({"properties": {}, "additionalProperties": {"type": "string"}}, True),
        ({"properties": {}, "patternProperties": {"^x": {}}}, True),
        ({"additionalProperties": False}, False),
        ({"properties": {"a": {}}, "additionalProperties": True}, False),
    ],
)
def test_arguments_are_open_only_where_nothing_is_declared(schema: dict[str, Any], is_open: bool):
    arguments = read_arguments(tool("f", schema))
    assert arguments is not None
    assert arguments.is_open is is_open
