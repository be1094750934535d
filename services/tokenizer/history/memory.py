"""The records that this process remembers, within a budget; the oldest use goes first."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from services.tokenizer import metrics
from services.tokenizer.conversation import Call
from services.tokenizer.history.record import Record, RecordId, RecordKey, find_echo, key_of, record_id

MAX_SIBLINGS = 8
"""Records of one place. More are samples of one prompt with one visible text: only their calls or thinking differ."""


class Transcripts:
    """Safe to use from several threads; no method shows one tenant another's record."""

    def __init__(self, max_bytes: int, max_records: int = 65_536) -> None:
        self._max_bytes = max_bytes
        self._max_records = max_records
        self._lock = threading.Lock()
        # Invariant: the two indexes name exactly the records that are here; all three change under the lock.
        self._records: OrderedDict[tuple[str, RecordId], Record] = OrderedDict()
        self._ids_by_key: dict[tuple[str, RecordKey], list[RecordId]] = {}
        self._id_by_call: dict[tuple[str, str], RecordId] = {}
        self._num_bytes = 0

    @property
    def num_records(self) -> int:
        """Records held."""
        return len(self._records)

    @property
    def num_bytes(self) -> int:
        """Memory that they hold, about; at most ``max_bytes``."""
        return self._num_bytes

    def put(self, tenant: str, key: RecordKey, record: Record) -> RecordId:
        """Remember a record as its place's newest; one that is larger than the whole budget is forgotten at once."""
        put_id = record_id(key, record)
        with self._lock:
            if (tenant, put_id) in self._records:
                self._remove(tenant, put_id)
            siblings = self._ids_by_key.setdefault((tenant, key), [])
            siblings.append(put_id)
            self._records[tenant, put_id] = record
            self._num_bytes += record.num_bytes
            for call in record.calls:
                self._id_by_call[tenant, call.call_id] = put_id
            if len(siblings) > MAX_SIBLINGS:
                self._remove(tenant, siblings[0])
            while self._num_bytes > self._max_bytes or len(self._records) > self._max_records:
                self._remove(*next(iter(self._records)))
                metrics.TRANSCRIPT_EVICTIONS.inc()
            self._publish()
        return put_id

    def get(self, tenant: str, record_id: RecordId) -> Record | None:
        """One record."""
        with self._lock:
            return self._use(tenant, record_id)

    def find(
        self, tenant: str, key: RecordKey, content: str, calls: Sequence[Call], reasoning: str = ""
    ) -> Record | None:
        """The record at a place that a client's message echoes, as ``find_echo`` chooses it, the newest first."""
        with self._lock:
            ids = self._ids_by_key.get((tenant, key), ())
            siblings = [(sibling, self._records[tenant, sibling]) for sibling in reversed(ids)]
        found = find_echo([record for _, record in siblings], content, calls, reasoning)
        if found is None:
            return None
        with self._lock:
            self._use(tenant, next(sibling for sibling, record in siblings if record is found))
        return found

    def by_call_id(self, tenant: str, call_id: str) -> RecordId | None:
        """The record that a call belongs to, wherever the client now shows it: only a hint, as the place may differ."""
        with self._lock:
            return self._id_by_call.get((tenant, call_id))

    def remove(self, tenant: str, record_id: RecordId) -> None:
        """Forget a record, if it is here."""
        with self._lock:
            if (tenant, record_id) in self._records:
                self._remove(tenant, record_id)
                self._publish()

    def _use(self, tenant: str, record_id: RecordId) -> Record | None:
        record = self._records.get((tenant, record_id))
        if record is not None:
            self._records.move_to_end((tenant, record_id))
        return record

    def _remove(self, tenant: str, record_id: RecordId) -> None:
        record = self._records.pop((tenant, record_id))
        self._num_bytes -= record.num_bytes
        place = (tenant, key_of(record_id))
        self._ids_by_key[place].remove(record_id)
        if not self._ids_by_key[place]:
            del self._ids_by_key[place]
        for call in record.calls:
            if self._id_by_call.get((tenant, call.call_id)) == record_id:
                del self._id_by_call[tenant, call.call_id]

    def _publish(self) -> None:
        metrics.TRANSCRIPT_RECORDS.set(len(self._records))
        metrics.TRANSCRIPT_BYTES.set(self._num_bytes)
