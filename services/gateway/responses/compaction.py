"""Compaction items: a summary in place of what was said, in the client's hands.

It is not secret and not proof of anything: whoever holds one could as well send its text as a message.
"""

from __future__ import annotations

import base64
import binascii

_MAGIC = b"fencepost-compaction-1\n"


def seal(summary: str) -> str:
    """The ``encrypted_content`` of an item that stands for ``summary``."""
    return base64.b64encode(_MAGIC + summary.encode()).decode()


def unseal(encrypted_content: str) -> str | None:
    """The summary; None for what another server made."""
    try:
        data = base64.b64decode(encrypted_content, validate=True)
        return data.removeprefix(_MAGIC).decode() if data.startswith(_MAGIC) else None
    except (binascii.Error, ValueError):
        return None
