"""Everything that can go wrong in the kvstore.

ServiceError
└── KvstoreError
    ├── InvalidRequestError       a message that breaks the contract
    ├── FormatDiffersError        sizes or formats differ from what is stored under the same key
    ├── NoSharedMemoryError       a region of shared memory that cannot be reached from here
    ├── NoSpaceError              nothing more can be evicted, or the disk is down to its reserve
    ├── TooManyWritersError       every slot for a Write is taken
    ├── WriteStalledError         a Write whose client went silent
    ├── RecordNotFoundError       no such record, or it has expired
    ├── RecordExistsError         if_absent and the key is taken
    └── DatabaseError             RocksDB failed
        ├── DamagedBlockError     RocksDB finds what it has written damaged
        └── DataDirectoryError    the data directory cannot be opened: in use, or of another format
DamageError                       stored bytes are not what was written; never leaves the service as an error
"""

from __future__ import annotations

from services.errors import ServiceError


class KvstoreError(ServiceError):
    """Anything the kvstore tells a caller."""


class InvalidRequestError(KvstoreError):
    """The message breaks the contract; the text names the field."""

    status = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"


class FormatDiffersError(KvstoreError):
    """What was sent cannot live beside what is stored."""

    status = "FAILED_PRECONDITION"
    reason = "FORMAT_DIFFERS"


class NoSharedMemoryError(KvstoreError):
    """The reader's memory cannot be reached; it can read without."""

    status = "FAILED_PRECONDITION"
    reason = "NO_SHARED_MEMORY"


class NoSpaceError(KvstoreError):
    """The byte cap or the disk's reserve leaves no room."""

    status = "RESOURCE_EXHAUSTED"
    reason = "NO_SPACE"


class TooManyWritersError(KvstoreError):
    """As many Writes are open as are allowed."""

    status = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_WRITERS"


class WriteStalledError(KvstoreError):
    """The client of a Write sent nothing for too long."""

    status = "DEADLINE_EXCEEDED"
    reason = "WRITE_STALLED"


class RecordNotFoundError(KvstoreError):
    """There is no such record."""

    status = "NOT_FOUND"
    reason = "RECORD_NOT_FOUND"


class RecordExistsError(KvstoreError):
    """The key is taken."""

    status = "ALREADY_EXISTS"
    reason = "RECORD_EXISTS"


class DatabaseError(KvstoreError):
    """RocksDB failed; the text is its own."""

    status = "UNAVAILABLE"
    reason = "DATABASE_FAILED"


class DamagedBlockError(DatabaseError):
    """A block or file of the database fails its own check: the value is lost, the database works."""


class DataDirectoryError(DatabaseError):
    """The data directory cannot be used; the text names it."""

    status = "FAILED_PRECONDITION"
    reason = "DATA_DIRECTORY"


class DamageError(Exception):
    """Stored bytes fail a check. ``reason`` is "missing", "checksum", "length" or "format"."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
