"""Blobs that nothing names any more: forgotten at once, their space given back as files become worth rewriting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from services.kvstore.background import Background
from services.kvstore.database import Database
from services.kvstore.errors import KvstoreError
from services.kvstore.state import BlobId

_log = logging.getLogger(__name__)
_MIN_SLACK_BYTES = 64 * 2**20
_FILES_AT_ONCE = 8


class Garbage:
    """Owned by the event loop. A failure here leaves orphans for the next start, and is logged.

    Dead bytes may take a sixteenth of the cap on top of it: with less, rewriting what is alive beside them costs more.
    Whoever writes faster than space can be given back waits for it.
    """

    def __init__(self, database: Database, background: Background, cap_bytes: int) -> None:
        self._database = database
        self._background = background
        slack_bytes = max(_MIN_SLACK_BYTES, cap_bytes // 16)
        self._limit_bytes = cap_bytes + slack_bytes
        self._wait_above_bytes = cap_bytes + slack_bytes * 5 // 4
        self._reclaiming: asyncio.Task[None] | None = None

    async def discard(self, blob_ids: Sequence[BlobId]) -> None:
        """Delete chunks, and give space back in the background.

        Call it with nothing to delete too: it also merges files where there are many small ones.
        """
        if blob_ids:
            try:
                await self._database.run(self._database.delete_blobs, blob_ids)
            except KvstoreError as error:
                _log.warning("could not delete %d blobs: %s", len(blob_ids), error)
                return
        if self._reclaiming is None:
            self._reclaiming = self._background.spawn(self._reclaim())
        if self._database.chunk_file_bytes > self._wait_above_bytes:
            await asyncio.shield(self._reclaiming)

    async def _reclaim(self) -> None:
        try:
            # A few at a time, because commits and a shutdown wait for it; the next commit goes on.
            for _ in range(_FILES_AT_ONCE):
                if not await self._database.run(self._database.reclaim, self._limit_bytes):
                    break
        except KvstoreError as error:
            _log.warning("could not give space back: %s", error)
        finally:
            self._reclaiming = None
