import pytest

from services.tokenizer.dialects.events import ToolSpec
from services.tokenizer.dialects.schema import ALL_TYPES, ParameterTypes


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ('{"type": "string"}', {"string"}),
        ('{"type": ["string", "null"]}', {"string", "null"}),
        ('{"type": "file"}', ALL_TYPES),
        ('{"type": 7}', ALL_TYPES),
        ("{}", ALL_TYPES),
        ("true", ALL_TYPES),
        ('{"enum": ["a", 1, true, null]}', {"string", "number", "boolean", "null"}),
        ('{"const": []}', {"array"}),
        ('{"anyOf": [{"type": "string"}, {"oneOf": [{"type": "null"}, {"const": {}}]}]}', {"string", "null", "object"}),
        ('{"allOf": [{"type": ["string", "null"]}, {"type": ["string", "integer"]}]}', {"string"}),
        ('{"$ref": "#/$defs/a~1b"}', {"boolean"}),
        ('{"$ref": "#/$defs/circle"}', ALL_TYPES),
        ('{"$ref": "#/$defs/nowhere"}', ALL_TYPES),
        ('{"$ref": "https://example.org/schema"}', ALL_TYPES),
        ('{"type": "integer", "maximum": ' + "9" * 5000 + "}", {"integer"}),
    ],
)
def test_types_are_those_a_schema_declares(schema: str, expected: set[str]):
    definitions = '{"a/b": {"type": "boolean"}, "circle": {"$ref": "#/$defs/circle"}}'
    tool = ToolSpec("f", None, f'{{"properties": {{"p": {schema}}}, "$defs": {definitions}}}')
    assert ParameterTypes([tool]).types("f", "p") == expected


@pytest.mark.parametrize("schema", ["", "not json", "[]", "{}", '{"properties": []}'])
def test_whatever_says_nothing_means_any_type(schema: str):
    types = ParameterTypes([ToolSpec("f", None, schema)])
    assert types.types("f", "p") == ALL_TYPES
    assert types.types("unknown", "p") == ALL_TYPES


def test_a_custom_tool_takes_text_whatever_its_schema_says():
    types = ParameterTypes([ToolSpec("patch", None, '{"properties": {"input": {"type": "object"}}}', is_custom=True)])
    assert types.is_custom("patch")
    assert types.types("patch", "input") == {"string"}
