"""Writes the model directory of a GGUF file of the Llama architecture.

Weights are stored as float32, so they are exactly the values that the GGUF file stands for.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.models.gguf import GgufFile
from services.models.gguf_tokenizer import Json, token_id, tokenizer_config, tokenizer_json
from services.models.llama import LlamaGeometry, TensorSource, read_geometry, tensor_sources
from services.models.progress import Progress, Step
from services.models.weights import write_weight_file

CONVERTER_REVISION: Final = 1
"""Raised when the same GGUF file would give other bytes."""


def convert_gguf(gguf_path: Path, source_sha256: str, target: Path, progress: Progress) -> None:
    """Fills the existing, empty directory `target`.

    Raises ModelFileError or UnsupportedModelError for the file, OSError for the target, and
    leaves an incomplete `target` behind then; making it appear at once is the caller's part.
    """
    with GgufFile(gguf_path) as file:
        geometry = read_geometry(file)
        sources = tensor_sources(file, geometry)
        _write_json(target / "config.json", _config(file, geometry))
        _write_json(target / "generation_config.json", _generation_config(file))
        _write_json(target / "tokenizer.json", tokenizer_json(file))
        _write_json(target / "tokenizer_config.json", tokenizer_config(file, geometry.context_tokens))
        if "tokenizer.chat_template" in file.metadata:
            template = file.text("tokenizer.chat_template")
            (target / "chat_template.jinja").write_bytes(template.encode())
        write_weight_file(
            target / "model.safetensors",
            {source.name: source.shape for source in sources},
            _values(file, sources, progress),
            {
                "format": "pt",
                "source_sha256": source_sha256,
                "converter_revision": str(CONVERTER_REVISION),
            },
        )


def _values(file: GgufFile, sources: list[TensorSource], progress: Progress) -> Iterator[NDArray[np.float32]]:
    for done, source in enumerate(sources):
        progress(Step("convert", file.path.name, done, len(sources), "tensors"))
        yield source.read(file)
    progress(Step("convert", file.path.name, len(sources), len(sources), "tensors"))


def _config(file: GgufFile, geometry: LlamaGeometry) -> Json:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": geometry.vocab_size,
        "hidden_size": geometry.hidden_size,
        "intermediate_size": geometry.intermediate_size,
        "num_hidden_layers": geometry.num_layers,
        "num_attention_heads": geometry.num_heads,
        "num_key_value_heads": geometry.num_kv_heads,
        "head_dim": geometry.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": geometry.context_tokens,
        "rms_norm_eps": geometry.rms_norm_epsilon,
        "rope_theta": geometry.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": geometry.rope_theta},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": geometry.has_tied_embeddings,
        "dtype": "float32",
        **_generation_config(file),
    }


def _generation_config(file: GgufFile) -> Json:
    return {
        "bos_token_id": token_id(file, "bos"),
        "eos_token_id": token_id(file, "eos"),
        "pad_token_id": token_id(file, "padding"),
    }


def _write_json(path: Path, value: Json) -> None:
    path.write_bytes(json.dumps(value, ensure_ascii=False, indent=1).encode() + b"\n")
