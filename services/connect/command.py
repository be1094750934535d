"""``fencepost connect``: prints what a coding agent needs to use this server, or writes it into its configuration."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from services.connect.claude import CLAUDE
from services.connect.client import KEY_VARIABLE, Client
from services.connect.codex import CODEX
from services.connect.opencode import OPENCODE
from services.connect.served import ConnectError, Target, find

CLIENT_BY_NAME = {client.name: client for client in (CODEX, CLAUDE, OPENCODE)}
_BACKUP_SUFFIX = ".before-fencepost"
_HIDDEN = "YOUR_KEY"


def main(argv: Sequence[str]) -> int:
    """Instructions on standard output, warnings and errors on standard error; the exit status."""
    parser = argparse.ArgumentParser(
        prog="fencepost connect", description="Prints a coding agent's configuration for this server."
    )
    parser.add_argument("client", choices=tuple(CLIENT_BY_NAME))
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the gateway (default: %(default)s)")
    parser.add_argument("--key", help=f"API key (default: ${KEY_VARIABLE}, if it is set)")
    parser.add_argument("--model", help="a served model (default: the first one)")
    parser.add_argument("--write", action="store_true", help="put it into the agent's configuration file")
    options = parser.parse_args(list(argv))
    client = CLIENT_BY_NAME[options.client]
    try:
        target = find(options.url, options.key or os.environ.get(KEY_VARIABLE) or None, options.model)
        if options.write:
            _write(client, target)
        else:
            _print(client, target)
    except ConnectError as error:
        sys.stderr.write(f"fencepost connect {client.name}: {error}\n")
        return 1
    _warn(client, target)
    return 0


def _print(client: Client, target: Target) -> None:
    """With the key left out: what stands on a screen is seen by others."""
    shown = _without_key(target)
    alone = client.variables_alone(shown)
    if alone:
        sys.stdout.write(f"For one shell:\n\n{_exports(alone)}\nOr for good, in ")
    else:
        sys.stdout.write("In ")
    path = client.path(Path.home(), os.environ)
    sys.stdout.write(f"{path} (--write puts it there):\n\n{client.merge('', shown)}\n{_start(client, shown)}")


def _write(client: Client, target: Target) -> None:
    """Keeps the file's other contents, and beside it the file as it was at first. Raises ConnectError."""
    # A link stays one.
    path = client.path(Path.home(), os.environ).resolve()
    backup = path.with_name(path.name + _BACKUP_SUFFIX)
    try:
        before = path.read_text() if path.exists() else None
        try:
            after = client.merge(before or "", target)
        except ValueError as error:
            raise ConnectError(f"{path} is left as it is: {error}") from None
        if after != before:
            path.parent.mkdir(parents=True, exist_ok=True)
            if before is not None and not backup.exists():
                _replace(backup, before)
            _replace(path, after)
    except (OSError, UnicodeDecodeError) as error:
        raise ConnectError(f"{path} is left as it is: {error}") from None
    as_it_was = f"; as it was before: {backup}" if backup.exists() else ""
    sys.stdout.write(f"{path} is written{as_it_was}\n\n{_start(client, _without_key(target))}")


def _without_key(target: Target) -> Target:
    return target if target.key is None else replace(target, key=_HIDDEN)


def _start(client: Client, target: Target) -> str:
    return f"Then:\n\n{_exports(client.variables(target))}{client.name}\n"


def _exports(value_by_name: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in value_by_name.items())


def _replace(path: Path, text: str) -> None:
    """All or nothing, and for its owner's eyes: it may hold a key."""
    file_fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(file_fd, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _warn(client: Client, target: Target) -> None:
    if target.context_tokens <= client.first_request_tokens:
        sys.stderr.write(
            f"Warning: {target.model} holds {target.context_tokens:,} tokens, and the first request of {client.title} "
            f"has about {client.first_request_tokens:,}. Serve a model with a longer context: fencepost up --model …\n"
        )
