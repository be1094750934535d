"""Terminal states as an engine has stored them, found in the database, for a client of the kvstore to ask for."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.kvstore.database import Database
from services.kvstore.format import decode_manifest
from services.kvstore.state import Manifest
from tests.contract.kvstore_client import State


@dataclass(frozen=True)
class StoredState(State):
    """A state whose page keys an engine has made."""

    keys: tuple[bytes, ...] = ()

    @property
    def page_keys(self) -> list[bytes]:
        return list(self.keys)


@contextmanager
def opened(data_dir: Path) -> Generator[Database]:
    """The database of a store that is not running."""
    database = Database(data_dir, 1)
    try:
        yield database
    finally:
        database.close()


def manifests(database: Database) -> list[Manifest]:
    """All of them, the shortest state first."""
    rows = database.scan("manifests", b"", 1_000)
    return sorted((decode_manifest(value) for _, value in rows), key=lambda found: found.token_count)


def stored_state(manifest: Manifest, token_ids: Sequence[int]) -> StoredState:
    """What to ask a kvstore for to get the state of ``token_ids``."""
    assert manifest.token_count == len(token_ids)
    return StoredState(
        np.array(token_ids, dtype="<i4").tobytes(),
        manifest.manifest_id,
        namespace=manifest.namespace,
        keys=manifest.page_keys,
    )
