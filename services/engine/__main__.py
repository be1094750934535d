"""`fencepost engine`: computes tokens from tokens."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from services import process
from services.engine.config import EngineConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; the exit status."""
    # Read once, when torch is loaded. Threads that spin between operators take the cores from the other services and
    # from each other: on two busy cores, decoding is twice as fast without.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from services.engine.assembly import build

    return process.main("engine", EngineConfig, build, argv)


if __name__ == "__main__":
    sys.exit(main())
