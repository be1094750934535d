"""Turns the stored blocks of a GGUF tensor into float32, a whole tensor at a time.

Block layouts are those of ggml's `ggml-common.h`: 32 values a block, scales in float16,
and in the 4-bit formats the low nibbles hold the first 16 values and the high nibbles the last 16.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TensorFormat:
    """One storage format: its block geometry and its decoder."""

    name: str
    block_values: int
    block_bytes: int
    decode: Callable[[Bytes], Floats]
    """[blocks, block_bytes] uint8 → [blocks, block_values] float32, freshly allocated."""


def _f32(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _half(blocks: Bytes, column: int) -> Floats:
    """The float16 at byte `column` of each block, as [blocks, 1]."""
    return blocks[:, column : column + 2].copy().view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Floats:
    values = np.empty((packed.shape[0], 32), np.float32)
    values[:, :16] = packed & 15
    values[:, 16:] = packed >> 4
    return values


def _q4_0(blocks: Bytes) -> Floats:
    values = _nibbles(blocks[:, 2:])
    values -= 8
    values *= _half(blocks, 0)
    return values


def _q4_1(blocks: Bytes) -> Floats:
    values = _nibbles(blocks[:, 4:])
    values *= _half(blocks, 0)
    values += _half(blocks, 2)
    return values


def _q8_0(blocks: Bytes) -> Floats:
    values = blocks[:, 2:].view(np.int8).astype(np.float32)
    values *= _half(blocks, 0)
    return values


FORMATS: Final[Mapping[int, TensorFormat]] = MappingProxyType(
    {
        0: TensorFormat("F32", 1, 4, _f32),
        1: TensorFormat("F16", 1, 2, _f16),
        2: TensorFormat("Q4_0", 32, 18, _q4_0),
        3: TensorFormat("Q4_1", 32, 20, _q4_1),
        8: TensorFormat("Q8_0", 32, 34, _q8_0),
    }
)
"""By ggml type number."""


def dequantize(stored: Bytes, tensor_format: TensorFormat) -> Floats:
    """Decodes a flat run of whole blocks to a flat float32 array that shares no memory with it."""
    return tensor_format.decode(stored.reshape(-1, tensor_format.block_bytes)).reshape(-1)
