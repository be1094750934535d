"""Opens the capsules that clients bring back: the thinking in them becomes text again, and its ids are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from services.tokenizer.conversation import Conversation, Message
from services.tokenizer.history.record import Record

Open = Callable[[bytes], Record | None]
"""The thinking in a capsule; None for one that does not open."""

_CLOSED = "ignored {} of thinking that this server did not make for this caller"
_FOREIGN = "ignored {} of thinking: other text came back with it"


@dataclass(frozen=True, slots=True)
class Unsealed:
    """A conversation without capsules."""

    source: Conversation
    thoughts: Mapping[int, Record]
    """By message, for those that have all of their thinking as it was sampled."""
    warnings: tuple[str, ...]


def unseal(source: Conversation, open_: Open) -> Unsealed:
    """Put the text of each capsule where the client sent none. Where it sent another text, that counts."""
    if not any(message.thoughts for message in source.messages):
        return Unsealed(source, {}, ())
    counts = {_CLOSED: 0, _FOREIGN: 0}
    messages: list[Message] = []
    thoughts: dict[int, Record] = {}
    for index, message in enumerate(source.messages):
        texts: list[str] = []
        records: list[Record | None] = []
        for thought in message.thoughts:
            record = None if thought.capsule is None else open_(thought.capsule)
            if thought.capsule is not None and record is None:
                counts[_CLOSED] += 1
            elif record is not None and thought.text.strip() not in ("", record.reasoning.strip()):
                counts[_FOREIGN] += 1
                record = None
            text = thought.text if record is None else record.reasoning
            if text:
                texts.append(text)
                records.append(record)
        if message.thoughts:
            message = replace(message, reasoning="\n".join(texts), thoughts=())
        if len(records) == 1 and records[0] is not None:
            thoughts[index] = records[0]
        messages.append(message)
    warnings = tuple(
        warning.format("a capsule" if count == 1 else f"{count} capsules") for warning, count in counts.items() if count
    )
    return Unsealed(replace(source, messages=tuple(messages)), thoughts, warnings)
