"""A model directory that cannot be served is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.engine.runtime import ModelLoadError, UnsupportedModelError, load_model
from tests.unit.engine.runtime.tiny_models import save_tiny


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    save_tiny("llama", tmp_path)
    return tmp_path


def _edit_json(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _shard(model_dir: Path) -> Path:
    return sorted(model_dir.glob("model-*.safetensors"))[1]


def _merge_shards(model_dir: Path) -> dict[str, torch.Tensor]:
    """Remove the shards and their index; all tensors."""
    shards = list(model_dir.glob("model-*.safetensors"))
    tensors = {name: tensor.clone() for shard in shards for name, tensor in load_file(shard).items()}
    for path in (*shards, model_dir / "model.safetensors.index.json"):
        path.unlink()
    return tensors


def test_a_model_is_loaded_in_float32_and_frozen(model_dir: Path) -> None:
    _edit_json(model_dir / "config.json", dtype="bfloat16")
    _edit_json(model_dir / "generation_config.json", eos_token_id=[2, 7])
    threads = torch.get_num_threads()
    model = load_model(model_dir, num_threads=1)
    assert torch.get_num_threads() == 1
    torch.set_num_threads(threads)
    assert (model.dtype, model.model_type, model.context_tokens) == (torch.float32, "llama", 512)
    assert model.eos_token_ids == {2, 7}


def test_a_single_file_is_loaded(model_dir: Path) -> None:
    save_file(_merge_shards(model_dir), model_dir / "model.safetensors", {"format": "pt"})
    assert load_model(model_dir).model_type == "llama"


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"nowhere/config.json is missing"):
        load_model(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["{", "[]", '"llama"'])
def test_a_config_that_is_no_object_is_named(model_dir: Path, text: str) -> None:
    (model_dir / "config.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"config.json"):
        load_model(model_dir)


def test_a_config_with_wrong_types_is_named(model_dir: Path) -> None:
    _edit_json(model_dir / "config.json", num_hidden_layers="two")
    with pytest.raises(ModelLoadError, match=r"config.json cannot be used"):
        load_model(model_dir)


def test_a_missing_shard_is_named(model_dir: Path) -> None:
    shard = _shard(model_dir)
    shard.unlink()
    with pytest.raises(ModelLoadError, match=f"{shard.name} is missing"):
        load_model(model_dir)


def test_no_weights_at_all_is_said(model_dir: Path) -> None:
    _merge_shards(model_dir)
    with pytest.raises(ModelLoadError, match=r"model.safetensors is missing"):
        load_model(model_dir)


@pytest.mark.parametrize("keep", [0, 5, 40, -1], ids=["empty", "no length", "half header", "last byte"])
def test_a_truncated_file_is_named(model_dir: Path, keep: int) -> None:
    shard = _shard(model_dir)
    shard.write_bytes(shard.read_bytes()[:keep])
    with pytest.raises(ModelLoadError, match=f"{shard.name} is truncated"):
        load_model(model_dir)


@pytest.mark.parametrize("header", [b"{]", b"[]", b'{"a": {}}', b'{"a": {"data_offsets": 3}}'])
def test_a_damaged_header_is_named(model_dir: Path, header: bytes) -> None:
    shard = _shard(model_dir)
    shard.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ModelLoadError, match=f"{shard.name} has a damaged header"):
        load_model(model_dir)


def test_pickled_weights_are_refused(model_dir: Path) -> None:
    torch.save(_merge_shards(model_dir), model_dir / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"only pickled weights \(pytorch_model.bin\)"):
        load_model(model_dir)


def test_an_index_cannot_name_files_elsewhere(model_dir: Path) -> None:
    index = model_dir / "model.safetensors.index.json"
    _edit_json(index, weight_map={"model.norm.weight": "../other.safetensors"})
    with pytest.raises(ModelLoadError, match="outside the directory"):
        load_model(model_dir)


def _drop(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.1.mlp.up_proj.weight"]


def _reshape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(3, 3)


@pytest.mark.parametrize(
    ("damage", "message"), [(_drop, r"lack 1 tensors, such as model.layers.1.mlp.up_proj"), (_reshape, "cannot be")]
)
def test_weights_that_do_not_fit_the_config_are_refused(
    model_dir: Path, damage: Callable[[dict[str, torch.Tensor]], None], message: str
) -> None:
    tensors = _merge_shards(model_dir)
    damage(tensors)
    save_file(tensors, model_dir / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=message):
        load_model(model_dir)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt_neox"}, "model_type 'gpt_neox' is not supported"),
        ({"model_type": None}, "model_type None is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized weights"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
        ({"model_type": "mistral", "sliding_window": 64}, "sliding_attention"),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1}, "sliding_attention"),
    ],
)
def test_a_model_this_runtime_would_compute_wrongly_is_refused(
    model_dir: Path, changes: dict[str, object], message: str
) -> None:
    path = model_dir / "config.json"
    content = json.loads(path.read_text())
    content.pop("rope_parameters", None)
    path.write_text(json.dumps(content))
    _edit_json(path, **changes)
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(model_dir)
