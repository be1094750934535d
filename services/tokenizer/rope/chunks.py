"""Ids of chunks of plain text, found again by content."""

import secrets
import threading
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from services.tokenizer.rope.prompt_text import TokenIds

_ENTRY_BYTES = 300
"""What an entry costs beside its ids: key, array object, links."""


class ChunkCache:
    """Least recently used out; any thread may call.

    Keys are digests under a key of this process: tenants share the cache, and none can make two texts collide.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._ids_by_key: OrderedDict[bytes, TokenIds] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes held."""
        return self._num_bytes

    def __len__(self) -> int:
        return len(self._ids_by_key)

    def key(self, text: str) -> bytes:
        """The digest under which ``text`` is kept."""
        return blake2b(text.encode(), digest_size=16, key=self._secret).digest()

    def get(self, keys: Sequence[bytes]) -> list[TokenIds | None]:
        """Ids for each key, None where there are none."""
        with self._lock:
            found = [self._ids_by_key.get(key) for key in keys]
            for key, ids in zip(keys, found, strict=True):
                if ids is not None:
                    self._ids_by_key.move_to_end(key)
        return found

    def put(self, entries: Sequence[tuple[bytes, TokenIds]]) -> None:
        """Keep ids, which must own their memory."""
        with self._lock:
            for key, ids in entries:
                if key not in self._ids_by_key:
                    self._num_bytes += ids.nbytes + _ENTRY_BYTES
                self._ids_by_key[key] = ids
                self._ids_by_key.move_to_end(key)
            while self._num_bytes > self._max_bytes:
                _, ids = self._ids_by_key.popitem(last=False)
                self._num_bytes -= ids.nbytes + _ENTRY_BYTES
