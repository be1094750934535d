"""``fencepost model pull``: prepares a model ahead of time and prints where it is."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from services.models.errors import ModelError
from services.models.progress import ProgressLines
from services.models.store import DEFAULT_MODEL, resolve


def main(argv: Sequence[str]) -> int:
    """Print the model's directory on standard output, progress and errors on standard error; the exit status."""
    parser = argparse.ArgumentParser(prog="fencepost model", description="Fetches and converts models.")
    pull = parser.add_subparsers(metavar="COMMAND", required=True).add_parser(
        "pull", help="make a model ready and print its directory"
    )
    pull.add_argument(
        "name",
        nargs="?",
        default=DEFAULT_MODEL,
        metavar="NAME",
        help=f"{DEFAULT_MODEL} (the default), a model directory, a .gguf file, or a hub id org/name",
    )
    name: str = parser.parse_args(list(argv)).name
    # A terminated pull cleans up behind itself just as an interrupted one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        directory = resolve(name, progress=ProgressLines())
    except ModelError as error:
        sys.stderr.write(f"fencepost model pull: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    sys.stdout.write(f"{directory}\n")
    return 0
