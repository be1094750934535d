"""The tools of a conversation, from the request and from the items that bring more of them.

Tools that other servers run, and types that are not known, are skipped: the model cannot call them here.
"""

from __future__ import annotations

from collections.abc import Collection

from fencepost.tokenizer.v1 import conversation_pb2

from services.gateway.fields import Fields
from services.gateway.responses import local_shell
from services.gateway.responses.tool_names import ToolNames
from services.gateway.tool_definition import grammar_of, tool_name, wrong_name


class Tools:
    """In order. A list that describes a tool anew replaces it in its place: chains bring the same tools again.

    Tools are known by namespace, empty for those outside any, and name.
    """

    def __init__(self) -> None:
        self._tool_by_key: dict[tuple[str, str], conversation_pb2.Tool] = {}
        self._field_by_key: dict[tuple[str, str], str] = {}
        self._has_local_shell = False

    def add(self, fields: Fields) -> None:
        """Add those in the field ``tools``. Raises BadRequestError, also for two of one name there."""
        seen: set[tuple[str, str]] = set()
        for tool in fields.objects("tools"):
            match tool.text("type") or "function":
                case "namespace":
                    namespace = tool_name(tool)
                    for inner in tool.objects("tools"):
                        self._add(inner, seen, namespace)
                case "local_shell":
                    self._has_local_shell = True
                    self._put(tool, local_shell.tool(), seen)
                case _:
                    self._add(tool, seen, None)

    def tools(self) -> list[conversation_pb2.Tool]:
        """All so far."""
        return list(self._tool_by_key.values())

    def keys(self) -> Collection[tuple[str, str]]:
        """Namespaces and names."""
        return self._tool_by_key.keys()

    def names(self) -> ToolNames:
        """What their calls become."""
        return ToolNames(tuple(self._field_by_key.values()), self._has_local_shell)

    def _add(self, fields: Fields, seen: set[tuple[str, str]], namespace: str | None) -> None:
        match fields.text("type") or "function":
            case "function":
                tool = _function(definition_of(fields), namespace)
            case "custom":
                tool = _custom(definition_of(fields), namespace)
            case _:
                return
        self._put(fields, tool, seen)

    def _put(self, fields: Fields, tool: conversation_pb2.Tool, seen: set[tuple[str, str]]) -> None:
        key = tool.namespace, tool.name
        if key in seen:
            raise wrong_name(definition_of(fields), "is the name of an earlier tool")
        seen.add(key)
        self._tool_by_key[key] = tool
        self._field_by_key[key] = fields.name("name").removesuffix(".name")


def definition_of(fields: Fields) -> Fields:
    """Where a tool's name is: in the tool itself, or one level down as Chat Completions have it."""
    kind = fields.values.get("type") or "function"
    if "name" not in fields.values and isinstance(kind, str) and isinstance(fields.values.get(kind), dict):
        return fields.required_object(kind)
    return fields


def _function(fields: Fields, namespace: str | None) -> conversation_pb2.Tool:
    return conversation_pb2.Tool(
        namespace=namespace,
        name=tool_name(fields),
        description=fields.text("description"),
        kind=conversation_pb2.CALL_KIND_FUNCTION,
        # Empty where there is none: the tokenizer knows how a model is told that.
        parameters_json="" if fields.object("parameters") is None else fields.raw("parameters"),
        strict=bool(fields.flag("strict")),
    )


def _custom(fields: Fields, namespace: str | None) -> conversation_pb2.Tool:
    return conversation_pb2.Tool(
        namespace=namespace,
        name=tool_name(fields),
        description=fields.text("description"),
        kind=conversation_pb2.CALL_KIND_CUSTOM,
        grammar=_grammar(fields),
    )


def _grammar(fields: Fields) -> conversation_pb2.ToolGrammar | None:
    form = fields.object("format")
    if form is None or form.one_of("type", ("text", "grammar")) == "text":
        return None
    # Chat Completions have it one level down.
    return grammar_of(form.object("grammar") or form)
