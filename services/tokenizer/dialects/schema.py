"""Which JSON types a tool's parameters may have, for the formats that write strings without quotation marks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast
from urllib.parse import unquote

from services.tokenizer.dialects.events import ToolSpec
from services.tokenizer.dialects.json_text import is_json, is_string

ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
STRING_ONLY = frozenset({"string"})
PYTHON_LITERALS = {"True": "true", "False": "false", "None": "null"}
_MAX_REFERENCES = 32
"""In a chain of schemas: references may form a circle."""
_MAX_INDEX_DIGITS = 10

CUSTOM_PARAMETER = "input"
"""The one parameter, a string, of a custom tool in formats that know functions only."""


class ParameterTypes:
    """The declared types of all tools' parameters. Whatever a schema does not say, or says wrongly, is any type."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self._schemas = {tool.name: _schema_of(tool) for tool in tools}
        self._custom = frozenset(tool.name for tool in tools if tool.is_custom)

    def is_custom(self, tool: str) -> bool:
        """Whether a tool's arguments are free text."""
        return tool in self._custom

    def types(self, tool: str, parameter: str) -> frozenset[str]:
        """The JSON Schema type names that ``parameter`` may have; all of them where none are declared."""
        if tool in self._custom:
            return STRING_ONLY
        root = self._schemas.get(tool, {})
        properties = _object(root.get("properties"))
        return types_of(properties.get(parameter), root)


def read_value(text: str, types: frozenset[str], *, reads_python: bool = False) -> str | None:
    """The JSON text that an unquoted value is; None where it is a string.

    A string where nothing else is declared. Otherwise JSON of a declared type is that, and anything else is a
    string; where strings are not allowed, any JSON is better than a string. White space around a number or a literal
    makes it a string where that is allowed: written anew it would be lost. ``True``, ``False`` and ``None`` are
    JSON's literals where strings are not allowed, and with ``reads_python`` where they are one type of several.
    """
    if types == STRING_ONLY:
        return None
    is_python = text in PYTHON_LITERALS and (reads_python or "string" not in types)
    value = PYTHON_LITERALS[text] if is_python else text.strip()
    if not is_json(value):
        return None
    if "string" not in types:
        return value
    # A quoted text is a string with quotation marks, since the format writes none.
    kind = _kind(value)
    if not is_python and value != text and kind not in ("object", "array"):
        return None
    is_declared = kind in types or (kind == "number" and "integer" in types)
    return value if is_declared and kind != "string" else None


def _kind(value: str) -> str:
    if is_string(value):
        return "string"
    kinds = {"{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}
    return kinds.get(value[0], "number")


def _schema_of(tool: ToolSpec) -> Mapping[str, object]:
    return _object(json.loads(tool.parameters_json, parse_int=float)) if is_json(tool.parameters_json) else {}


def types_of(schema: object, root: Mapping[str, object]) -> frozenset[str]:
    """The JSON Schema type names that ``schema`` allows; all of them where it does not say. ``root`` has what its
    references point to."""
    return _types(schema, root, _MAX_REFERENCES, {})


def _types(
    schema: object, root: Mapping[str, object], num_references: int, known: dict[int, frozenset[str]]
) -> frozenset[str]:
    """``known``: by identity, so that a schema which refers to others many times costs no more than its size."""
    if not isinstance(schema, dict) or num_references == 0:
        return ALL_TYPES
    fields = cast("dict[str, object]", schema)
    if id(fields) not in known:
        # In a circle, nothing is said.
        known[id(fields)] = ALL_TYPES
        known[id(fields)] = _types_of_fields(fields, root, num_references, known)
    return known[id(fields)]


def _types_of_fields(
    fields: dict[str, object], root: Mapping[str, object], num_references: int, known: dict[int, frozenset[str]]
) -> frozenset[str]:
    declared = fields.get("type")
    if isinstance(declared, str):
        return frozenset({declared}) & ALL_TYPES or ALL_TYPES
    if isinstance(declared, list):
        return frozenset(name for name in _list(fields["type"]) if isinstance(name, str)) & ALL_TYPES or ALL_TYPES
    if "const" in fields:
        return frozenset({_type_of(fields["const"])})
    if isinstance(fields.get("enum"), list):
        return frozenset(_type_of(value) for value in _list(fields["enum"])) or ALL_TYPES
    for combiner in ("anyOf", "oneOf"):
        if isinstance(fields.get(combiner), list):
            options = [_types(option, root, num_references - 1, known) for option in _list(fields[combiner])]
            return frozenset[str]().union(*options) or ALL_TYPES
    if isinstance(fields.get("allOf"), list):
        parts = [_types(part, root, num_references - 1, known) for part in _list(fields["allOf"])]
        return ALL_TYPES.intersection(*parts) or ALL_TYPES
    if isinstance(fields.get("$ref"), str):
        return _types(resolve(str(fields["$ref"]), root), root, num_references - 1, known)
    return ALL_TYPES


def resolve(reference: str, root: Mapping[str, object]) -> object:
    """What a reference inside the same schema points to (RFC 6901, section 6); None where it points nowhere."""
    found: object = root
    if not reference.startswith("#/"):
        return None
    for step in unquote(reference[2:]).split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            options = _list(cast("object", found))
            is_index = key.isdecimal() and len(key) < _MAX_INDEX_DIGITS and int(key) < len(options)
            found = options[int(key)] if is_index else None
        else:
            found = _object(found).get(key)
    return found


def _type_of(value: object) -> str:
    match value:
        case bool():
            return "boolean"
        case str():
            return "string"
        case int() | float():
            return "number"
        case None:
            return "null"
        case list():
            return "array"
        case _:
            return "object"


def _object(value: object) -> Mapping[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[object]:
    return cast("list[object]", value)
