"""A model directory: is everything there, and of what kind is it?

Runs at each start of a service, so it reads headers and small files only, and needs no torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from services.models.errors import ModelFileError, UnsupportedModelError
from services.models.weights import WeightFile, read_weight_file

SUPPORTED_MODEL_TYPES: Final = ("llama", "qwen2", "qwen3")

_SINGLE_FILE: Final = "model.safetensors"
_INDEX_FILE: Final = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """A directory that was found complete and of a supported kind."""

    path: Path
    model_type: str
    context_tokens: int
    """Longest sequence the model was made for, prompt and output together."""
    vocab_size: int
    """Rows of the embedding; token ids are below it."""
    weight_files: tuple[Path, ...]
    """Sorted by name."""
    weights_bytes: int


def inspect_directory(path: Path) -> ModelDirectory:
    """Checks a model directory and describes it.

    Raises ModelFileError naming the file that is missing, truncated or malformed, and
    UnsupportedModelError for a model that no runtime serves.
    """
    if not path.is_dir():
        raise ModelFileError(path, "no such directory" if not path.exists() else "not a directory")
    config = _json_object(path / "config.json")
    model_type = _supported_type(path / "config.json", config)
    weight_files = _weight_files(path)
    tokenizer_path = path / "tokenizer.json"
    if "model" not in _json_object(tokenizer_path):
        raise ModelFileError(tokenizer_path, "malformed: it describes no model")
    for name in ("tokenizer_config.json", "generation_config.json"):
        if (path / name).exists():
            _json_object(path / name)
    return ModelDirectory(
        path=path,
        model_type=model_type,
        context_tokens=_positive(path / "config.json", config, "max_position_embeddings"),
        vocab_size=_positive(path / "config.json", config, "vocab_size"),
        weight_files=tuple(file.path for file in weight_files),
        weights_bytes=sum(file.size_bytes for file in weight_files),
    )


def _weight_files(path: Path) -> list[WeightFile]:
    """The safetensors files that make up the model, checked, sorted by name."""
    if (path / _SINGLE_FILE).exists():
        return [read_weight_file(path / _SINGLE_FILE)]
    index_path = path / _INDEX_FILE
    if not index_path.exists():
        if any(path.glob("pytorch_model*.bin")):
            raise UnsupportedModelError(path, "only pickled weights (.bin); convert them to safetensors")
        raise ModelFileError(path / _SINGLE_FILE, f"missing, and so is {_INDEX_FILE}")
    weight_map = _json_object(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(index_path, "malformed: no weight_map")
    tensors_by_file: dict[str, list[str]] = {}
    for tensor, name in cast("dict[str, object]", weight_map).items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelFileError(index_path, f"malformed: tensor {tensor} is in {name!r}")
        tensors_by_file.setdefault(name, []).append(tensor)
    files: list[WeightFile] = []
    for name, tensors in sorted(tensors_by_file.items()):
        file = read_weight_file(path / name)
        absent = [tensor for tensor in tensors if tensor not in file.extent_by_tensor]
        if absent:
            raise ModelFileError(file.path, f"tensor {absent[0]}, which {_INDEX_FILE} lists, is missing")
        files.append(file)
    return files


def _supported_type(path: Path, config: Mapping[str, object]) -> str:
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelFileError(path, "malformed: no model_type")
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise UnsupportedModelError(path, f"model_type {model_type!r}; served are {', '.join(SUPPORTED_MODEL_TYPES)}")
    if config.get("quantization_config") is not None:
        raise UnsupportedModelError(path, "quantized weights (quantization_config); use the unquantized model")
    if config.get("use_sliding_window"):
        raise UnsupportedModelError(path, "sliding-window attention (use_sliding_window)")
    return model_type


def _positive(path: Path, config: Mapping[str, object], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelFileError(path, f"malformed: {key} is not a positive integer")
    return value


def _json_object(path: Path) -> dict[str, object]:
    try:
        value: object = json.loads(_contents(path))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(path, f"truncated or malformed: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelFileError(path, "malformed: not a JSON object")
    return cast("dict[str, object]", value)


def _contents(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ModelFileError(path, "missing") from error
    except OSError as error:
        raise ModelFileError(path, f"cannot be read: {error.strerror or error}") from error
