"""Reads a block of DeepSeek's markup: calls, their parameters, and what models make of both."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from services.tokenizer.dialects.call_writer import CallWriter, Marking
from services.tokenizer.dialects.dsml_tags import Tag, TagKind, UnfinishedTag, find_value_end, read_tag
from services.tokenizer.dialects.events import Malformed, ParseEvent, ToolSpec
from services.tokenizer.dialects.json_reader import JsonReader, JsonState
from services.tokenizer.dialects.schema import ParameterTypes

_MARKINGS = {True: Marking.STRING, False: Marking.JSON, None: Marking.NONE}


class _Place(Enum):
    BLOCK = auto()
    CALL = auto()
    VALUE = auto()
    BODY = auto()
    """A JSON object where parameters should be."""
    LOST = auto()
    """In a call that cannot be read any more."""


class DsmlBlock:
    """A ``BlockReader``. Calls are finished one by one; one that cannot be read spoils no other."""

    def __init__(
        self,
        opening: str,
        num_calls: int,
        types: ParameterTypes,
        tools: Mapping[str, ToolSpec],
    ) -> None:
        """``opening``: a block's tag, or the beginning of a call's where there is no block. ``tools`` by name."""
        self.rest: str | None = None
        self._closing = ""
        self._types = types
        self._tools = tools
        self._next_index = self._first_index = num_calls
        self._call: CallWriter | None = None
        self._is_escaped = False
        self._place = _Place.BLOCK
        self._body = ""
        self._body_reader = JsonReader()
        self._fault: str | None = None
        self._is_final = False
        self._waits = False
        """More text decides what the beginning of ``_held`` is."""
        self._seen: list[str] = []
        self._held = opening
        try:
            tag = read_tag(opening, 0)
        except UnfinishedTag:
            tag = None
        self._has_block = tag is not None
        if tag is not None:
            self._take(tag.end)

    def push(self, text: str) -> list[ParseEvent]:
        """More of the block."""
        self._held += text
        events: list[ParseEvent] = []
        self._waits = False
        while self.rest is None and self._held and not self._waits:
            events.extend(self._step())
        return events

    def finish(self) -> list[ParseEvent]:
        """The answer is over."""
        self._is_final = True
        events = self.push("")
        if self.rest is None:
            self._take(len(self._held))
            events.extend(self._drop_call("the answer ends inside the call"))
            # A block that lacks nothing but its closing tag lacks nothing.
            events.extend(self._leave())
        return events

    def _step(self) -> list[ParseEvent]:
        """Read one piece from the beginning of what is held."""
        match self._place:
            case _Place.VALUE:
                return self._read_value()
            case _Place.BODY:
                return self._read_body()
            case _:
                return self._read_structure()

    def _read_structure(self) -> list[ParseEvent]:
        blank = len(self._held) - len(self._held.lstrip())
        if blank:
            self._take(blank)
            return []
        try:
            tag = read_tag(self._held, 0, is_final=self._is_final)
        except UnfinishedTag:
            self._waits = True
            return []
        if tag is None:
            return self._read_other()
        if tag.kind is TagKind.BLOCK and tag.is_closing:
            lost = self._drop_call("the call is not closed")
            self._take(tag.end)
            return [*lost, *self._leave()]
        if tag.kind is TagKind.INVOKE:
            return self._end_call(tag) if tag.is_closing else self._begin_call(tag)
        self._take(tag.end)
        if tag.kind is TagKind.PARAMETER and not tag.is_closing and self._place is not _Place.LOST:
            return self._begin_value(tag)
        # A closing tag once too often, or a block's tag again.
        return []

    def _read_other(self) -> list[ParseEvent]:
        """Text where a tag should be."""
        writer = self._call
        if self._place is _Place.CALL and writer is not None and writer.is_empty and self._held.startswith("{"):
            self._place, self._body, self._body_reader = _Place.BODY, "", JsonReader()
            return []
        found = min((at for at in (self._held.find("<", 1), self._held.find("\\", 1)) if at > 0), default=None)
        self._take(len(self._held) if found is None else found)
        if self._place is _Place.BLOCK:
            self._fault = self._fault or "text outside a call"
            return [] if self._has_block else self._leave()
        if self._place is _Place.CALL:
            self._lose("text between parameters")
        return []

    def _begin_call(self, tag: Tag) -> list[ParseEvent]:
        lost = self._drop_call("the call is not closed")
        self._take(tag.end)
        self._call = CallWriter(self._next_index, tag.name, self._types, self._tools.get(tag.name))
        self._next_index += 1
        self._place = _Place.CALL
        return [*lost, self._call.started]

    def _end_call(self, tag: Tag) -> list[ParseEvent]:
        self._take(tag.end)
        if self._call is None:
            return []
        events = self._call.finish() if self._place is _Place.CALL else []
        if self._call.fault is not None:
            events.extend(self._drop_call(self._call.fault))
        self._call, self._place = None, _Place.BLOCK
        return events if self._has_block else [*events, *self._leave()]

    def _begin_value(self, tag: Tag) -> list[ParseEvent]:
        if self._call is None:
            self._fault = self._fault or "a parameter outside a call"
            return []
        self._place, self._is_escaped = _Place.VALUE, tag.is_escaped
        self._closing = f"</{tag.spelling}>"
        return self._call.begin(tag.name, _MARKINGS[tag.is_string])

    def _read_value(self) -> list[ParseEvent]:
        assert self._call is not None
        part = find_value_end(self._held, self._closing, is_escaped=self._is_escaped, is_final=self._is_final)
        events = self._call.add(self._held[: part.end])
        if part.after is None:
            self._take(part.end)
            self._waits = True
            return events
        self._take(part.after)
        events.extend(self._call.end())
        self._place = _Place.CALL
        if self._call.fault is not None:
            self._lose(self._call.fault)
        return events

    def _read_body(self) -> list[ParseEvent]:
        assert self._call is not None
        self._body += self._take(self._body_reader.push(self._held))
        if self._body_reader.state is JsonState.BROKEN:
            self._lose("the arguments are not an object")
            return []
        if self._body_reader.state is JsonState.OPEN:
            return []
        self._place = _Place.CALL
        events = self._call.add_object(self._body)
        if self._call.fault is not None:
            self._lose(self._call.fault)
        return events

    def _lose(self, reason: str) -> None:
        assert self._call is not None
        self._call.fault = self._call.fault or reason
        self._place = _Place.LOST

    def _drop_call(self, reason: str) -> list[ParseEvent]:
        """Give up the call that is open, if one is."""
        if self._call is None:
            return []
        reason = self._call.fault or reason
        self._call, self._place = None, _Place.BLOCK
        return [Malformed("".join(self._seen), reason)]

    def _leave(self) -> list[ParseEvent]:
        """The block is over."""
        self.rest, self._held = self._held, ""
        if self._fault is None and self._next_index > self._first_index:
            return []
        return [Malformed("".join(self._seen), self._fault or "the block holds no call")]

    def _take(self, num_chars: int) -> str:
        taken, self._held = self._held[:num_chars], self._held[num_chars:]
        self._seen.append(taken)
        return taken
