"""Reads GGUF files, versions 2 and 3, straight from a memory map.

A file is untrusted: every count, length and offset is checked against the file's size before
anything is allocated or read, and any defect is a `ModelFileError` that names the file.
Format: the ggml project's `docs/gguf.md`.
"""

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from services.models.dequantize import FORMATS, TensorFormat, dequantize
from services.models.errors import ModelFileError, UnsupportedModelError

MetadataValue = str | int | float | bool | tuple[str, ...] | NDArray[np.generic]

_HEADER_BYTES: Final = 24
_MAX_DIMENSIONS: Final = 4
_STRING: Final = 8
_ARRAY: Final = 9
_BOOL: Final = 7
_SCALARS: Final = {
    number: np.dtype(name)
    for number, name in {
        0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4",
        _BOOL: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
    }.items()
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor lies. Invariant: `[offset, offset + num_bytes)` is inside the file."""

    shape: tuple[int, ...]
    """Outermost dimension first, as numpy and torch write it."""
    tensor_format: TensorFormat
    offset: int
    """Bytes from the start of the file."""
    num_bytes: int


class GgufFile:
    """An open GGUF file: its metadata, and its tensors decoded on demand.

    Owns a memory map; arrays it returns are copies and outlive it.
    """

    def __init__(self, path: Path) -> None:
        """Parses metadata and tensor table; raises ModelFileError or UnsupportedModelError."""
        self.path = path
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                if size < _HEADER_BYTES:
                    raise ModelFileError(path, f"truncated: {size} bytes are no GGUF header")
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelFileError(path, f"cannot be read: {error.strerror or error}") from error
        try:
            self.metadata, self.tensors = _parse(_Cursor(path, self._map))
        except BaseException:
            self._map.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._map.close()

    def read(self, name: str) -> NDArray[np.float32]:
        """Decodes a tensor to float32 in its shape; KeyError if there is no such tensor."""
        tensor = self.tensors[name]
        stored = np.frombuffer(self._map, np.uint8, tensor.num_bytes, tensor.offset)
        return dequantize(stored, tensor.tensor_format).reshape(tensor.shape)

    def text(self, key: str) -> str:
        """A string of the metadata; ModelFileError if absent or of another type."""
        value = self._required(key)
        if not isinstance(value, str):
            raise ModelFileError(self.path, f"metadata {key} is not a string")
        return value

    def integer(self, key: str) -> int:
        """A non-negative integer of the metadata; ModelFileError if absent or anything else."""
        value = self._required(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ModelFileError(self.path, f"metadata {key} is not a non-negative integer")
        return value

    def number(self, key: str) -> float:
        """A finite number of the metadata; ModelFileError if absent or anything else."""
        value = self._required(key)
        if not isinstance(value, float) or not math.isfinite(value):
            raise ModelFileError(self.path, f"metadata {key} is not a finite number")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings of the metadata; ModelFileError if absent or of another type."""
        value = self._required(key)
        if not isinstance(value, tuple):
            raise ModelFileError(self.path, f"metadata {key} is not a list of strings")
        return value

    def integers(self, key: str) -> list[int]:
        """A list of integers of the metadata; ModelFileError if absent or of another type."""
        value = self._required(key)
        if not isinstance(value, np.ndarray) or not np.issubdtype(value.dtype, np.integer):
            raise ModelFileError(self.path, f"metadata {key} is not a list of integers")
        return value.astype(np.int64).tolist()

    def _required(self, key: str) -> MetadataValue:
        try:
            return self.metadata[key]
        except KeyError:
            raise ModelFileError(self.path, f"metadata {key} is missing") from None


class _Cursor:
    """Walks a buffer forwards and refuses to step over its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.offset = 0
        self.size = len(data)
        self._data = data

    def take(self, num_bytes: int, what: str) -> bytes:
        self.require(num_bytes, what)
        start = self.offset
        self.offset += num_bytes
        return self._data[start : self.offset]

    def require(self, num_bytes: int, what: str) -> None:
        if num_bytes > self.size - self.offset:
            raise ModelFileError(
                self.path,
                f"truncated: {what} needs {num_bytes} bytes at offset {self.offset}, but the file ends at {self.size}",
            )

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def string(self, what: str) -> str:
        try:
            return self.take(self.u64(what), what).decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(self.path, f"malformed: {what} is not UTF-8") from error

    def value(self, what: str) -> MetadataValue:
        kind = self.u32(what)
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            return self._array(what)
        scalar = np.frombuffer(self.take(self._scalar(kind, what).itemsize, what), _SCALARS[kind])
        value: int | float = scalar[0].item()
        return bool(value) if kind == _BOOL else value

    def _array(self, what: str) -> tuple[str, ...] | NDArray[np.generic]:
        kind, count = self.u32(what), self.u64(what)
        if kind == _STRING:
            self.require(8 * count, what)
            return tuple([self.string(what) for _ in range(count)])
        dtype = self._scalar(kind, what)
        return np.frombuffer(self.take(count * dtype.itemsize, what), dtype)

    def _scalar(self, kind: int, what: str) -> np.dtype[np.generic]:
        try:
            return _SCALARS[kind]
        except KeyError:
            raise ModelFileError(self.path, f"malformed: {what} has value type {kind}") from None


def _parse(cursor: _Cursor) -> tuple[Mapping[str, MetadataValue], Mapping[str, GgufTensor]]:
    if cursor.take(4, "magic") != b"GGUF":
        raise ModelFileError(cursor.path, "not a GGUF file")
    version = cursor.u32("version")
    if version not in (2, 3):
        raise UnsupportedModelError(cursor.path, f"GGUF version {version} is not 2 or 3")
    num_tensors, num_metadata = cursor.u64("tensor count"), cursor.u64("metadata count")
    metadata: dict[str, MetadataValue] = {}
    for index in range(num_metadata):
        key = cursor.string(f"name of metadata {index}")
        if key in metadata:
            raise ModelFileError(cursor.path, f"malformed: metadata {key} appears twice")
        metadata[key] = cursor.value(f"metadata {key}")
    entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for index in range(num_tensors):
        name = cursor.string(f"name of tensor {index}")
        if name in entries:
            raise ModelFileError(cursor.path, f"malformed: tensor {name} appears twice")
        entries[name] = _tensor_entry(cursor, name)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ModelFileError(cursor.path, f"malformed: alignment {alignment}")
    start = -(-cursor.offset // alignment) * alignment
    tensors = {name: _place(cursor, name, start, *entry) for name, entry in entries.items()}
    return MappingProxyType(metadata), MappingProxyType(tensors)


def _tensor_entry(cursor: _Cursor, name: str) -> tuple[tuple[int, ...], int, int]:
    """Shape, type number, and offset from the start of the data section."""
    what = f"tensor {name}"
    num_dimensions = cursor.u32(what)
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise ModelFileError(cursor.path, f"malformed: {what} has {num_dimensions} dimensions")
    innermost_first = [cursor.u64(what) for _ in range(num_dimensions)]
    return tuple(reversed(innermost_first)), cursor.u32(what), cursor.u64(what)


def _place(cursor: _Cursor, name: str, start: int, shape: tuple[int, ...], kind: int, relative: int) -> GgufTensor:
    if kind not in FORMATS:
        known = ", ".join(known.name for known in FORMATS.values())
        raise UnsupportedModelError(cursor.path, f"tensor {name} is stored in ggml type {kind}; readable are {known}")
    tensor_format = FORMATS[kind]
    if min(shape) < 1 or shape[-1] % tensor_format.block_values:
        raise ModelFileError(cursor.path, f"malformed: tensor {name} of shape {shape} is no {tensor_format.name}")
    num_bytes = math.prod(shape) // tensor_format.block_values * tensor_format.block_bytes
    offset = start + relative
    if offset + num_bytes > cursor.size:
        raise ModelFileError(
            cursor.path,
            f"truncated: tensor {name} needs {num_bytes} bytes at offset {offset}, but the file ends at {cursor.size}",
        )
    return GgufTensor(shape, tensor_format, offset, num_bytes)
