"""The ``fencepost`` command: one sub-command per service, all of them together, and models."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from services import extras
from services.extras import SERVICES, MissingExtraError

PAGE: Final = """\
Fencepost serves large language models to coding agents.

Start here:
  fencepost up                    run everything on this machine: http://127.0.0.1:8000
  fencepost up --help             another port, model, memory or disk budget

One by one:
  fencepost gateway   --help      HTTP for clients
  fencepost tokenizer --help      text to tokens and back
  fencepost engine    --help      the model
  fencepost kvstore   --help      state on disk

Coding agents:
  fencepost connect codex|claude|opencode   print what the agent needs; --write puts it into its configuration

API keys:
  fencepost key create --tenant T make one; from then on every request needs a key
  fencepost key list | revoke ID

Models:
  fencepost model pull [NAME]     fetch and convert one (default: smollm2-135m-instruct), print its directory

  fencepost version
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one sub-command; the process's exit status: 2 for a command or setting that cannot be used."""
    command, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    try:
        if command in SERVICES:
            extras.require(command)
            return importlib.import_module(f"services.{command}.__main__").main(rest)
        if command == "up":
            extras.require(*SERVICES, "models")
            return importlib.import_module("services.up").main(rest)
        if command == "connect":
            extras.require("connect")
            return importlib.import_module("services.connect.command").main(rest)
        if command == "key":
            extras.require("gateway")
            return importlib.import_module("services.keys").main(rest)
        if command == "model":
            extras.require("models")
            return importlib.import_module("services.pull").main(rest)
    except MissingExtraError as error:
        sys.stderr.write(f"fencepost {command}: {error}\n")
        return 1
    if command in ("version", "--version"):
        sys.stdout.write(f"fencepost {_version()}\n")
        return 0
    if command in ("", "help", "--help", "-h"):
        sys.stdout.write(PAGE)
        return 0
    sys.stderr.write(f"fencepost: no such command: {command}; run `fencepost` for the list\n")
    return 2


def _version() -> str:
    try:
        return version("fencepost")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
