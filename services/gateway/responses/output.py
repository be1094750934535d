"""The output items of a response, from a tokenizer's events: what a stream says of them, and what they are in the end.

An item is opened by the first thing it has to say, so none is empty; it has one id from its first event to the finished
response. Items follow each other and never overlap. A delta costs a small dict and nothing of what came before it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fencepost.tokenizer.v1 import tokenizer_pb2

from services.gateway.logprobs import chat_logprobs
from services.gateway.responses import local_shell
from services.gateway.responses.stored_items import new_id
from services.gateway.responses.tool_names import ItemType, ToolNames

_Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What a client wants to see beside text and calls."""

    encrypted_reasoning: bool = False
    """The capsule that brings thinking back, for clients that keep the conversation themselves."""
    reasoning_summary: bool = False
    """Thinking also as a summary, which is all that some clients show. There is one thought: both texts are equal.

    Only where it was asked for, since every piece is then sent twice."""
    logprobs: bool = False


class Output:
    """All items of one response. Events come without sequence numbers."""

    def __init__(self, tool_names: ToolNames, options: OutputOptions) -> None:
        self._tool_names = tool_names
        self._options = options
        self._items: list[_Event] = []
        self._open: _Thought | _Text | _Call | None = None

    @property
    def items(self) -> list[_Event]:
        """The finished items; that of an open one comes when it ends."""
        return self._items

    def push(self, event: tokenizer_pb2.GenerateResponse) -> Iterator[_Event]:
        """What an event adds to the stream."""
        match event.WhichOneof("event"):
            case "text_delta" if event.text_delta.text:
                if not isinstance(self._open, _Text):
                    yield from self._begin(_Text(self._options))
                assert isinstance(self._open, _Text)
                yield from self._open.extend(event.text_delta)
            case "reasoning_delta" if event.reasoning_delta.text:
                if not isinstance(self._open, _Thought):
                    yield from self._begin(_Thought(self._options))
                assert isinstance(self._open, _Thought)
                yield from self._open.extend(event.reasoning_delta.text)
            case "reasoning_finished" if isinstance(self._open, _Thought):
                # It ends with what follows, which tells whether it was cut short.
                self._open.capsule = event.reasoning_finished.capsule
            case "call_started":
                started = event.call_started
                namespace = started.namespace or None
                kind = self._tool_names.item_type(namespace, started.name, started.kind)
                yield from self._begin(_Call(kind, started.call_id, namespace, started.name))
            case "call_delta" if isinstance(self._open, _Call) and event.call_delta.fragment:
                yield from self._open.extend(event.call_delta.fragment)
            case "call_finished" if isinstance(self._open, _Call):
                self._open.is_whole = True
                yield from self.close()
            case _:
                pass

    def close(self, status: str = "completed") -> Iterator[_Event]:
        """End the open item, if there is one. A call is completed by its own end only, never by what follows it."""
        item, index = self._open, len(self._items)
        self._open = None
        if item is not None and not item.is_whole:
            status = "incomplete"
        if item is None or (status == "incomplete" and not item.is_announced):
            return
        yield from item.finish(index)
        self._items.append(item.item(status))
        yield {"type": "response.output_item.done", "output_index": index, "item": self._items[-1]}

    def _begin(self, item: _Thought | _Text | _Call) -> Iterator[_Event]:
        yield from self.close()
        self._open = item
        yield from item.begin(len(self._items))


class _Text:
    """A message. One part holds all of its text."""

    is_announced = True
    is_whole = True

    def __init__(self, options: OutputOptions) -> None:
        self.id = new_id("message")
        self._shows_logprobs = options.logprobs
        self._texts: list[str] = []
        self._logprobs: list[Any] = []
        self._place: dict[str, Any] = {}

    def begin(self, index: int) -> Iterator[_Event]:
        item: _Event = {"id": self.id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        yield {"type": "response.output_item.added", "output_index": index, "item": item}
        self._place = {"item_id": self.id, "output_index": index, "content_index": 0}
        yield {"type": "response.content_part.added", **self._place, "part": self._part("")}

    def extend(self, delta: tokenizer_pb2.TextDelta) -> Iterator[_Event]:
        self._texts.append(delta.text)
        logprobs: list[Any] = chat_logprobs(delta.logprobs)["content"] if self._shows_logprobs else []
        self._logprobs += logprobs
        yield {"type": "response.output_text.delta", **self._place, "delta": delta.text, "logprobs": logprobs}

    def finish(self, index: int) -> Iterator[_Event]:
        text = "".join(self._texts)
        yield {"type": "response.output_text.done", **self._place, "text": text, "logprobs": self._logprobs}
        yield {"type": "response.content_part.done", **self._place, "part": self._part(text)}

    def item(self, status: str) -> _Event:
        content = [self._part("".join(self._texts))]
        return {"id": self.id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _part(self, text: str) -> _Event:
        logprobs = self._logprobs if text else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


class _Thought:
    """A reasoning item. Its text is a content part, which clients that put items together expect to be announced."""

    is_announced = True
    is_whole = True

    def __init__(self, options: OutputOptions) -> None:
        self.id = new_id("reasoning")
        self.capsule = b""
        self._options = options
        self._texts: list[str] = []
        self._place: dict[str, Any] = {}
        self._summary_place: dict[str, Any] = {}

    def begin(self, index: int) -> Iterator[_Event]:
        item: _Event = {"id": self.id, "type": "reasoning", "summary": [], "content": []}
        yield {"type": "response.output_item.added", "output_index": index, "item": {**item, "status": "in_progress"}}
        self._place = {"item_id": self.id, "output_index": index, "content_index": 0}
        self._summary_place = {"item_id": self.id, "output_index": index, "summary_index": 0}
        yield {"type": "response.content_part.added", **self._place, "part": {"type": "reasoning_text", "text": ""}}
        if self._options.reasoning_summary:
            part = {"type": "summary_text", "text": ""}
            yield {"type": "response.reasoning_summary_part.added", **self._summary_place, "part": part}

    def extend(self, text: str) -> Iterator[_Event]:
        self._texts.append(text)
        yield {"type": "response.reasoning_text.delta", **self._place, "delta": text}
        if self._options.reasoning_summary:
            yield {"type": "response.reasoning_summary_text.delta", **self._summary_place, "delta": text}

    def finish(self, index: int) -> Iterator[_Event]:
        text = "".join(self._texts)
        yield {"type": "response.reasoning_text.done", **self._place, "text": text}
        yield {"type": "response.content_part.done", **self._place, "part": {"type": "reasoning_text", "text": text}}
        if self._options.reasoning_summary:
            part = {"type": "summary_text", "text": text}
            yield {"type": "response.reasoning_summary_text.done", **self._summary_place, "text": text}
            yield {"type": "response.reasoning_summary_part.done", **self._summary_place, "part": part}

    @property
    def _shows_capsule(self) -> bool:
        return self._options.encrypted_reasoning and bool(self.capsule)

    def item(self, status: str) -> _Event:
        text = "".join(self._texts)
        # Absent rather than null: a client that echoes the item would send a null that means nothing.
        sealed = {"encrypted_content": base64.b64encode(self.capsule).decode()} if self._shows_capsule else {}
        return {
            "id": self.id,
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": text}] if self._options.reasoning_summary else [],
            "content": [{"type": "reasoning_text", "text": text}],
            **sealed,
            "status": status,
        }


class _Call:
    """A call, in the kind of item that the client has for the tool."""

    def __init__(self, kind: ItemType, call_id: str, namespace: str | None, name: str) -> None:
        self.id = new_id(kind)
        self.is_whole = False
        self._kind = kind
        self._head: _Event = {"id": self.id, "type": str(kind), "call_id": call_id}
        if kind is not ItemType.LOCAL_SHELL_CALL:
            self._head["name"] = name
            # Absent rather than null: clients know it only where there are namespaces.
            self._head |= {"namespace": namespace} if namespace else {}
        self._fragments: list[str] = []
        self._place: dict[str, Any] = {}

    @property
    def is_announced(self) -> bool:
        """False for an action, of which there are no pieces: half of one must never be run, so it is not shown."""
        return self._kind is not ItemType.LOCAL_SHELL_CALL

    def begin(self, index: int) -> Iterator[_Event]:
        self._place = {"item_id": self.id, "output_index": index}
        if self.is_announced:
            yield {"type": "response.output_item.added", "output_index": index, "item": self.item("in_progress")}

    def extend(self, fragment: str) -> Iterator[_Event]:
        self._fragments.append(fragment)
        match self._kind:
            case ItemType.FUNCTION_CALL:
                yield {"type": "response.function_call_arguments.delta", **self._place, "delta": fragment}
            case ItemType.CUSTOM_TOOL_CALL:
                yield {"type": "response.custom_tool_call_input.delta", **self._place, "delta": fragment}
            case ItemType.LOCAL_SHELL_CALL:
                # An action has no deltas.
                pass

    def finish(self, index: int) -> Iterator[_Event]:
        text = "".join(self._fragments)
        match self._kind:
            case ItemType.FUNCTION_CALL:
                done = {"name": self._head["name"], "arguments": text}
                yield {"type": "response.function_call_arguments.done", **self._place, **done}
            case ItemType.CUSTOM_TOOL_CALL:
                yield {"type": "response.custom_tool_call_input.done", **self._place, "input": text}
            case ItemType.LOCAL_SHELL_CALL:
                item = self.item("in_progress")
                yield {"type": "response.output_item.added", "output_index": index, "item": item}

    def item(self, status: str) -> _Event:
        text = "".join(self._fragments)
        match self._kind:
            case ItemType.FUNCTION_CALL:
                return {**self._head, "arguments": text, "status": status}
            case ItemType.CUSTOM_TOOL_CALL:
                return {**self._head, "input": text, "status": status}
            case ItemType.LOCAL_SHELL_CALL:
                return {**self._head, "action": local_shell.action_of(text), "status": status}
