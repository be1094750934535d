"""What is known of earlier answers: in memory, in the kvstore, and in capsules that clients bring back.

``find`` runs in the encoding threads, ``remember`` on the loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.tokenizer import metrics
from services.tokenizer.conversation import Message
from services.tokenizer.history.capsules import Capsules
from services.tokenizer.history.memory import Transcripts
from services.tokenizer.history.record import Record, RecordKey, find_echo, is_echo, is_spelt
from services.tokenizer.history.record_store import RecordStore
from services.tokenizer.history.splices import Spliced, splice_thought
from services.tokenizer.routing import Routing
from services.vocabulary import Vocabulary

_FETCH_TIMEOUT_S = 0.5
_STORE_WAIT_S = 0.25


@dataclass(frozen=True, slots=True)
class Found:
    """A record that a message echoes, and where it came from."""

    record: Record
    source: str


class History:
    """One model's; safe to use from several threads."""

    def __init__(
        self, transcripts: Transcripts, store: RecordStore | None, capsules: Capsules, vocabulary: Vocabulary
    ) -> None:
        self._transcripts = transcripts
        self._store = store
        self._capsules = capsules
        self._vocabulary = vocabulary

    def recall(self, tenant: str, message: Message) -> Record | None:
        """The record of an echoed message wherever it stands now, by its calls' ids. Never waits.

        Good for its thinking. Its ids belong where they were sampled: ``find`` says whether that is here.
        """
        for record in self._of_calls(tenant, message):
            if is_echo(record, message.content, message.calls):
                return record
        return None

    def find(self, routing: Routing, key: RecordKey, message: Message) -> Found | None:
        """The record of a message at its place; may wait for the store, never on the loop's own thread."""
        tenant = routing.tenant
        record = self._transcripts.find(tenant, key, message.content, message.calls, message.reasoning)
        if record is not None:
            return Found(record, "memory")
        if self._store is None:
            return None
        call_id = message.calls[0].call_id if message.calls else None
        stored = self._store.fetch_blocking(tenant, key, _FETCH_TIMEOUT_S, call_id)
        records = [record for record in stored if is_spelt(record, self._vocabulary)]
        record = find_echo(records, message.content, message.calls, message.reasoning)
        if record is None:
            return None
        self._transcripts.put(tenant, key, record)
        return Found(record, "store")

    def divergence(self, tenant: str, message: Message) -> str | None:
        """For a message that is not found: what differs from the answer that made its calls; None if that is unknown.

        Never waits.
        """
        records = self._of_calls(tenant, message)
        if not records:
            return None
        is_same = any(is_echo(record, message.content, message.calls) for record in records)
        return "other history" if is_same else "other text or calls"

    def _of_calls(self, tenant: str, message: Message) -> list[Record]:
        ids = (self._transcripts.by_call_id(tenant, call.call_id) for call in message.calls)
        records = (self._transcripts.get(tenant, record_id) for record_id in ids if record_id is not None)
        return [record for record in records if record is not None]

    def seal(self, tenant: str, thought: Record) -> bytes | None:
        """A capsule of an answer's thinking; None where it would be too long."""
        return self._capsules.seal(tenant, thought)

    def unseal(self, tenant: str, capsule: bytes) -> Record | None:
        """The thinking in a capsule that a client has brought back; None where it is damaged or somebody else's."""
        return self._capsules.open(tenant, capsule)

    def beginning(self, thought: Record, text: str) -> Spliced | None:
        """What of a turn's ``text`` has the ids of its unsealed thinking; None where the thinking is not in it."""
        return splice_thought(thought, text, self._vocabulary)

    async def remember(self, routing: Routing, key: RecordKey, record: Record) -> None:
        """Keep an answer, in the store too unless the request says no."""
        self._transcripts.put(routing.tenant, key, record)
        if self._store is not None and routing.persist is not False:
            await self._store.store(routing.tenant, key, record, _STORE_WAIT_S)


def count_segment(outcome: str, reason: str) -> None:
    """Count an assistant's segment of a prompt."""
    metrics.SEGMENTS.labels(outcome, reason).inc()
