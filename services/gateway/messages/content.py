"""Content blocks out: a tokenizer's events become blocks, one after the other, none of them empty.

Invariant: at most one block is open, and blocks are numbered from 0 without gaps.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any

import orjson
from fencepost.tokenizer.v1 import tokenizer_pb2
from pydantic_core import from_json

NOT_SIGNED = "not-signed"
"""The signature of thinking that has no capsule. Clients drop thinking without a signature; this one is no base64, so
it comes back as none."""

_EMPTY_ARGUMENTS = "{}"
_FIELDS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}

Event = dict[str, Any]
"""A content_block_start, content_block_delta or content_block_stop."""


class ContentStream:
    """The events of one answer's content."""

    def __init__(self) -> None:
        self._index = -1
        self._open: str | None = None
        """The open block's type."""
        self._held = ""
        """Whitespace that opens a block only when more follows."""
        self._call: tokenizer_pb2.CallStarted | None = None
        self._has_arguments = False
        self.has_calls = False

    def read(self, event: tokenizer_pb2.GenerateResponse) -> Iterator[Event]:
        """What an event of the answer adds, if anything."""
        match event.WhichOneof("event"):
            case "text_delta":
                yield from self._text("text", event.text_delta.text)
            case "reasoning_delta":
                yield from self._text("thinking", event.reasoning_delta.text)
            case "reasoning_finished" if self._open == "thinking":
                yield from self._close(event.reasoning_finished.capsule)
            case "call_started":
                yield from self._start_call(event.call_started)
            case "call_delta" if event.call_delta.fragment:
                assert self._call is not None, "arguments of a call that is not open"
                assert self._call.index == event.call_delta.index, "calls are interleaved"
                self._has_arguments = True
                yield self._delta("input_json_delta", event.call_delta.fragment)
            case "call_finished":
                yield from self._close()
            case _:
                pass

    def end(self) -> Iterator[Event]:
        """The answer is over, whatever is open."""
        return self._close()

    def _text(self, kind: str, text: str) -> Iterator[Event]:
        if self._open != kind:
            self._held += text
            if not self._held or self._held.isspace():
                return
            text = self._held
            yield from self._start({"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})})
        if text:
            yield self._delta(f"{kind}_delta", text)

    def _start_call(self, started: tokenizer_pb2.CallStarted) -> Iterator[Event]:
        yield from self._start({"type": "tool_use", "id": started.call_id, "name": started.name, "input": {}})
        self._call = started
        self._has_arguments = False
        self.has_calls = True

    def _start(self, block: dict[str, Any]) -> Iterator[Event]:
        yield from self._close()
        self._index += 1
        self._open = block["type"]
        self._held = ""
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _close(self, capsule: bytes = b"") -> Iterator[Event]:
        if self._open is None:
            return
        if self._open == "thinking":
            yield self._delta("signature_delta", base64.b64encode(capsule).decode() or NOT_SIGNED)
        elif self._open == "tool_use" and not self._has_arguments:
            # Joined fragments have to be JSON.
            yield self._delta("input_json_delta", _EMPTY_ARGUMENTS)
        self._open = self._call = None
        yield {"type": "content_block_stop", "index": self._index}

    def _delta(self, kind: str, text: str) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": {"type": kind, _FIELDS[kind]: text}}


class ContentBlocks:
    """The same content whole, from the same events."""

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._texts_by_field: dict[str, list[str]] = {}

    def add(self, events: Iterable[Event]) -> None:
        """More of the content."""
        for event in events:
            match event["type"]:
                case "content_block_start":
                    self._blocks.append(dict(event["content_block"]))
                    self._texts_by_field = {}
                case "content_block_delta":
                    field = _FIELDS[event["delta"]["type"]]
                    self._texts_by_field.setdefault(field, []).append(event["delta"][field])
                case _:
                    for field, texts in self._texts_by_field.items():
                        self._finish(field, "".join(texts))

    def finished(self) -> list[dict[str, Any]]:
        """All blocks, once the content has ended."""
        return self._blocks

    def _finish(self, field: str, text: str) -> None:
        if field == "partial_json":
            self._blocks[-1]["input"] = _input(text)
        else:
            self._blocks[-1][field] = text


def _input(arguments: str) -> Any:
    """A call's arguments in their own spelling; of those that were cut short, what is complete."""
    try:
        is_object = isinstance(orjson.loads(arguments), dict)
    except orjson.JSONDecodeError:
        return _complete_members(arguments)
    return orjson.Fragment(arguments) if is_object else {}


def _complete_members(arguments: str) -> Any:
    try:
        members = from_json(arguments, allow_partial=True, allow_inf_nan=False)
        # orjson writes no integers beyond 64 bits.
        return orjson.Fragment(json.dumps(members, allow_nan=False)) if isinstance(members, dict) else {}
    except ValueError:
        return {}
