"""A tool's parameters as programs need them: which keys, which values, which of them must be there."""

from __future__ import annotations

from dataclasses import dataclass

from services.tokenizer.dialects.events import ToolGrammar, ToolSpec
from services.tokenizer.dialects.schema import CUSTOM_PARAMETER, ParameterTypes, types_of
from services.tokenizer.fence.program import Relaxed
from services.tokenizer.fence.schemas import (
    Schema,
    as_schema,
    keywords_of,
    read_object,
    resolved,
    standalone,
)

_HELD = frozenset(("properties", "required", "additionalProperties", "patternProperties", "propertyNames"))
"""Keywords of an arguments object that ``Arguments`` is made of."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter, or, of open arguments, any."""

    key: str
    schema: Schema
    root: Schema
    """The tool's schema: what references point into."""
    read_types: frozenset[str]
    """As the dialect's parser takes them."""
    is_required: bool
    place: str
    grammar: ToolGrammar | None = None

    @property
    def types(self) -> frozenset[str]:
        """As the schema has them."""
        return types_of(self.schema, self.root)

    def json_schema(self, part: Schema | None = None) -> str:
        """The schema, or a part of it, by itself."""
        return standalone(self.schema if part is None else part, self.root)


@dataclass(frozen=True, slots=True)
class Arguments:
    """All of a tool's parameters.

    Keys that a schema does not declare are not written, even where it allows them. Only arguments without any declared
    key are *open*, unless the schema says by that that there are none: then ``parameters`` is one description of all.
    """

    parameters: tuple[Parameter, ...]
    is_open: bool
    json_schema: str
    """Of the whole object."""
    relaxed: tuple[Relaxed, ...]


def read_arguments(tool: ToolSpec) -> Arguments | None:
    """None where no arguments could satisfy the tool's schema."""
    place = f"tools.{tool.name}"
    if tool.is_custom:
        schema: Schema = {"type": "string"}
        types = frozenset({"string"})
        inside = f"{place}.{CUSTOM_PARAMETER}"
        custom = Parameter(CUSTOM_PARAMETER, schema, {}, types, is_required=True, place=inside, grammar=tool.grammar)
        return Arguments((custom,), False, "", ())
    root = read_object(tool.parameters_json)
    top = resolved(root, root)
    read_types = ParameterTypes([tool])
    properties, required = as_schema(top.get("properties")), _names(top.get("required"))
    # JSON Schema lets an object require what it does not describe.
    described = {**properties, **{key: True for key in required if key not in properties}}
    if any(described[key] is False for key in required):
        return None
    parameters = tuple(
        Parameter(key, as_schema(schema), root, read_types.types(tool.name, key), key in required, f"{place}.{key}")
        for key, schema in described.items()
        if schema is not False
    )
    relaxed = tuple(Relaxed(place, keyword) for keyword in keywords_of(top, root) if keyword not in _HELD)
    extra = top.get("additionalProperties")
    says_which = "properties" in top and "patternProperties" not in top and extra is None
    if described or says_which or extra is False:
        return Arguments(parameters, False, "", relaxed)
    any_key = Parameter("*", as_schema(extra), root, read_types.types(tool.name, ""), False, f"{place}.*")
    return Arguments((any_key,), True, standalone({**top, "type": "object"}, root), relaxed)


def _names(value: object) -> frozenset[str]:
    return frozenset(name for name in value if isinstance(name, str)) if isinstance(value, list) else frozenset()  # pyright: ignore[reportUnknownVariableType]
