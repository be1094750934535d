"""Tiny random models of the supported kinds."""

from pathlib import Path
from typing import Any

import torch
import transformers

_SIZES: dict[str, Any] = {
    "vocab_size": 500,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
    # Wide enough weights that attention is far from uniform and logits reach about ten.
    "initializer_range": 0.25,
    "eos_token_id": 2,
}

_CONFIGS: dict[str, Any] = {
    "llama": lambda: transformers.LlamaConfig(
        **_SIZES, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16
    ),
    "qwen2": lambda: transformers.Qwen2Config(
        **_SIZES, hidden_size=128, num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=True
    ),
    "qwen3": lambda: transformers.Qwen3Config(
        **_SIZES, hidden_size=64, num_attention_heads=6, num_key_value_heads=2, head_dim=64
    ),
    "mistral": lambda: transformers.MistralConfig(
        **_SIZES, hidden_size=64, num_attention_heads=4, num_key_value_heads=1, sliding_window=None
    ),
}

TINY_MODELS = tuple(_CONFIGS)


def save_tiny(kind: str, model_dir: Path, **changes: Any) -> None:
    """Write a tiny random model of one kind, its config changed first."""
    transformers.logging.disable_progress_bar()
    config = _CONFIGS[kind]()
    for name, value in changes.items():
        setattr(config, name, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        model = transformers.AutoModelForCausalLM.from_config(config).requires_grad_(False)
        # Left to themselves all biases are zero and all norms one, and who forgets them is not found out.
        for vector in (parameter for parameter in model.parameters() if parameter.dim() == 1):
            vector.add_(torch.randn(vector.shape), alpha=0.2)
    model.save_pretrained(model_dir, max_shard_size="100KB")
