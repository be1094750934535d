"""Safetensors files without torch: writing them a tensor at a time, and checking them cheaply.

A check reads only a file's header, which says how long the file must be: a truncated download
is found without reading gigabytes.
Format: the safetensors project's README, section "Format".
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from services.models.errors import ModelFileError

_MAX_HEADER_BYTES: Final = 100_000_000
_ALIGNMENT: Final = 8
_ITEM_BYTES: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2,
    "BF16": 2, "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A safetensors file whose header was checked against its size."""

    path: Path
    size_bytes: int
    extent_by_tensor: Mapping[str, tuple[int, int]]
    """Byte range `[start, end)` of each tensor within the file."""


def read_weight_file(path: Path) -> WeightFile:
    """Reads and checks a file's header; raises ModelFileError if file and header disagree."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            header_bytes = int.from_bytes(file.read(8), "little")
            if size < 8 or header_bytes > size - 8:
                raise ModelFileError(path, f"truncated: its header does not fit into {size} bytes")
            if header_bytes > _MAX_HEADER_BYTES:
                raise ModelFileError(path, f"malformed: a header of {header_bytes} bytes")
            header = file.read(header_bytes)
    except FileNotFoundError as error:
        raise ModelFileError(path, "missing") from error
    except OSError as error:
        raise ModelFileError(path, f"cannot be read: {error.strerror or error}") from error
    start = 8 + header_bytes
    extents = {name: (start + begin, start + end) for name, (begin, end) in _extents(path, header).items()}
    end = max((end for _, end in extents.values()), default=start)
    if end > size:
        raise ModelFileError(path, f"truncated: {size} of {end} bytes")
    if end < size:
        raise ModelFileError(path, f"malformed: {size - end} bytes after the last tensor")
    return WeightFile(path, size, extents)


def write_weight_file(
    path: Path,
    shape_by_name: Mapping[str, tuple[int, ...]],
    values: Iterable[NDArray[np.float32]],
    metadata: Mapping[str, str],
) -> None:
    """Writes float32 tensors in the mapping's order, holding one at a time; does not sync."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, shape in shape_by_name.items():
        end = offset + 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    with path.open("xb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for (name, shape), tensor in zip(shape_by_name.items(), values, strict=True):
            assert tensor.shape == shape, name
            file.write(np.ascontiguousarray(tensor, "<f4").data)


def _extents(path: Path, header: bytes) -> dict[str, tuple[int, int]]:
    try:
        entries: object = json.loads(header)
    except ValueError as error:
        raise ModelFileError(path, f"malformed: its header is no JSON ({error})") from error
    if not isinstance(entries, dict):
        raise ModelFileError(path, "malformed: its header is no JSON object")
    extents: dict[str, tuple[int, int]] = {}
    for name, entry in cast("dict[str, object]", entries).items():
        if name == "__metadata__":
            continue
        extent = _extent(entry)
        if extent is None:
            raise ModelFileError(path, f"malformed: header entry of tensor {name}")
        extents[name] = extent
    return extents


def _extent(entry: object) -> tuple[int, int] | None:
    """The entry's byte range, or None where dtype, shape and range do not agree."""
    match entry:
        case {"dtype": str(dtype), "shape": list(), "data_offsets": [int(begin), int(end)]}:
            shape = cast("dict[str, list[object]]", entry)["shape"]
            sizes = [size for size in shape if isinstance(size, int) and size >= 0]
            if dtype not in _ITEM_BYTES or begin < 0 or len(sizes) != len(shape):
                return None
            return (begin, end) if end - begin == math.prod(sizes) * _ITEM_BYTES[dtype] else None
        case _:
            return None
