"""Blobs that nothing names any more: deleted at once, their space given back when enough has come together."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from services.kvstore.background import Background
from services.kvstore.database import Database
from services.kvstore.errors import KvstoreError
from services.kvstore.state import BlobId

_log = logging.getLogger(__name__)
_MIN_RECLAIM_BYTES = 64 * 2**20


class Garbage:
    """Owned by the event loop. A failure here leaves orphans for the next start, and is logged."""

    def __init__(self, database: Database, background: Background, cap_bytes: int) -> None:
        self._database = database
        self._background = background
        self._reclaim_bytes = max(_MIN_RECLAIM_BYTES, cap_bytes // 16)
        self._blob_ids: list[BlobId] = []
        self._num_bytes = 0

    async def discard(self, blob_ids: Sequence[BlobId], num_bytes: int) -> None:
        """Delete chunks that take about ``num_bytes``."""
        if not blob_ids:
            return
        try:
            await self._database.run(self._database.delete_blobs, blob_ids)
        except KvstoreError as error:
            _log.warning("could not delete %d blobs: %s", len(blob_ids), error)
            return
        self._blob_ids += blob_ids
        self._num_bytes += num_bytes
        if self._num_bytes >= self._reclaim_bytes:
            blob_ids, self._blob_ids, self._num_bytes = self._blob_ids, [], 0
            self._background.spawn(self._reclaim(blob_ids))

    async def _reclaim(self, blob_ids: Sequence[BlobId]) -> None:
        try:
            await self._database.run(self._database.reclaim, blob_ids)
        except KvstoreError as error:
            _log.warning("could not give space back: %s", error)
