"""Messages out of items: what the model said in one turn comes as several items and becomes one message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fencepost.tokenizer.v1 import conversation_pb2


class Turns:
    """Takes items in order. A message of the assistant's is open until something else than the assistant speaks.

    Thinking and text after a text begin a new message, unless calls wait for their results: an answer thinks once and
    speaks once, so what follows is the next answer of a chain whose client had nothing to add.
    """

    def __init__(self) -> None:
        self._messages: list[conversation_pb2.Message] = []
        self._thoughts: list[conversation_pb2.Part] = []
        self._parts: list[conversation_pb2.Part] = []
        self._calls: list[conversation_pb2.Call] = []
        self._call_ids: set[str] = set()

    def speak(
        self, role: conversation_pb2.Role.ValueType, parts: Sequence[conversation_pb2.Part], call_id: str | None = None
    ) -> None:
        """A message of anybody's but the assistant's; results have a ``call_id``."""
        self._close()
        self._messages.append(conversation_pb2.Message(role=role, parts=parts, call_id=call_id))

    def think(self, thought: conversation_pb2.Part) -> None:
        """Goes before what the turn says, wherever it comes in it."""
        self._close_after_text()
        self._thoughts.append(thought)

    def say(self, parts: Iterable[conversation_pb2.Part]) -> None:
        """What the assistant answered."""
        self._close_after_text()
        self._parts.extend(parts)

    def call(self, call: conversation_pb2.Call) -> None:
        """Its index is set here."""
        call.index = len(self._calls)
        self._calls.append(call)
        self._call_ids.add(call.call_id)

    def has_call(self, call_id: str) -> bool:
        """Whether a result of this id answers something."""
        return call_id in self._call_ids

    def messages(self) -> list[conversation_pb2.Message]:
        """All; nothing is taken after this."""
        self._close()
        return self._messages

    def _close_after_text(self) -> None:
        if self._parts and not self._calls:
            self._close()

    def _close(self) -> None:
        if self._thoughts or self._parts or self._calls:
            self._messages.append(
                conversation_pb2.Message(
                    role=conversation_pb2.ROLE_ASSISTANT, parts=[*self._thoughts, *self._parts], calls=self._calls
                )
            )
        self._thoughts, self._parts, self._calls = [], [], []
