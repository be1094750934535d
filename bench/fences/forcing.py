"""Pushes a text through a fence as a model would write it that always does the canonical thing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from services.engine.fence.allowed import Free, Ids
from services.engine.fence.machine import Fence
from services.engine.fence.tokens import FenceTokens


def is_legal(fence: Fence, token_id: int) -> bool:
    """What ``allowed`` says of one token."""
    allowed = fence.allowed()
    if isinstance(allowed, Free):
        return True
    if isinstance(allowed, Ids):
        return token_id in allowed.ids
    return bool(int(allowed.row[token_id >> 5]) >> (token_id & 31) & 1)


def ids_of(tokens: FenceTokens, text: str, markers: Mapping[str, int]) -> list[int]:
    """The canonical ids, markers as their tokens."""
    if not markers:
        return tokens.encode(text)
    ids: list[int] = []
    for piece in re.split(f"({'|'.join(map(re.escape, markers))})", text):
        ids.extend([markers[piece]] if piece in markers else tokens.encode(piece))
    return ids


def first_illegal(fence: Fence, ids: Sequence[int]) -> int | None:
    """The position of the first token that is refused, by its row or when pushed."""
    for position, token_id in enumerate(ids):
        if not is_legal(fence, token_id) or not fence.push(token_id):
            return position
    return None


def library_files() -> list[Path]:
    """Files of the standard library, in order; some are no text."""
    folders = {"site-packages", "__pycache__"}
    files = Path(json.__file__).parent.parent.rglob("*")
    return sorted(path for path in files if path.is_file() and folders.isdisjoint(path.parts))
