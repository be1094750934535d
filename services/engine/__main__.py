"""`fencepost engine`: computes tokens from tokens."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from services import process
from services.engine.config import EngineConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; the exit status."""
    # Read once, when torch is loaded. Between two operators a thread spins for some 20 us before it sleeps: waking it
    # costs as much as a small operator, and one that spins for long takes the cores from the other services. The first
    # line is for hosts where more threads compute than there are cores: there, none spins.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    from services.engine.assembly import build

    return process.main("engine", EngineConfig, build, argv)


if __name__ == "__main__":
    sys.exit(main())
