"""Writes a call's JSON arguments while its parameters arrive one by one, as the XML-like formats have them."""

from __future__ import annotations

from services.tokenizer.dialects.events import CallDelta, CallFinished, CallStarted, ParseEvent
from services.tokenizer.dialects.json_text import escape, quote
from services.tokenizer.dialects.schema import CUSTOM_PARAMETER


class ArgumentsWriter:
    """One call's events. The fragments concatenate to the final arguments by construction.

    A custom tool's arguments are the text of its one parameter; its other parameters are dropped.
    """

    def __init__(self, index: int, name: str, *, is_custom: bool) -> None:
        self._index = index
        self._is_custom = is_custom
        self._fragments: list[str] = []
        self._num_parameters = 0
        self._is_dropped = False
        self.started = CallStarted(index, name, is_custom)

    @property
    def lacks_input(self) -> bool:
        """A custom tool's parameter has not come: the call cannot be finished."""
        return self._is_custom and self._num_parameters == 0

    def begin_string(self, key: str) -> list[ParseEvent]:
        """A string parameter whose text follows in pieces."""
        if self._is_custom:
            self._is_dropped = key != CUSTOM_PARAMETER or self._num_parameters > 0
            self._num_parameters += not self._is_dropped
            return []
        return self._emit(self._lead(key) + '"')

    def add_string(self, text: str) -> list[ParseEvent]:
        """More of the string, unescaped."""
        if self._is_custom:
            return [] if self._is_dropped else self._emit(text)
        return self._emit(escape(text))

    def end_string(self) -> list[ParseEvent]:
        """The string is whole."""
        return [] if self._is_custom else self._emit('"')

    def add_value(self, key: str, value: str) -> list[ParseEvent]:
        """A whole parameter, as JSON text. Its spelling stays."""
        return [] if self._is_custom else self._emit(self._lead(key) + value)

    def finish(self) -> list[ParseEvent]:
        """The call is complete."""
        closing = [] if self._is_custom else self._emit("}" if self._num_parameters else "{}")
        return [*closing, CallFinished(self._index, "".join(self._fragments))]

    def _lead(self, key: str) -> str:
        self._num_parameters += 1
        return ("{" if self._num_parameters == 1 else ", ") + f"{quote(key)}: "

    def _emit(self, fragment: str) -> list[ParseEvent]:
        if not fragment:
            return []
        self._fragments.append(fragment)
        return [CallDelta(self._index, fragment)]
