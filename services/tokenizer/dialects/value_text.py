"""A parameter's value in the formats that write strings without quotation marks, while it arrives."""

from __future__ import annotations

from services.tokenizer.dialects.arguments import ArgumentsWriter
from services.tokenizer.dialects.events import ParseEvent
from services.tokenizer.dialects.json_reader import JsonReader, JsonState
from services.tokenizer.dialects.schema import PYTHON_LITERALS, STRING_ONLY, read_value


class ValueText:
    """Decides whether a value is a string, as early as that is certain, and passes it on in pieces from then on."""

    def __init__(
        self, arguments: ArgumentsWriter, key: str, types: frozenset[str], *, reads_python: bool = False
    ) -> None:
        """``reads_python`` takes ``True``, ``False`` and ``None`` for JSON's literals also where a string may be."""
        self._arguments = arguments
        self._key = key
        self._types = types
        self._reads_python = reads_python
        self._undecided = ""
        self._reader = JsonReader()
        self._is_string = False

    def push(self, text: str) -> list[ParseEvent]:
        """More of the value."""
        if self._is_string:
            return self._arguments.add_string(text)
        position = self._reader.push(text)
        self._undecided += text
        if not self._is_certainly_string(text[position:]):
            return []
        return self._pass_on()

    def finish(self) -> list[ParseEvent]:
        """The value is whole."""
        if not self._is_string:
            value = read_value(self._undecided, self._types, reads_python=self._reads_python)
            if value is not None:
                return self._arguments.add_value(self._key, value)
            return [*self._pass_on(), *self._arguments.end_string()]
        return self._arguments.end_string()

    def _is_certainly_string(self, unread: str) -> bool:
        if self._types == STRING_ONLY:
            return True
        if any(literal.startswith(self._undecided) for literal in PYTHON_LITERALS):
            return False
        return self._reader.state is JsonState.BROKEN or bool(unread.strip())

    def _pass_on(self) -> list[ParseEvent]:
        self._is_string = True
        undecided, self._undecided = self._undecided, ""
        return [*self._arguments.begin_string(self._key), *self._arguments.add_string(undecided)]
