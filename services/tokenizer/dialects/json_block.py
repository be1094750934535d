"""Reads ``{"name": …, "arguments": …}`` objects out of one tool block, as they arrive.

The JSON decides where a call ends, never the closing tag: a tag spelt inside a string is part of the string.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from services.tokenizer.dialects.block_steps import BlockSteps
from services.tokenizer.dialects.block_text import BlockText
from services.tokenizer.dialects.events import CallDelta, CallFinished, CallStarted
from services.tokenizer.dialects.json_arguments import ArgumentsReader
from services.tokenizer.dialects.json_reader import JsonReader, JsonState
from services.tokenizer.dialects.json_text import decode_string, is_string
from services.tokenizer.dialects.schema import ParameterTypes

_BETWEEN = re.compile(r"[\s\[\],}]*(?:`+[A-Za-z]*[\s\[\],}]*)*")
"""Around objects: whitespace, an array's punctuation, markdown fences with their language, one brace too many."""
_ARGUMENT_KEYS = ("arguments", "parameters")


class _Place(Enum):
    BETWEEN = auto()
    KEY_OR_END = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    COMMA_OR_END = auto()


class JsonBlockReader(BlockSteps):
    """One block's calls. Several objects in one block are several calls; a missing closing tag is forgiven."""

    def __init__(self, block: BlockText, index: int, types: ParameterTypes) -> None:
        """``block`` is at its beginning; ``index`` is that of the first call in it."""
        super().__init__(block)
        self._types = types
        self._index = index
        self._has_calls = False
        self._place = _Place.BETWEEN
        self._reset()

    def _reset(self) -> None:
        """Nothing of the next call is known."""
        self._reader = JsonReader()
        self._key = ""
        self._value = ""
        """A key or a value that is read as a whole."""
        self._name: str | None = None
        self._early_arguments: str | None = None
        """Arguments that came before the name."""
        self._arguments: ArgumentsReader | None = None
        self._fragments: list[str] = []

    def _step(self, *, is_final: bool) -> bool:
        """Read one thing; whether there may be more to read."""
        match self._place:
            case _Place.BETWEEN:
                return self._read_between(is_final=is_final)
            case _Place.KEY | _Place.VALUE:
                return self._read_value()
            case _:
                return self._read_punctuation()

    def _read_between(self, *, is_final: bool) -> bool:
        skipped = _BETWEEN.match(self._block.unread)
        assert skipped is not None
        if not self._block.unread.startswith("{", skipped.end()):
            has_calls = self._has_calls
            self._events.extend(self._block.read_end(skipped.end(), has_calls=has_calls, is_final=is_final))
            return False
        self._block.take(skipped.end() + 1)
        self._reset()
        self._place = _Place.KEY_OR_END
        return True

    def _read_punctuation(self) -> bool:
        self._block.skip_space()
        char = self._block.unread[:1]
        if not char:
            return False
        if char == '"' and self._place is _Place.KEY_OR_END:
            self._begin_value(_Place.KEY)
            return True
        self._block.take(1)
        if char == ":" and self._place is _Place.COLON:
            self._begin_value(_Place.VALUE)
        elif char == "," and self._place is _Place.COMMA_OR_END:
            self._place = _Place.KEY_OR_END
        elif char == "}" and self._place is not _Place.COLON:
            self._end_call()
        else:
            self._block.break_off("the call is not JSON")
        return True

    def _begin_value(self, place: _Place) -> None:
        self._place, self._reader, self._value = place, JsonReader(), ""

    def _read_value(self) -> bool:
        piece = self._block.take(self._reader.push(self._block.unread))
        if self._place is _Place.VALUE and self._arguments is not None and self._key in _ARGUMENT_KEYS:
            self._add_fragment(self._arguments.push(piece))
        elif self._place is _Place.KEY or self._key == "name" or self._key in _ARGUMENT_KEYS:
            self._value += piece
        if self._reader.state is JsonState.BROKEN:
            self._block.break_off("the call is not JSON")
        elif self._reader.state is JsonState.COMPLETE:
            self._end_value()
        return self._reader.state is not JsonState.OPEN

    def _end_value(self) -> None:
        if self._place is _Place.KEY:
            self._begin_member(decode_string(self._value))
            return
        self._place = _Place.COMMA_OR_END
        if self._key == "name":
            self._start_call(self._value)
        elif self._key in _ARGUMENT_KEYS and self._arguments is None:
            self._early_arguments = self._value

    def _begin_member(self, key: str) -> None:
        has_arguments = self._arguments is not None or self._early_arguments is not None
        if (key == "name" and self._name is not None) or (key in _ARGUMENT_KEYS and has_arguments):
            self._block.break_off(f"the call has its {key} twice")
            return
        self._key, self._place = key, _Place.COLON
        if key in _ARGUMENT_KEYS and self._name is not None:
            self._arguments = ArgumentsReader(is_custom=self._types.is_custom(self._name))

    def _start_call(self, name: str) -> None:
        if not is_string(name):
            self._block.break_off("the call's name is not a string")
            return
        self._name = decode_string(name)
        is_custom = self._types.is_custom(self._name)
        self._events.append(CallStarted(self._index, self._name, is_custom))
        if self._early_arguments is not None:
            self._arguments = ArgumentsReader(is_custom=is_custom)
            self._add_fragment(self._arguments.push(self._early_arguments))

    def _end_call(self) -> None:
        if self._name is None:
            self._block.break_off("the call has no name")
            return
        arguments = self._arguments or ArgumentsReader(is_custom=self._types.is_custom(self._name))
        if self._arguments is None:
            arguments.push("null")
        last = arguments.finish()
        if last is None:
            self._block.break_off("the call's arguments are not an object")
            return
        self._add_fragment(last)
        self._events.append(CallFinished(self._index, "".join(self._fragments)))
        self._index += 1
        self._has_calls = True
        self._place = _Place.BETWEEN

    def _add_fragment(self, fragment: str) -> None:
        if fragment:
            self._fragments.append(fragment)
            self._events.append(CallDelta(self._index, fragment))
