"""Reads ``<function=N><parameter=K>V</parameter></function>`` out of one tool block, as it arrives."""

from __future__ import annotations

from enum import Enum, auto

from services.tokenizer.dialects.arguments import ArgumentsWriter
from services.tokenizer.dialects.block_steps import BlockSteps
from services.tokenizer.dialects.block_text import BlockText
from services.tokenizer.dialects.markers import Markers
from services.tokenizer.dialects.schema import ParameterTypes
from services.tokenizer.dialects.value_text import ValueText

FUNCTION = "<function="
_FUNCTION_END = "</function>"
_PARAMETER = "<parameter="
_PARAMETER_END = "</parameter>"
VALUE_ENDS = tuple(
    f"{_PARAMETER_END}{between}{tag}"
    for between in ("", "\n", "\n\n")
    for tag in (_PARAMETER, _FUNCTION_END, "</tool_call>")
)
"""Inside a value, each of these would end it."""
_TAG_END = Markers([">", "<", "\n"])


class _Place(Enum):
    BETWEEN = auto()
    FUNCTION_NAME = auto()
    BODY = auto()
    PARAMETER_NAME = auto()
    VALUE_START = auto()
    VALUE = auto()


class XmlBlockReader(BlockSteps):
    """One block's calls; a missing ``</function>`` or closing tag of the block is forgiven.

    A value ends where its closing tag is followed by the next parameter or the end of the call, so that a closing
    tag inside a value is part of it.
    """

    def __init__(
        self, block: BlockText, closing: str, index: int, types: ParameterTypes, *, reads_python: bool
    ) -> None:
        """``block`` is at its beginning; ``index`` is that of the first call in it."""
        super().__init__(block)
        self._closing = closing
        self._value_ends = _value_ends(closing)
        self._index = index
        self._types = types
        self._reads_python = reads_python
        self._place = _Place.BETWEEN
        self._has_calls = False
        self._name = ""
        self._arguments: ArgumentsWriter | None = None
        self._value: ValueText | None = None

    def _step(self, *, is_final: bool) -> bool:
        """Read one thing; whether there may be more to read."""
        match self._place:
            case _Place.BETWEEN:
                return self._read_between(is_final=is_final)
            case _Place.FUNCTION_NAME | _Place.PARAMETER_NAME:
                return self._read_name()
            case _Place.BODY:
                return self._read_body()
            case _Place.VALUE_START:
                return self._read_value_start()
            case _Place.VALUE:
                return self._read_value(is_final=is_final)

    def _read_between(self, *, is_final: bool) -> bool:
        unread = self._block.unread
        position = len(unread) - len(unread.lstrip())
        if unread.startswith(FUNCTION, position):
            self._block.take(position + len(FUNCTION))
            self._place = _Place.FUNCTION_NAME
            return True
        if FUNCTION.startswith(unread[position:]) and not is_final:
            return False
        self._events.extend(self._block.read_end(position, has_calls=self._has_calls, is_final=is_final))
        return False

    def _read_name(self) -> bool:
        split = _TAG_END.split(self._block.unread)
        if split.marker is None:
            return False
        name = split.before
        self._block.take(len(name) + 1)
        if split.marker != ">" or not name:
            self._block.break_off("a tag has no name or no end")
        elif self._place is _Place.FUNCTION_NAME:
            self._name, self._place = name, _Place.BODY
            self._arguments = ArgumentsWriter(self._index, name, is_custom=self._types.is_custom(name))
            self._events.append(self._arguments.started)
        else:
            assert self._arguments is not None
            types = self._types.types(self._name, name)
            self._value = ValueText(self._arguments, name, types, reads_python=self._reads_python)
            self._place = _Place.VALUE_START
        return True

    def _read_body(self) -> bool:
        self._block.skip_space()
        unread = self._block.unread
        if unread.startswith(_PARAMETER):
            self._block.take(len(_PARAMETER))
            self._place = _Place.PARAMETER_NAME
        elif unread.startswith(_FUNCTION_END):
            self._block.take(len(_FUNCTION_END))
            self._end_call()
        elif unread.startswith(self._closing):
            self._end_call()
        elif any(tag.startswith(unread) for tag in (_PARAMETER, _FUNCTION_END, self._closing)):
            return False
        else:
            self._block.break_off("there is text between parameters")
        return True

    def _read_value_start(self) -> bool:
        """The newline behind the tag is the tag's."""
        if not self._block.unread:
            return False
        if self._block.unread.startswith("\n"):
            self._block.take(1)
        self._place = _Place.VALUE
        return True

    def _read_value(self, *, is_final: bool) -> bool:
        assert self._value is not None
        split = self._value_ends.split(self._block.unread, is_final=is_final)
        self._block.take(len(split.before))
        if split.before:
            self._events.extend(self._value.push(split.before))
        if split.marker is None:
            return False
        self._block.take(split.marker.index(_PARAMETER_END) + len(_PARAMETER_END))
        self._events.extend(self._value.finish())
        self._place = _Place.BODY
        return True

    def _end_call(self) -> None:
        assert self._arguments is not None
        if self._arguments.lacks_input:
            self._block.break_off("the call of a custom tool has no input")
            return
        self._events.extend(self._arguments.finish())
        self._index += 1
        self._has_calls = True
        self._place = _Place.BETWEEN


def ends_value(text: str, closing: str) -> bool:
    """Whether a value that contains ``text`` would be taken to end inside it."""
    return _value_ends(closing).split(text, is_final=True).marker is not None


def _value_ends(closing: str) -> Markers:
    """A closing tag and what may follow it; a newline before the tag is the tag's."""
    following = (_PARAMETER, _FUNCTION_END, closing)
    return Markers(
        before + _PARAMETER_END + between + tag
        for before in ("\n", "")
        for between in ("\n", "", "\n\n")
        for tag in following
    )
