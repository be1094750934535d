"""A converted GGUF model computes what the GGUF file's own definition says."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from services.models.convert import convert_gguf
from services.models.directory import inspect_directory
from services.models.errors import ModelFileError, UnsupportedModelError
from services.models.llama import halves
from services.models.progress import Step, silent
from tests.unit.models.gguf_writer import Tensor, gguf_bytes, scalar_values, tiny_llama, write_tiny_llama


def convert(tmp_path: Path, metadata: dict[str, object], tensors: dict[str, Tensor]) -> Path:
    (tmp_path / "tiny.gguf").write_bytes(gguf_bytes(metadata, tensors))
    target = tmp_path / "model"
    target.mkdir()
    convert_gguf(tmp_path / "tiny.gguf", "0" * 64, target, silent)
    return target


def logits_of_definition(tensors: dict[str, Tensor], ids: list[int]) -> np.ndarray:
    """Llama as llama.cpp computes it: neighbouring pairs rotated, rows as stored; in float64."""
    weights = {name: scalar_values(tensor).astype(np.float64) for name, tensor in tensors.items()}
    num_tokens, dim = len(ids), 16

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weights[name]

    def rotated(x: np.ndarray) -> np.ndarray:
        out = np.empty_like(x)
        for position in range(num_tokens):
            for pair in range(dim // 2):
                angle = position * 10000.0 ** (-2 * pair / dim)
                left, right = x[position, :, 2 * pair], x[position, :, 2 * pair + 1]
                out[position, :, 2 * pair] = left * np.cos(angle) - right * np.sin(angle)
                out[position, :, 2 * pair + 1] = left * np.sin(angle) + right * np.cos(angle)
        return out

    x = weights["token_embd.weight"][ids]
    for layer in range(2):
        at = f"blk.{layer}."
        h = norm(x, at + "attn_norm.weight")
        q = rotated((h @ weights[at + "attn_q.weight"].T).reshape(num_tokens, 4, dim))
        k = rotated((h @ weights[at + "attn_k.weight"].T).reshape(num_tokens, 2, dim))
        v = (h @ weights[at + "attn_v.weight"].T).reshape(num_tokens, 2, dim)
        out = np.empty((num_tokens, 4, dim))
        for head in range(4):
            scores = q[:, head] @ k[:, head // 2].T / np.sqrt(dim)
            scores[np.triu_indices(num_tokens, 1)] = -np.inf
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = shares / shares.sum(-1, keepdims=True) @ v[:, head // 2]
        x = x + out.reshape(num_tokens, 64) @ weights[at + "attn_output.weight"].T
        h = norm(x, at + "ffn_norm.weight")
        gate = h @ weights[at + "ffn_gate.weight"].T
        inner = gate / (1 + np.exp(-gate)) * (h @ weights[at + "ffn_up.weight"].T)
        x = x + inner @ weights[at + "ffn_down.weight"].T
    return norm(x, "output_norm.weight") @ weights.get("output.weight", weights["token_embd.weight"]).T


@pytest.mark.parametrize("has_own_output", [False, True])
def test_logits_equal_the_files_definition(tmp_path: Path, has_own_output: bool) -> None:
    metadata, tensors = tiny_llama()
    if has_own_output:
        tensors["output.weight"] = tiny_llama(seed=9)[1]["token_embd.weight"]
    model = LlamaForCausalLM.from_pretrained(convert(tmp_path, metadata, tensors), dtype=torch.float32).eval()
    ids = [1, 3, 8, 4, 5, 6, 7, 2, 9, 3, 3]
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0].numpy()
    expected = logits_of_definition(tensors, ids)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_rows_move_from_pairs_to_halves() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(12, 1)
    assert halves(rows, 2)[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_directory_is_complete_and_says_what_the_file_says(tmp_path: Path) -> None:
    target = convert(tmp_path, *tiny_llama())
    directory = inspect_directory(target)
    assert (directory.model_type, directory.context_tokens, directory.vocab_size) == ("llama", 128, 11)
    config = json.loads((target / "config.json").read_bytes())
    assert config["rope_theta"] == 10000.0
    assert config["rms_norm_eps"] == 1e-5
    assert config["eos_token_id"] == 2
    assert config["tie_word_embeddings"] is True
    assert (target / "chat_template.jinja").read_text() == "{{ messages }}"
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>ab a12\n").ids == [1, 8, 5, 3, 6, 7, 9]
    assert tokenizer.encode("a  1").ids == [3, 10, 6], "spaces before a digit must stay together"


def test_progress_counts_every_tensor(tmp_path: Path) -> None:
    steps: list[Step] = []
    target = tmp_path / "model"
    target.mkdir()
    convert_gguf(write_tiny_llama(tmp_path / "tiny.gguf"), "0" * 64, target, steps.append)
    assert [step.done for step in steps] == list(range(21))
    assert {step.total for step in steps} == {20}


@pytest.mark.parametrize(
    ("key", "item", "problem"),
    [
        ("llama.attention.head_count", 5, "impossible sizes"),
        ("llama.attention.head_count", 0, "impossible sizes"),
        ("llama.attention.head_count_kv", 3, "impossible sizes"),
        ("llama.rope.dimension_count", 8, "impossible sizes"),
        ("llama.block_count", 3, "tensor blk.2.attn_norm.weight is missing"),
        ("llama.block_count", 2**31, "too few"),
        ("llama.feed_forward_length", 128, "has shape"),
        ("tokenizer.ggml.merges", ["a c"], "merge 'a c'"),
        ("tokenizer.ggml.token_type", [1], "1 types for 11 tokens"),
        ("tokenizer.ggml.tokens", ["a"] * 11, "appears twice"),
        ("tokenizer.ggml.eos_token_id", 11, "outside the vocabulary"),
        ("llama.rope.freq_base", float("nan"), "not a finite number"),
    ],
)
def test_contradictory_file_is_refused(tmp_path: Path, key: str, item: object, problem: str) -> None:
    metadata, tensors = tiny_llama()
    with pytest.raises(ModelFileError, match=problem):
        convert(tmp_path, {**metadata, key: item}, tensors)


@pytest.mark.parametrize(
    ("key", "item", "problem"),
    [
        ("general.architecture", "gemma", "architecture 'gemma'"),
        ("llama.rope.scaling.type", "yarn", "scaled rotary embeddings"),
        ("tokenizer.ggml.pre", "llama-bpe", "gpt2/llama-bpe"),
    ],
)
def test_other_kinds_are_refused(tmp_path: Path, key: str, item: object, problem: str) -> None:
    metadata, tensors = tiny_llama()
    with pytest.raises(UnsupportedModelError, match=problem):
        convert(tmp_path, {**metadata, key: item}, tensors)


def test_unknown_tensor_is_refused(tmp_path: Path) -> None:
    metadata, tensors = tiny_llama()
    tensors["blk.0.attn_q.bias"] = tensors["output_norm.weight"]
    with pytest.raises(UnsupportedModelError, match=r"unknown tensor blk\.0\.attn_q\.bias"):
        convert(tmp_path, metadata, tensors)
