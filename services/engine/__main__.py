"""`fencepost engine`: computes tokens from tokens."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from services import process
from services.engine.assembly import build
from services.engine.config import EngineConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; the exit status."""
    return process.main("engine", EngineConfig, build, argv)


if __name__ == "__main__":
    sys.exit(main())
