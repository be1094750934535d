"""Pushes a text through a fence as a model would write it that always does the canonical thing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import torch

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


@cache
def files_by_kind(max_files: int = 500) -> dict[str, list[Path]]:
    """Files as agents write them, in order: the standard library's with its test data, all of them; of every other kind
    some, ``max_files`` at most, spread evenly over what this machine has. Some are no text."""
    library, packages = Path(json.__file__).parent.parent, Path(torch.__file__).parent.parent
    apart = {"site-packages", "__pycache__"}
    files = {"library": sorted(path for path in _files(library) if apart.isdisjoint(path.parts))}
    headers = [*_files(Path("/usr/include/c++")), *_files(packages / "torch" / "include")]
    rest = [path for root in (packages, Path("/usr/share/doc"), Path("/usr/lib/node_modules")) for path in _files(root)]
    files["c++"] = [path for path in headers if path.suffix in ("", ".h", ".hpp", ".tcc", ".cuh")]
    files["html"] = [path for path in rest if path.suffix in (".html", ".htm")]
    files["javascript"] = [path for path in rest if path.suffix in (".js", ".mjs", ".cjs", ".ts")]
    files["markdown"] = [path for path in rest if path.suffix == ".md"]
    return files | {
        kind: sorted(files[kind])[:: len(files[kind]) // max_files + 1] for kind in files if kind != "library"
    }


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
