"""Turns one call's parameters, as an XML-like block spells them, into the events of a call with JSON arguments."""

from __future__ import annotations

from enum import Enum, auto

from services.tokenizer.dialects.arguments import ArgumentsWriter
from services.tokenizer.dialects.events import ParseEvent, ToolSpec
from services.tokenizer.dialects.json_reader import JsonReader, JsonState
from services.tokenizer.dialects.json_text import decode_string, is_json, is_string, split_object
from services.tokenizer.dialects.schema import CUSTOM_PARAMETER, STRING_ONLY, ParameterTypes, read_value

_WRAPPERS = frozenset({"arguments", "input"})
"""Parameters that models invent to hold all of a call's arguments as one object."""


class Marking(Enum):
    """What the block itself says about a value's type."""

    STRING = auto()
    JSON = auto()
    NONE = auto()


class _Mode(Enum):
    STRING = auto()
    JSON = auto()
    UNDECIDED = auto()
    WRAPPED = auto()


class CallWriter(ArgumentsWriter):
    """One call, parameter by parameter: ``begin``, any number of ``add``, ``end``; at last ``finish``.

    Strings, and containers that cannot be anything else, stream; a scalar is decided when it is whole. Once
    ``fault`` says why the call cannot be read, it must not be finished.
    """

    def __init__(self, index: int, name: str, types: ParameterTypes, wrapped: ToolSpec | None = None) -> None:
        """``wrapped``: the tool, if known, where its arguments may come in a wrapper that it does not have."""
        super().__init__(index, name, is_custom=types.is_custom(name))
        self._name = name
        self._all_types = types
        self._wrapped = wrapped
        self._mode = _Mode.UNDECIDED
        self._key = ""
        self._marking = Marking.NONE
        self._types = STRING_ONLY
        self._held = ""
        self._reader = JsonReader()
        self.fault: str | None = None

    @property
    def is_empty(self) -> bool:
        """No parameter has begun."""
        return self._num_parameters == 0 and self._mode is not _Mode.WRAPPED

    def begin(self, key: str, marking: Marking) -> list[ParseEvent]:
        """A parameter whose value follows in pieces."""
        events = self._unhold()
        if key in _WRAPPERS and self.is_empty and self._lacks(key):
            self._key, self._marking, self._mode, self._held = key, marking, _Mode.WRAPPED, ""
            return events
        return [*events, *self._begin(key, marking)]

    def add(self, text: str) -> list[ParseEvent]:
        """More of the value."""
        match self._mode:
            case _Mode.STRING:
                return self.add_string(text)
            case _Mode.JSON:
                return self._add_json(text)
            case _Mode.WRAPPED:
                self._held += text
                return []
            case _Mode.UNDECIDED:
                self._held += text
                may_stream = self._marking is Marking.JSON or "string" not in self._types
                if self._is_custom or not may_stream or not self._held.lstrip().startswith(("{", "[")):
                    return []
                self._mode, self._reader = _Mode.JSON, JsonReader()
                return [*self._emit(self._lead(self._key)), *self._add_json(self._held.lstrip())]

    def end(self) -> list[ParseEvent]:
        """The value is whole."""
        match self._mode:
            case _Mode.STRING:
                return self.end_string()
            case _Mode.JSON:
                if self._reader.finish() is not JsonState.COMPLETE:
                    self.fault = self.fault or f"the value of {self._key!r} is not JSON"
                return []
            case _Mode.WRAPPED:
                return []
            case _Mode.UNDECIDED:
                return self._decide()

    def add_object(self, text: str) -> list[ParseEvent]:
        """All parameters at once, as a JSON object. Anything else, or an object for a custom tool, is a fault."""
        members = split_object(text)
        if members is None or self._is_custom:
            self.fault = "the arguments are not an object"
            return []
        return [event for member in members for event in self.add_value(member.key, member.value)]

    def finish(self) -> list[ParseEvent]:
        """The call is complete; nothing where that makes a fault known."""
        if self._mode is _Mode.WRAPPED and self._unwraps():
            self._mode = _Mode.UNDECIDED
            events = self.add_object(self._held)
        else:
            events = self._unhold()
        if self._is_custom and self.is_empty:
            self.fault = f"{CUSTOM_PARAMETER!r} is missing"
        return [*events, *super().finish()] if self.fault is None else events

    def _begin(self, key: str, marking: Marking) -> list[ParseEvent]:
        self._key, self._marking, self._held = key, marking, ""
        self._types = self._all_types.types(self._name, key)
        if marking is Marking.STRING or (marking is Marking.NONE and self._types == STRING_ONLY):
            self._mode = _Mode.STRING
            return self.begin_string(key)
        self._mode = _Mode.UNDECIDED
        return []

    def _add_json(self, text: str) -> list[ParseEvent]:
        end = self._reader.push(text)
        if text[end:].strip():
            self.fault = f"the value of {self._key!r} is not JSON"
        return self._emit(text[:end])

    def _decide(self) -> list[ParseEvent]:
        text = self._held
        value = read_value(text, self._types)
        if self._marking is Marking.JSON:
            value = text.strip() if is_json(text) else None
        if value is not None and self._is_custom and is_string(value):
            text, value = decode_string(value), None
        if value is not None and not self._is_custom:
            return self.add_value(self._key, value)
        return [*self.begin_string(self._key), *self.add_string(text), *self.end_string()]

    def _unwraps(self) -> bool:
        members, declared = split_object(self._held), self._declared()
        return members is not None and all(member.key in declared for member in members)

    def _lacks(self, key: str) -> bool:
        """Whether the tool declares parameters, but not this one."""
        declared = frozenset[str]() if self._is_custom else self._declared()
        return bool(declared) and key not in declared

    def _declared(self) -> frozenset[str]:
        schema = {} if self._wrapped is None else _members(self._wrapped.parameters_json)
        return frozenset(_members(schema.get("properties", "")))

    def _unhold(self) -> list[ParseEvent]:
        """What looked like a wrapper was a parameter."""
        if self._mode is not _Mode.WRAPPED:
            return []
        text = self._held
        return [*self._begin(self._key, self._marking), *self.add(text), *self.end()]


def _members(text: str) -> dict[str, str]:
    return {member.key: member.value for member in split_object(text) or []}
