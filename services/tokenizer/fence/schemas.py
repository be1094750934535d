"""Reads JSON Schemas for programs: what a value may be as raw text, and what of a schema is about other values.

Schemas are untrusted. What is not understood is reported as dropped, never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard, cast

from services.tokenizer.dialects.schema import ALL_TYPES, STRING_ONLY, resolve, types_of
from services.tokenizer.fence.patterns import whole_pattern

Schema = Mapping[str, object]

_MAX_REFERENCES = 32
_MAX_DEPTH, _MAX_OPTIONS = 2, 256
"""Of ``anyOf`` and ``oneOf`` that are looked into; further ones are left to the engine, or said to be dropped."""
_MAX_CHARS = 2**31
_ANNOTATIONS = frozenset(
    ("$comment", "$defs", "$id", "$schema", "default", "definitions", "deprecated", "description", "examples")
) | {"readOnly", "title", "writeOnly"}
_COMBINERS = ("anyOf", "oneOf")
_OF_STRINGS = frozenset(("allOf", "contentEncoding", "format", "if", "not"))
"""Keywords that say something of strings which a program's raw text cannot."""
_OTHER_TYPES = sorted(ALL_TYPES - STRING_ONLY)


@dataclass(frozen=True, slots=True)
class TextRule:
    """What a string may be. ``choices`` None: any text within the limits (in characters) that matches ``pattern``."""

    choices: tuple[str, ...] | None = None
    min_chars: int = 0
    max_chars: int | None = None
    pattern: str | None = None
    dropped: tuple[str, ...] = ()
    """Keywords that are not in the rule."""


def read_object(text: str) -> Schema:
    """The schema in ``text``; without any keyword where it is none."""
    try:
        return as_schema(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def as_schema(value: object) -> Schema:
    """``value`` as an object; ``True`` and whatever is no schema is one without keywords."""
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def resolved(schema: Schema, root: Schema) -> Schema:
    """``schema``, or what it refers to."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        schema = as_schema(resolve(reference, root))
    return {}


def literals_of(schema: Schema, root: Schema, depth: int = _MAX_DEPTH) -> list[object] | None:
    """The values that ``schema`` lists one by one; None where there are others."""
    schema = resolved(schema, root)
    if "const" in schema:
        return [schema["const"]]
    if isinstance(schema.get("enum"), list):
        return [value for value in _list(schema["enum"]) if types_of({"const": value}, root) <= _widened(schema, root)]
    for combiner in _COMBINERS:
        options = _options(schema, combiner)
        if options is not None:
            found = [literals_of(option, root, depth - 1) for option in options] if depth else [None]
            return None if None in found else [value for values in found for value in values or ()]
    match schema.get("type"):
        case "null":
            return [None]
        case "boolean":
            return [True, False]
        case _:
            return None


def text_rule(schema: Schema, root: Schema, depth: int = _MAX_DEPTH) -> TextRule:
    """What ``schema`` says of strings."""
    schema = resolved(schema, root)
    for combiner in _COMBINERS:
        options = _options(schema, combiner)
        if options is not None and not depth:
            return TextRule(dropped=(combiner,))
        if options is not None:
            rules = [text_rule(option, root, depth - 1) for option in options if "string" in types_of(option, root)]
            return _either(rules, combiner)
    listed = None if "type" in schema and "string" not in types_of(schema, root) else literals_of(schema, root)
    if listed is not None:
        choices = tuple(dict.fromkeys(value for value in listed if _is_text(value)))
        return TextRule(choices) if choices else TextRule(dropped=("enum",))
    dropped = [keyword for keyword in schema if keyword in _OF_STRINGS]
    least, most = _count(schema.get("minLength")), _count(schema.get("maxLength"))
    if most is not None and most < (least or 0):
        most = None
        dropped.append("maxLength")
    pattern = schema.get("pattern")
    whole = whole_pattern(pattern) if _is_text(pattern) else None
    if pattern is not None and whole is None:
        dropped.append("pattern")
    return TextRule(None, least or 0, most, whole, tuple(dropped))


def without_strings(schema: Schema, root: Schema, depth: int = _MAX_DEPTH) -> Schema:
    """The part of ``schema`` that is about other values than strings; it allows some."""
    schema = resolved(schema, root)
    for combiner in _COMBINERS:
        options = _options(schema, combiner)
        if options is not None and depth:
            others = [
                without_strings(option, root, depth - 1) for option in options if types_of(option, root) != STRING_ONLY
            ]
            return others[0] if len(others) == 1 else {**schema, combiner: others}
    if isinstance(schema.get("enum"), list):
        return {**schema, "enum": [value for value in _list(schema["enum"]) if not isinstance(value, str)]}
    if isinstance(schema.get("type"), list):
        return {**schema, "type": [name for name in _list(schema["type"]) if name != "string"]}
    return schema if "type" in schema or "const" in schema else {**schema, "type": _OTHER_TYPES}


def keywords_of(schema: Schema, root: Schema, depth: int = _MAX_DEPTH) -> list[str]:
    """What ``schema`` demands beyond the types of its values."""
    schema = resolved(schema, root)
    found: list[str] = []
    for keyword in schema:
        options = _options(schema, keyword) if keyword in _COMBINERS else None
        if options is not None:
            if not depth or any(keywords_of(option, root, depth - 1) for option in options):
                found.append(keyword)
        elif keyword not in _ANNOTATIONS and keyword != "type":
            found.append(keyword)
    return found


def standalone(schema: object, root: Schema) -> str:
    """``schema`` as JSON that needs nothing else: what it refers to in ``root`` comes along, under ``$defs``.

    References that point nowhere, or out of the schema, stay as they are.
    """
    carried: dict[str, object] = {}

    def rewritten(value: object) -> object:
        if isinstance(value, list):
            return [rewritten(one) for one in cast("list[object]", value)]
        if not isinstance(value, dict):
            return value
        return {key: rewritten_member(key, one) for key, one in cast("dict[str, object]", value).items()}

    def rewritten_member(key: str, value: object) -> object:
        if key != "$ref" or not isinstance(value, str):
            # What an enum lists is no schema.
            is_listed = key == "enum" and isinstance(value, list)
            return cast("object", value) if is_listed else rewritten(cast("object", value))
        target = root if value == "#" else resolve(value, root)
        if target is None:
            return value
        # Characters that need no escape in a pointer or a fragment.
        name = value.removeprefix("#").strip("/").replace("/", ".").replace("~", "_").replace("%", "_") or "root"
        while name in carried and sources[name] != value:
            name += "_"
        if name not in carried:
            sources[name] = value
            carried[name] = True
            carried[name] = rewritten(target)
        return f"#/$defs/{name}"

    sources: dict[str, str] = {}
    try:
        result = rewritten(schema)
    except RecursionError:
        # Deeper than anything that is meant: any value.
        return "{}"
    if carried:
        # Nothing refers to definitions inside the schema any more.
        result = {**as_schema(result), "$defs": carried}
    return json.dumps(result)


def _options(schema: Schema, combiner: str) -> list[Schema] | None:
    """What ``combiner`` chooses from; None where it does not, or there is too much."""
    options = schema.get(combiner)
    if not isinstance(options, list) or len(_list(cast("object", options))) > _MAX_OPTIONS:
        return None
    return [as_schema(option) for option in _list(cast("object", options))]


def _either(rules: list[TextRule], combiner: str) -> TextRule:
    if len(rules) == 1:
        return rules[0]
    choices: list[str] = []
    for rule in rules:
        if rule.choices is None:
            is_free = any(one == TextRule() for one in rules)
            return TextRule(dropped=() if is_free else (combiner,))
        choices.extend(rule.choices)
    return TextRule(tuple(dict.fromkeys(choices))) if choices else TextRule(dropped=(combiner,))


def _widened(schema: Schema, root: Schema) -> frozenset[str]:
    """The declared types of an ``enum``; a number is an integer to ``types_of``."""
    declared = types_of({"type": schema["type"]}, root) if "type" in schema else ALL_TYPES
    return declared | {"number"} if "integer" in declared else declared


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < _MAX_CHARS else None


def encodes(text: str) -> bool:
    """Whether a text can be written: JSON can spell half of a surrogate pair, UTF-8 cannot."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _is_text(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and encodes(value)


def _list(value: object) -> list[object]:
    return cast("list[object]", value)
