"""Checking a model directory: what is wrong is named."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from services.models.convert import convert_gguf
from services.models.directory import inspect_directory
from services.models.errors import ModelFileError, UnsupportedModelError
from services.models.progress import silent
from services.models.weights import read_weight_file
from tests.unit.models.gguf_writer import write_tiny_llama


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    target = tmp_path / "model"
    target.mkdir()
    convert_gguf(write_tiny_llama(tmp_path / "tiny.gguf"), "0" * 64, target, silent)
    return target


def change_config(directory: Path, **changes: object) -> None:
    config = json.loads((directory / "config.json").read_bytes())
    (directory / "config.json").write_text(json.dumps({**config, **changes}))


def shard(directory: Path) -> None:
    """Splits the weights in two files with an index, as large models come."""
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    weight_map: dict[str, str] = {}
    for number, names in enumerate((sorted(tensors)[:10], sorted(tensors)[10:]), start=1):
        file_name = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name] for name in names}, directory / file_name)
        weight_map |= dict.fromkeys(names, file_name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_description_of_a_single_file_and_of_shards(directory: Path) -> None:
    single = inspect_directory(directory)
    assert [file.name for file in single.weight_files] == ["model.safetensors"]
    assert single.weights_bytes == (directory / "model.safetensors").stat().st_size
    shard(directory)
    sharded = inspect_directory(directory)
    assert [file.name[:11] for file in sharded.weight_files] == ["model-00001", "model-00002"]


def test_written_weights_are_what_the_library_reads(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    extents = read_weight_file(directory / "model.safetensors").extent_by_tensor
    raw = (directory / "model.safetensors").read_bytes()
    assert tensors.keys() == extents.keys()
    for name, (start, end) in extents.items():
        assert tensors[name].tobytes() == raw[start:end]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_file_is_named(directory: Path, name: str) -> None:
    (directory / name).unlink()
    with pytest.raises(ModelFileError, match=f"{name}: missing"):
        inspect_directory(directory)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"]
)
def test_truncated_file_is_named(directory: Path, name: str) -> None:
    whole = (directory / name).read_bytes()
    for size in (0, 5, 100, len(whole) // 2, len(whole) - 3):
        if size >= len(whole):
            continue
        (directory / name).write_bytes(whole[:size])
        with pytest.raises(ModelFileError, match=f"{name}: .*(truncated|malformed)"):
            inspect_directory(directory)


def test_missing_or_truncated_shard_is_named(directory: Path) -> None:
    shard(directory)
    second = directory / "model-00002-of-00002.safetensors"
    whole = second.read_bytes()
    second.write_bytes(whole[:-1])
    with pytest.raises(ModelFileError, match=r"model-00002-of-00002\.safetensors: truncated"):
        inspect_directory(directory)
    second.unlink()
    with pytest.raises(ModelFileError, match=r"model-00002-of-00002\.safetensors: missing"):
        inspect_directory(directory)
    shutil.copy(directory / "model-00001-of-00002.safetensors", second)
    with pytest.raises(ModelFileError, match=r"model-00002-of-00002\.safetensors: tensor .* is missing"):
        inspect_directory(directory)


def test_index_cannot_point_outside(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory.parent / "outside.safetensors")
    index = {"weight_map": {"model.norm.weight": "../outside.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match=r"index\.json: malformed"):
        inspect_directory(directory)


@pytest.mark.parametrize(
    "damage",
    [
        lambda header: header | {"model.norm.weight": header["model.norm.weight"] | {"shape": [65]}},
        lambda header: header | {"model.norm.weight": header["model.norm.weight"] | {"dtype": "Q9"}},
        lambda header: header | {"model.norm.weight": header["model.norm.weight"] | {"data_offsets": [-4, 252]}},
        lambda header: header | {"model.norm.weight": 1},
        lambda _: [1],
    ],
)
def test_contradictory_header_is_refused(directory: Path, damage: Callable[[dict[str, object]], object]) -> None:
    path = directory / "model.safetensors"
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.dumps(damage(json.loads(raw[8 : 8 + size]))).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + size :])
    with pytest.raises(ModelFileError, match=r"model\.safetensors: malformed"):
        inspect_directory(directory)


def test_trailing_bytes_are_refused(directory: Path) -> None:
    with (directory / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ModelFileError, match="1 bytes after the last tensor"):
        inspect_directory(directory)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model_type": "gemma3"}, "model_type 'gemma3'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized weights"),
        ({"use_sliding_window": True}, "sliding-window"),
    ],
)
def test_unserved_models_are_refused(directory: Path, changes: dict[str, object], problem: str) -> None:
    change_config(directory, **changes)
    with pytest.raises(UnsupportedModelError, match=problem):
        inspect_directory(directory)


def test_pickled_weights_are_refused(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="only pickled weights"):
        inspect_directory(directory)


@pytest.mark.parametrize("value", [None, 0, "8192", True, 1.5])
def test_impossible_context_is_refused(directory: Path, value: object) -> None:
    change_config(directory, max_position_embeddings=value)
    with pytest.raises(ModelFileError, match=r"config\.json: malformed: max_position_embeddings"):
        inspect_directory(directory)


def test_path_that_is_no_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="absent: no such directory"):
        inspect_directory(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(ModelFileError, match="file: not a directory"):
        inspect_directory(tmp_path / "file")


def test_checking_needs_no_torch() -> None:
    program = "import sys, services.models.store, services.models.directory; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
