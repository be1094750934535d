"""The file of API keys: one JSON document, replaced as a whole, the owner's only.

    {"version": 1, "keys": [{"id", "sha256", "tenant", "cache_scope", "persist", "name", "created", "revoked"}, …]}

``sha256`` is hexadecimal, ``persist`` true, false or null, the times ISO 8601 in UTC, ``revoked`` null until then.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from services.gateway.tenants.caller import Caller
from services.gateway.tenants.key import Key, is_label

_VERSION = 1
_LONGEST_BYTES = 64 * 2**20
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH

Stamp = tuple[int, int, int, int]
"""Changes whenever the file does: inode, size, times of modification and of change in ns."""


class KeyFileError(Exception):
    """The file cannot be used; the message is one line and names it."""


def stamp_of(path: Path) -> Stamp | None:
    """What tells this content of the file from another; None while there is no file. Raises KeyFileError."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror or error}") from None
    return _stamp(found)


def read_keys(path: Path) -> tuple[Stamp, tuple[Key, ...]] | None:
    """The keys and the stamp of what was read; None when there is no file. Raises KeyFileError."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_mode & _WRITABLE_BY_OTHERS:
                raise KeyFileError(f"{path} can be written by others than its owner; run: chmod 600 {path}")
            content = file.read(_LONGEST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror or error}") from None
    if len(content) > _LONGEST_BYTES:
        raise KeyFileError(f"{path} is larger than {_LONGEST_BYTES} bytes")
    try:
        return _stamp(found), _parse(content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # Neither the content nor what the parser says of it goes into a message that is logged.
        raise KeyFileError(f"{path} is not a file of API keys, or is damaged") from None


def write_keys(path: Path, keys: Sequence[Key]) -> None:
    """Replace the file; a reader sees the old or the new one, whatever happens. Raises OSError."""
    content = json.dumps({"version": _VERSION, "keys": [_entry(key) for key in keys]}, indent=1)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(content + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def sole_writer(path: Path) -> Generator[None]:
    """Keep every other writer of the file out, waiting for the one that is there; makes the folder. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The file itself is replaced, so a lock on it would guard an old one.
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entry(key: Key) -> dict[str, Any]:
    return {
        "id": key.key_id,
        "sha256": key.digest.hex(),
        "tenant": key.caller.tenant,
        "cache_scope": key.caller.cache_scope,
        "persist": key.caller.persist,
        "name": key.name,
        "created": key.created.isoformat(),
        "revoked": None if key.revoked is None else key.revoked.isoformat(),
    }


def _parse(content: bytes) -> tuple[Key, ...]:
    document = json.loads(content)
    if document["version"] != _VERSION:
        raise ValueError
    keys = tuple(_key(entry) for entry in document["keys"])
    if len({key.key_id for key in keys}) != len(keys):
        raise ValueError
    return keys


def _key(entry: dict[str, Any]) -> Key:
    digest, persist = bytes.fromhex(entry["sha256"]), entry["persist"]
    tenant, cache_scope = cast(str, entry["tenant"]), cast(str, entry["cache_scope"])
    is_sound = len(digest) == 32 and is_label(entry["id"]) and is_label(tenant) and is_label(cache_scope)
    if not is_sound or not isinstance(persist, bool | None) or not isinstance(entry["name"], str):
        raise ValueError
    revoked = entry["revoked"]
    return Key(
        key_id=cast(str, entry["id"]),
        digest=digest,
        caller=Caller(tenant, cache_scope, persist),
        name=entry["name"],
        created=datetime.fromisoformat(entry["created"]),
        revoked=None if revoked is None else datetime.fromisoformat(revoked),
    )
