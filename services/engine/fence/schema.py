"""JSON Schemas made ready for the grammar library, and how much of one can be enforced.

A schema is untrusted. Types that JSON does not have are dropped. What else the library does not know, or refuses, is
given up for that value alone, in steps: first everything but the shape, then everything but the type, then any JSON
will do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, cast

from services.engine.fence.formats import PATTERNS

_MAX_SCHEMA_CHARS = 64 * 1024
_ANNOTATIONS = frozenset(
    ("$comment", "$schema", "default", "deprecated", "description", "examples", "readOnly", "title")
) | {"writeOnly", "x-guidance"}
_SHAPE = frozenset(
    ("$anchor", "$defs", "$id", "$ref", "additionalProperties", "anyOf", "const", "definitions", "enum", "items")
) | {"oneOf", "prefixItems", "properties", "required", "type"}
_MAPS = frozenset(("$defs", "definitions", "dependentSchemas", "patternProperties", "properties"))
_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_COUNTS = frozenset(
    ("maxContains", "maxItems", "maxLength", "maxProperties", "minContains", "minItems", "minLength", "minProperties")
)
_SCHEMAS = frozenset(
    ("additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then", "unevaluatedItems")
) | {"unevaluatedProperties"}
_DIALECT = re.compile(r"https?://(?:json-schema\.org/(?:draft[-/][0-9-]+/)?schema|spec\.openapis\.org/oas/3\.\d/\S+)#?")
"""What ``$schema`` may name: a draft of JSON Schema, or OpenAPI's variant of one."""
_TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))


class Strictness(IntEnum):
    """How much of a schema is kept."""

    ANY = 0
    TYPE = 1
    SHAPE = 2
    WHOLE = 3


class JsonSchema:
    """One schema as received."""

    def __init__(self, text: str) -> None:
        """Text that is no schema, or too long, allows anything."""
        self.fault: str | None = None
        schema: Any = True
        if len(text) > _MAX_SCHEMA_CHARS:
            self.fault = "schema"
        else:
            try:
                schema = json.loads(text)
            except (ValueError, RecursionError):
                self.fault = "schema"
        if type(schema) not in (dict, bool):
            self.fault, schema = "schema", True
        self._schema: object = True
        self._unknown_types: list[tuple[str, str]] = []
        try:
            if any(key == "$schema" and not _is_dialect(value) for _, key, value in _fields(schema)):
                # Its keywords may mean something else, or nothing.
                self.fault, schema = "$schema", True
            ignored = _ANNOTATIONS if _needs_ids(schema) else _ANNOTATIONS | {"$id"}
            self._schema = _rewritten(schema, lambda key, value: key not in ignored and _is_known(key, value))
            self._unknown_types = [(at, key) for at, key, value in _fields(schema) if not _is_known(key, value)]
        except RecursionError:
            self.fault = "schema"

    def text(self, strictness: Strictness) -> str:
        """The schema without annotations; equal for equal constraints."""
        match strictness:
            case Strictness.WHOLE:
                kept = _with_patterns(self._schema)
            case Strictness.SHAPE:
                kept = _rewritten(self._schema, lambda key, _: key in _SHAPE)
            case Strictness.TYPE:
                kept = {key: value for key, value in self._top().items() if key == "type"}
            case Strictness.ANY:
                kept = {}
        return json.dumps(kept, ensure_ascii=False)

    def dropped(self, strictness: Strictness) -> list[tuple[str, str]]:
        """(pointer, keyword) of what is not kept."""
        if self.fault is not None:
            return [("", self.fault)]
        if self._schema is False:
            # Nothing fits it.
            return [("", "schema")]
        match strictness:
            case Strictness.WHOLE:
                dropped = []
            case Strictness.SHAPE:
                dropped = [(pointer, keyword) for pointer, keyword in _keywords(self._schema) if keyword not in _SHAPE]
            case Strictness.TYPE:
                dropped = [("", keyword) for keyword in self._top() if keyword != "type"]
            case Strictness.ANY:
                dropped = [("", keyword) for keyword in self._top()] or [("", "schema")]
        return self._unknown_types + dropped

    def places(self, keyword: str) -> list[str]:
        """JSON pointers of the schemas that have ``keyword``."""
        return [pointer for pointer, found in _keywords(self._schema) if found == keyword]

    def has_open_objects(self, strictness: Strictness) -> bool:
        """Whether the value may hold objects with keys that it does not name."""
        return _is_open(json.loads(self.text(strictness)))

    def _top(self) -> dict[str, Any]:
        schema = self._schema
        return cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}


def _rewritten(schema: object, keeps: Callable[[str, object], bool]) -> object:
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, object] = {}
    for key, value in cast("dict[str, object]", schema).items():
        if keeps(key, value):
            kept[key] = _map_inside(key, value, lambda inner: _rewritten(inner, keeps))
    return kept


def _with_patterns(schema: object) -> object:
    """With the patterns of formats in their place."""
    if not isinstance(schema, dict):
        return schema
    fields = cast("dict[str, object]", schema)
    changed = {key: _map_inside(key, value, _with_patterns) for key, value in fields.items()}
    name = fields.get("format")
    patterns = PATTERNS.get(name) if isinstance(name, str) else None
    if patterns is not None:
        del changed["format"]
        others = changed.get("allOf")
        parts: list[object] = [*(cast("list[object]", others) if isinstance(others, list) else ())]
        changed["allOf"] = [*parts, *({"pattern": pattern} for pattern in patterns)]
    return changed


def _map_inside(key: str, value: object, change: Callable[[object], object]) -> object:
    """``value`` of the keyword ``key`` with the schemas inside it changed."""
    if key in _MAPS and isinstance(value, dict):
        return {name: change(inner) for name, inner in cast("dict[str, object]", value).items()}
    if key in _LISTS and isinstance(value, list):
        return [change(inner) for inner in cast("list[object]", value)]
    if key in _COUNTS and isinstance(value, float) and value.is_integer():
        # The library refuses 2.0.
        return int(value)
    return change(value) if key in _SCHEMAS else value


def _is_dialect(value: object) -> bool:
    return isinstance(value, str) and _DIALECT.fullmatch(value) is not None


def _is_known(key: str, value: object) -> bool:
    """False for types that are none of JSON's (``String``, ``any``): the library would refuse the whole schema."""
    names = cast("list[object]", value) if isinstance(value, list) else [value]
    return key != "type" or all(isinstance(name, str) and name in _TYPES for name in names)


def _needs_ids(schema: object) -> bool:
    """Whether references depend on ids: the library refuses some, which must not cost what is enforced."""
    return any(
        (key == "$id" and pointer) or (key == "$ref" and not str(value).startswith("#"))
        for pointer, key, value in _fields(schema)
    )


def _keywords(schema: object) -> Iterator[tuple[str, str]]:
    for pointer, key, _ in _fields(schema):
        yield pointer, key


def _fields(schema: object, pointer: str = "") -> Iterator[tuple[str, str, object]]:
    """(pointer, keyword, value) of the schema and those inside it."""
    if not isinstance(schema, dict):
        return
    for key, value in cast("dict[str, object]", schema).items():
        yield pointer, key, value
        if key in _MAPS and isinstance(value, dict):
            for name, inner in cast("dict[str, object]", value).items():
                yield from _fields(inner, f"{pointer}/{key}/{name}")
        elif key in _LISTS and isinstance(value, list):
            for number, inner in enumerate(cast("list[object]", value)):
                yield from _fields(inner, f"{pointer}/{key}/{number}")
        elif key in _SCHEMAS:
            yield from _fields(value, f"{pointer}/{key}")


def _is_open(schema: object) -> bool:
    """Right for all schemas that close their objects; True where it is not sure."""
    if not isinstance(schema, dict):
        return schema is not False
    fields = cast("dict[str, Any]", schema)
    is_list = isinstance(fields.get("type"), list)
    types: list[object] = fields["type"] if is_list else [fields["type"]] if "type" in fields else []
    if not types and not fields.keys() & {"enum", "const", "anyOf", "oneOf", "$ref"}:
        return True
    if "object" in types and fields.get("additionalProperties", True) is not False:
        return True
    if "object" in types and "patternProperties" in fields:
        return True
    if "array" in types and "items" not in fields:
        return True
    inside: list[object] = []
    for key, value in fields.items():
        if key in _MAPS and isinstance(value, dict):
            inside.extend(cast("dict[str, object]", value).values())
        elif key in _LISTS and isinstance(value, list):
            inside.extend(cast("list[object]", value))
        elif key == "items":
            inside.append(value)
    return any(map(_is_open, inside))
