"""Assistant segments as they were sampled, and when an echo of one is the same.

A sampled answer is often not the canonical encoding of its own text, and clients write tool arguments anew. So what the
model wrote is remembered with its exact ids, under a digest of everything before it, and spliced into the next prompt
where the client's echo is equal.
"""

import hashlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NewType

import numpy as np

from services.identity import digest_fields
from services.tokenizer.conversation import Call
from services.tokenizer.dialects.json_text import same_value
from services.tokenizer.rope.prompt_text import TokenIds
from services.vocabulary import Vocabulary

RecordKey = NewType("RecordKey", bytes)
"""32 bytes: the place of a segment, that is scope, everything before it, and its visible text."""

RecordId = NewType("RecordId", bytes)
"""48 bytes: a place's key, and which of the segments sampled there."""

KEY_BYTES = 32
_SIBLING_BYTES = 16
ID_BYTES = KEY_BYTES + _SIBLING_BYTES
_OBJECT_BYTES = 600
"""About what a record's objects and index entries take beside its text and ids."""


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One assistant segment; nobody writes to ``ids``."""

    text: str
    """All that the model wrote between the generation prompt and its end token, markup and thinking included."""
    ids: TokenIds
    """Exactly the ids of ``text``."""
    content: str
    """The visible text that the client got."""
    reasoning: str
    """The thinking that the client got."""
    calls: tuple[Call, ...]

    @property
    def num_bytes(self) -> int:
        """Memory that it holds, about."""
        texts = [self.text, self.content, self.reasoning]
        for call in self.calls:
            texts += [call.call_id, call.name, call.arguments]
        return sum(map(sys.getsizeof, texts)) + self.ids.nbytes + _OBJECT_BYTES * (1 + len(self.calls))


class Chain:
    """A running digest of token ids, so that each segment of a prompt gets its place for the cost of its own ids."""

    __slots__ = ("_digest",)

    def __init__(self, tokenizer_fingerprint: str) -> None:
        """Of no ids. Chains of different tokenizers never meet."""
        secret = digest_fields(("chain", b""), ("tokenizer", tokenizer_fingerprint.encode()))
        self._digest = hashlib.blake2b(digest_size=32, key=secret)

    def update(self, ids: TokenIds) -> None:
        """Append ids; how they are cut into calls does not matter."""
        self._digest.update(np.ascontiguousarray(ids, dtype="<i4").data)

    def copy(self) -> "Chain":
        """One that goes on independently."""
        twin = object.__new__(Chain)
        twin._digest = self._digest.copy()
        return twin

    def digest(self) -> bytes:
        """32 bytes for all ids so far."""
        return self._digest.digest()


def record_key(cache_scope: str, chain: bytes, content: str) -> RecordKey:
    """The place of a segment; ``chain`` is the digest of all prompt ids before it, generation prompt included."""
    return RecordKey(
        digest_fields(("scope", cache_scope.encode()), ("chain", chain), ("content", content.encode()), size=KEY_BYTES)
    )


def record_id(key: RecordKey, record: Record) -> RecordId:
    """The id of a record at a place: two answers with one visible text, and different calls or ids, are two records."""
    ids = np.ascontiguousarray(record.ids, dtype="<i4").tobytes()
    return RecordId(key + digest_fields(("text", record.text.encode()), ("ids", ids), size=_SIBLING_BYTES))


def key_of(record_id: RecordId) -> RecordKey:
    """The place that a record belongs to."""
    return RecordKey(record_id[:KEY_BYTES])


def is_echo(record: Record, content: str, calls: Sequence[Call]) -> bool:
    """Whether a client's message is ``record``'s segment.

    The text must be equal, and so must be the number and names of the calls. Arguments
    are equal as text, or for functions as JSON. Calls are compared by id where the ids are the recorded ones, in order
    otherwise. Thinking is not looked at: most clients send back none, or a summary.
    """
    if content != record.content or len(calls) != len(record.calls):
        return False
    return all(map(_is_same_call, record.calls, _in_recorded_order(record.calls, calls)))


def find_echo(records: Iterable[Record], content: str, calls: Sequence[Call], reasoning: str = "") -> Record | None:
    """The record that the message echoes; of several, one with its call ids, then one with its ``reasoning``, then
    the first."""
    call_ids = {call.call_id for call in calls}
    echoes = [record for record in records if is_echo(record, content, calls)]

    def likeness(record: Record) -> tuple[bool, bool]:
        return {call.call_id for call in record.calls} == call_ids, record.reasoning == reasoning

    return max(echoes, key=likeness, default=None)


def is_spelt(record: Record, vocabulary: Vocabulary) -> bool:
    """Whether the ids of a record from elsewhere are known and spell its text; costs a step per id."""
    spelt = [vocabulary.spell(token_id) for token_id in record.ids.tolist()]
    return all(spelt) and b"".join(spelt).decode(errors="replace") == record.text


def _in_recorded_order(recorded: Sequence[Call], calls: Sequence[Call]) -> Sequence[Call]:
    call_by_id = {call.call_id: call for call in calls}
    if len(call_by_id) == len(calls) and call_by_id.keys() == {call.call_id for call in recorded}:
        return [call_by_id[call.call_id] for call in recorded]
    return calls


def _is_same_call(recorded: Call, call: Call) -> bool:
    if call.name != recorded.name or call.is_custom != recorded.is_custom:
        return False
    if recorded.is_custom:
        return call.arguments == recorded.arguments
    return same_value(recorded.arguments, call.arguments)
