"""`fencepost kvstore`: keeps state and records on disk."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from services import process
from services.kvstore.allocator import keep_freed_memory
from services.kvstore.config import Config
from services.kvstore.server import build


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; the exit status."""
    keep_freed_memory()
    return process.main("kvstore", Config, build, argv)


if __name__ == "__main__":
    sys.exit(main())
