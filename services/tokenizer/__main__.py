"""`fencepost tokenizer`: text to tokens and back."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from services import process
from services.tokenizer.assembly import build
from services.tokenizer.config import TokenizerSettings


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal; the exit status."""
    return process.main("tokenizer", TokenizerSettings, build, argv)


if __name__ == "__main__":
    sys.exit(main())
