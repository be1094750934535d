"""One choice of a chat answer: a tokenizer's events become deltas, or the whole message."""

from __future__ import annotations

from typing import Any

from fencepost.tokenizer.v1 import conversation_pb2, tokenizer_pb2

from services.gateway.logprobs import chat_logprobs


class Calls:
    """The calls of one choice, by position; a function's text is its arguments, a custom tool's its input."""

    def __init__(self) -> None:
        self._started_by_index: dict[int, tokenizer_pb2.CallStarted] = {}
        self._fragments_by_index: dict[int, list[str]] = {}

    def start(self, started: tokenizer_pb2.CallStarted) -> dict[str, Any]:
        """Returns how the call looks before its text."""
        self._started_by_index[started.index] = started
        self._fragments_by_index[started.index] = []
        return _call(started, "")

    def extend(self, delta: tokenizer_pb2.CallDelta) -> dict[str, Any]:
        """Returns how the piece looks alone."""
        self._fragments_by_index[delta.index].append(delta.fragment)
        kind, key = _shape(self._started_by_index[delta.index])
        return {kind: {key: delta.fragment}}

    def whole(self) -> list[dict[str, Any]]:
        """All calls, in order; one that the answer's end cut short is as short here as in a stream."""
        return [
            _call(started, "".join(self._fragments_by_index[index]))
            for index, started in sorted(self._started_by_index.items())
        ]


class Message:
    """A choice in one piece."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._logprobs: list[tokenizer_pb2.TokenLogprobs] = []
        self._calls = Calls()
        self.finished = tokenizer_pb2.Finished()

    def add(self, event: tokenizer_pb2.GenerateResponse) -> None:
        """An event of this choice."""
        match event.WhichOneof("event"):
            case "text_delta":
                self._texts.append(event.text_delta.text)
                self._logprobs += event.text_delta.logprobs
            case "reasoning_delta":
                self._reasoning.append(event.reasoning_delta.text)
            case "call_started":
                self._calls.start(event.call_started)
            case "call_delta":
                self._calls.extend(event.call_delta)
            case "finished":
                self.finished = event.finished
            case _:
                pass

    def whole(self) -> dict[str, Any]:
        """The message object."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._texts), "refusal": None}
        if any(self._reasoning):
            message["reasoning_content"] = "".join(self._reasoning)
        if tool_calls := self._calls.whole():
            message["content"] = message["content"] or None
            message["tool_calls"] = tool_calls
        return message

    def logprobs(self) -> dict[str, Any]:
        """Of all its text."""
        return chat_logprobs(self._logprobs)


def choice_of(event: tokenizer_pb2.GenerateResponse) -> int | None:
    """Which choice an event belongs to; None for those that are about the prompt."""
    kind = event.WhichOneof("event")
    return None if kind in (None, "admitted", "progress") else getattr(event, kind).choice


def delta_of(event: tokenizer_pb2.GenerateResponse, calls: Calls) -> dict[str, Any] | None:
    """What an event adds to its choice's message; None for those that add nothing."""
    match event.WhichOneof("event"):
        case "text_delta":
            text = event.text_delta
            return {"content": text.text} if text.text or text.logprobs else None
        case "reasoning_delta":
            return {"reasoning_content": event.reasoning_delta.text} if event.reasoning_delta.text else None
        case "call_started":
            return {"tool_calls": [{"index": event.call_started.index, **calls.start(event.call_started)}]}
        case "call_delta" if event.call_delta.fragment:
            return {"tool_calls": [{"index": event.call_delta.index, **calls.extend(event.call_delta)}]}
        case _:
            return None


def _call(started: tokenizer_pb2.CallStarted, text: str) -> dict[str, Any]:
    kind, key = _shape(started)
    return {"id": started.call_id, "type": kind, kind: {"name": started.name, key: text}}


def _shape(started: tokenizer_pb2.CallStarted) -> tuple[str, str]:
    """The call's type, under which its text goes, and the text's name there."""
    return ("custom", "input") if started.kind == conversation_pb2.CALL_KIND_CUSTOM else ("function", "arguments")
