"""``fencepost key``: API keys, made, listed and revoked. A running gateway reads the file again by itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from services import settings, stack
from services.gateway.tenants.caller import Caller
from services.gateway.tenants.key import Key, draw_key, is_label
from services.gateway.tenants.key_file import KeyFileError, read_keys, sole_writer, write_keys
from services.process import fail
from services.settings import SettingsError, setting
from services.stack import UpSettings

_USAGE: Final = """\
Usage:
  fencepost key create --tenant TENANT   make a key; --help lists what it can be given
  fencepost key list                     ids, tenants and states; never a key's text
  fencepost key revoke ID                let a key be refused from now on

`fencepost up` uses keys.json in its data directory; another file is named with --file. While the file exists, every
request needs a key.
"""
_FILE_HELP: Final = "the file of keys (default: the one that `fencepost up` uses)"
_LABEL_HELP: Final = "1 to 64 letters, digits, dots, dashes or underscores"


def _label(text: str) -> str:
    if not is_label(text):
        raise ValueError(_LABEL_HELP)
    return text


def _name(text: str) -> str:
    if not text.isprintable() or len(text) > 100:
        raise ValueError("at most 100 printable characters")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateSettings:
    """Flags of ``fencepost key create``."""

    tenant: str = setting(help=f"who owns what is sent with this key: {_LABEL_HELP}", parse=_label)
    cache_scope: str | None = setting(
        None, help="tenants of one scope share cached state; by default the tenant's own", parse=_label
    )
    persist: bool | None = setting(None, help="whether state may be written to disk; by default the server decides")
    name: str = setting("", help="your own note, such as where the key is used", parse=_name)
    file: Path | None = setting(None, help=_FILE_HELP)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Flags of the other commands."""

    file: Path | None = setting(None, help=_FILE_HELP)


def main(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Run one command; the process's exit status: 2 for one that cannot be used, 1 for a file that cannot."""
    command, *rest = argv or [""]
    try:
        match command:
            case "create":
                return _create(settings.load(CreateSettings, "key", rest, environ), environ)
            case "list":
                return _list(settings.load(FileSettings, "key", rest, environ), environ)
            case "revoke" if rest and not rest[0].startswith("-"):
                return _revoke(rest[0], settings.load(FileSettings, "key", rest[1:], environ), environ)
            case "help" | "--help" | "-h":
                sys.stdout.write(_USAGE)
                return 0
            case _:
                sys.stderr.write(_USAGE)
                return 2
    except SettingsError as error:
        return fail("key", error, 2)
    except (KeyFileError, OSError) as error:
        return fail("key", error, 1)


def _create(given: CreateSettings, environ: Mapping[str, str]) -> int:
    path = _file(given.file, environ)
    caller = Caller(given.tenant, given.cache_scope or given.tenant, given.persist)
    with sole_writer(path):
        found = read_keys(path)
        keys = () if found is None else found[1]
        key, text = draw_key(caller, given.name, _now())
        write_keys(path, (*keys, key))
    # Alone on standard output, so that it can be captured.
    sys.stdout.write(f"{text}\n")
    said = f"Key {key.key_id} for tenant {caller.tenant} is in {path}. Keep the line above: it is not shown again.\n"
    if not keys:
        said += "It is the first one: a gateway that uses this file now refuses requests without a key.\n"
    sys.stderr.write(said)
    return 0


def _list(given: FileSettings, environ: Mapping[str, str]) -> int:
    path = _file(given.file, environ)
    found = read_keys(path)
    if found is None:
        sys.stdout.write(f"There are no keys: {path} does not exist.\n")
        return 0
    rows = [("ID", "TENANT", "SCOPE", "PERSIST", "CREATED", "REVOKED", "NAME"), *(_row(key) for key in found[1])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        sys.stdout.write(f"{line.rstrip()}\n")
    return 0


def _revoke(key_id: str, given: FileSettings, environ: Mapping[str, str]) -> int:
    path = _file(given.file, environ)
    # A missing folder is not made for this; then there are no keys either.
    if read_keys(path) is None:
        raise KeyFileError(f"there are no keys: {path} does not exist")
    with sole_writer(path):
        found = read_keys(path)
        keys = () if found is None else found[1]
        if all(key.key_id != key_id for key in keys):
            raise KeyFileError(f"{path} has no key {key_id}; `fencepost key list` shows the ids")
        write_keys(path, [_revoked(key) if key.key_id == key_id else key for key in keys])
    sys.stderr.write(f"Key {key_id} is revoked.\n")
    return 0


def _file(given: Path | None, environ: Mapping[str, str]) -> Path:
    if given is not None:
        return given.absolute()
    return stack.keys_file(settings.load(UpSettings, "up", (), environ)).absolute()


def _revoked(key: Key) -> Key:
    return key if key.revoked is not None else replace(key, revoked=_now())


def _row(key: Key) -> tuple[str, ...]:
    persist = {None: "server's", True: "yes", False: "no"}[key.caller.persist]
    revoked = "no" if key.revoked is None else f"{key.revoked:%Y-%m-%d}"
    return (
        *(key.key_id, key.caller.tenant, key.caller.cache_scope),
        *(persist, f"{key.created:%Y-%m-%d}", revoked, key.name),
    )


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
