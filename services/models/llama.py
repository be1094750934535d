"""What a GGUF file of the Llama architecture holds, in the terms of a Hugging Face model.

llama.cpp rotates neighbouring pairs (2i, 2i+1) of a head, Hugging Face the halves (i, i + d/2).
Its converter therefore reorders the rows of the query and key projections; here they go back.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.models.errors import ModelFileError, UnsupportedModelError
from services.models.gguf import GgufFile

_ROPE_FREQUENCIES: Final = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class LlamaGeometry:
    """The sizes and constants of one model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    context_tokens: int
    rms_norm_epsilon: float
    rope_theta: float
    has_tied_embeddings: bool

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads


@dataclass(frozen=True, slots=True)
class TensorSource:
    """One tensor of the Hugging Face model and the GGUF tensor it comes from."""

    name: str
    gguf_name: str
    shape: tuple[int, ...]
    rotated_heads: int | None
    """Number of heads whose rows must be reordered; None where rows stay as they are."""

    def read(self, file: GgufFile) -> NDArray[np.float32]:
        """The tensor's float32 values in Hugging Face's row order."""
        values = file.read(self.gguf_name)
        return values if self.rotated_heads is None else halves(values, self.rotated_heads)


def halves(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Reorders each head's rows from rotated pairs to rotated halves: `[0, 2, 4, …, 1, 3, 5, …]`."""
    pairs = rows.reshape(num_heads, -1, 2, rows.shape[-1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def read_geometry(file: GgufFile) -> LlamaGeometry:
    """Takes the model's sizes from the metadata; raises where it is no plain Llama model."""
    architecture = file.text("general.architecture")
    if architecture != "llama":
        raise UnsupportedModelError(file.path, f"GGUF architecture {architecture!r}; only 'llama' can be converted")
    scaling = [key for key in file.metadata if key.startswith("llama.rope.scaling.")]
    if scaling or _ROPE_FREQUENCIES in file.tensors:
        raise UnsupportedModelError(file.path, "scaled rotary embeddings; use the model's safetensors directory")
    geometry = LlamaGeometry(
        vocab_size=len(file.texts("tokenizer.ggml.tokens")),
        hidden_size=file.integer("llama.embedding_length"),
        intermediate_size=file.integer("llama.feed_forward_length"),
        num_layers=file.integer("llama.block_count"),
        num_heads=file.integer("llama.attention.head_count"),
        num_kv_heads=file.integer("llama.attention.head_count_kv"),
        context_tokens=file.integer("llama.context_length"),
        rms_norm_epsilon=_shortest(file.number("llama.attention.layer_norm_rms_epsilon")),
        rope_theta=_shortest(file.number("llama.rope.freq_base")),
        has_tied_embeddings="output.weight" not in file.tensors,
    )
    heads, kv_heads = geometry.num_heads, geometry.num_kv_heads
    if (
        not (heads and kv_heads and geometry.num_layers and geometry.context_tokens)
        or geometry.hidden_size % (2 * heads)
        or heads % kv_heads
        or file.metadata.get("llama.rope.dimension_count", geometry.head_dim) != geometry.head_dim
    ):
        raise ModelFileError(file.path, f"malformed: impossible sizes {geometry}")
    return geometry


def tensor_sources(file: GgufFile, geometry: LlamaGeometry) -> list[TensorSource]:
    """Every tensor of the model, once; raises unless the file holds exactly these, in shape."""
    if geometry.num_layers > len(file.tensors):
        raise ModelFileError(file.path, f"{len(file.tensors)} tensors are too few for {geometry.num_layers} layers")
    sources = list(_sources(geometry))
    for source in sources:
        tensor = file.tensors.get(source.gguf_name)
        if tensor is None:
            raise ModelFileError(file.path, f"tensor {source.gguf_name} is missing")
        if tensor.shape != source.shape:
            raise ModelFileError(
                file.path,
                f"tensor {source.gguf_name} has shape {tensor.shape}, not {source.shape}",
            )
    unknown = file.tensors.keys() - {source.gguf_name for source in sources}
    if unknown:
        raise UnsupportedModelError(file.path, f"unknown tensor {min(unknown)}")
    return sources


def _sources(geometry: LlamaGeometry) -> Iterator[TensorSource]:
    hidden, inner = geometry.hidden_size, geometry.intermediate_size
    heads, kv_heads = geometry.num_heads, geometry.num_kv_heads
    kv_size = kv_heads * geometry.head_dim
    vocabulary = (geometry.vocab_size, hidden)
    yield TensorSource("model.embed_tokens.weight", "token_embd.weight", vocabulary, None)
    for layer in range(geometry.num_layers):
        for name, gguf_name, shape, rotated_heads in (
            ("input_layernorm", "attn_norm", (hidden,), None),
            ("self_attn.q_proj", "attn_q", (hidden, hidden), heads),
            ("self_attn.k_proj", "attn_k", (kv_size, hidden), kv_heads),
            ("self_attn.v_proj", "attn_v", (kv_size, hidden), None),
            ("self_attn.o_proj", "attn_output", (hidden, hidden), None),
            ("post_attention_layernorm", "ffn_norm", (hidden,), None),
            ("mlp.gate_proj", "ffn_gate", (inner, hidden), None),
            ("mlp.up_proj", "ffn_up", (inner, hidden), None),
            ("mlp.down_proj", "ffn_down", (hidden, inner), None),
        ):
            yield TensorSource(
                f"model.layers.{layer}.{name}.weight",
                f"blk.{layer}.{gguf_name}.weight",
                shape,
                rotated_heads,
            )
    yield TensorSource("model.norm.weight", "output_norm.weight", (hidden,), None)
    if not geometry.has_tied_embeddings:
        yield TensorSource("lm_head.weight", "output.weight", vocabulary, None)


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05 for 9.99999974e-06."""
    return float(str(np.float32(value)))
