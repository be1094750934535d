"""Writes small GGUF files: random blocks of any readable format, and a tiny Llama model."""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

Tensor = tuple[tuple[int, ...], int, bytes]
"""Shape (outermost first), ggml type number, stored bytes."""

_BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34)}
_ALIGNMENT = 32


def string(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(item: object) -> bytes:
    """A metadata value with its type number, as the Python type suggests."""
    match item:
        case bool():
            return struct.pack("<I?", 7, item)
        case int():
            return struct.pack("<II", 4, item)
        case float():
            return struct.pack("<If", 6, item)
        case str():
            return struct.pack("<I", 8) + string(item)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(string(text) for text in item)
        case [int(), *_]:
            return struct.pack(f"<IIQ{len(item)}i", 9, 5, len(item), *item)
        case _:
            raise TypeError(item)


def gguf_bytes(metadata: Mapping[str, object], tensors: Mapping[str, Tensor], version: int = 3) -> bytes:
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))
    head += b"".join(string(key) + value(item) for key, item in metadata.items())
    data = b""
    for name, (shape, kind, stored) in tensors.items():
        head += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, len(data))
        data += stored + bytes(-len(stored) % _ALIGNMENT)
    return head + bytes(-len(head) % _ALIGNMENT) + data


def random_tensor(rng: np.random.Generator, shape: tuple[int, ...], kind: int) -> Tensor:
    """Random content whose scales are small finite numbers."""
    block_values, block_bytes = _BLOCKS[kind]
    num_blocks = int(np.prod(shape)) // block_values
    if kind == 0:
        return shape, kind, rng.normal(0, 0.2, num_blocks).astype("<f4").tobytes()
    if kind == 1:
        return shape, kind, rng.normal(0, 0.2, num_blocks).astype("<f2").tobytes()
    blocks = rng.integers(0, 256, (num_blocks, block_bytes), np.uint8)
    blocks[:, :2] = rng.normal(0, 0.02, (num_blocks, 1)).astype("<f2").view(np.uint8)
    if kind == 3:
        blocks[:, 2:4] = rng.normal(0, 0.1, (num_blocks, 1)).astype("<f2").view(np.uint8)
    return shape, kind, blocks.tobytes()


def scalar_values(tensor: Tensor) -> np.ndarray:
    """Decodes one value at a time, straight from the format's definition."""
    shape, kind, stored = tensor
    block_values, block_bytes = _BLOCKS[kind]
    values: list[np.float32] = []
    for start in range(0, len(stored), block_bytes):
        block = stored[start : start + block_bytes]
        if kind == 0:
            values.append(np.float32(struct.unpack("<f", block)[0]))
            continue
        scale = np.float32(struct.unpack("<e", block[:2])[0])
        if kind == 1:
            values.append(scale)
            continue
        for index in range(block_values):
            if kind == 8:
                values.append(np.float32(struct.unpack("b", block[2 + index : 3 + index])[0]) * scale)
                continue
            packed = block[block_bytes - 16 + index % 16]
            nibble = np.float32(packed & 15 if index < 16 else packed >> 4)
            if kind == 2:
                values.append((nibble - np.float32(8)) * scale)
            else:
                values.append(nibble * scale + np.float32(struct.unpack("<e", block[2:4])[0]))
    return np.array(values, np.float32).reshape(shape)


TINY_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "Ġ", "1", "2", "ab", "Ċ", "ĠĠ"]


def tiny_llama(seed: int = 0) -> tuple[dict[str, object], dict[str, Tensor]]:
    """Two layers, hidden 64, four heads of 16, two of them for keys, eleven tokens, formats mixed."""
    rng = np.random.default_rng(seed)
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "llama.block_count": 2,
        "llama.context_length": 128,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": 16,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TINY_TOKENS,
        "tokenizer.ggml.token_type": [3, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1],
        "tokenizer.ggml.merges": ["a b", "Ġ Ġ"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": "{{ messages }}",
    }
    tensors = {"token_embd.weight": random_tensor(rng, (11, 64), 8)}
    for layer in range(2):
        for name, shape, kind in (
            ("attn_norm", (64,), 0),
            ("attn_q", (64, 64), 3),
            ("attn_k", (32, 64), 2),
            ("attn_v", (32, 64), 1),
            ("attn_output", (64, 64), 3),
            ("ffn_norm", (64,), 0),
            ("ffn_gate", (96, 64), 8),
            ("ffn_up", (96, 64), 3),
            ("ffn_down", (64, 96), 2),
        ):
            tensors[f"blk.{layer}.{name}.weight"] = random_tensor(rng, shape, kind)
    tensors["output_norm.weight"] = random_tensor(rng, (64,), 0)
    return metadata, tensors


def write_tiny_llama(path: Path, seed: int = 0) -> Path:
    path.write_bytes(gguf_bytes(*tiny_llama(seed)))
    return path
