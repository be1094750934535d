"""Checks on weight files before torch maps them.

A download that stopped half way is the common damage. safetensors reports it without a file
name, and a missing shard only after the others were read: so sizes are checked first, from the
headers alone (format: 8-byte little-endian header length, JSON header, tensor bytes).
"""

import json
import struct
from pathlib import Path
from typing import cast

from services.engine.runtime.errors import ModelLoadError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library itself
_PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object. Raises ModelLoadError naming the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path} does not hold a JSON object")
    return cast(dict[str, object], content)


def check_weight_files(model_dir: Path) -> None:
    """Check that every safetensors file of the model is present and whole.

    Reads headers only. Raises ModelLoadError naming the first bad file.
    """
    for path in _weight_files(model_dir):
        if not path.is_file():
            raise ModelLoadError(f"{path} is missing")
        try:
            _check_whole(path)
        except OSError as error:
            raise ModelLoadError(f"{path} cannot be read: {error}") from error


def _weight_files(model_dir: Path) -> list[Path]:
    index_path = model_dir / INDEX_FILE
    # transformers prefers the single file when both are there.
    if (model_dir / SINGLE_FILE).exists() or not index_path.exists():
        pickles = sorted(p.name for pattern in _PICKLE_PATTERNS for p in model_dir.glob(pattern))
        if pickles and not (model_dir / SINGLE_FILE).exists():
            raise ModelLoadError(
                f"{model_dir} holds only pickled weights ({pickles[0]}), which can run code when "
                f"read; convert them to {SINGLE_FILE}"
            )
        return [model_dir / SINGLE_FILE]
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{index_path} has no weight_map")
    names = {str(name) for name in cast(dict[str, object], weight_map).values()}
    for name in names:
        if Path(name).name != name:
            raise ModelLoadError(f"{index_path} names a file outside the directory: {name!r}")
    return [model_dir / name for name in sorted(names)]


def _check_whole(path: Path) -> None:
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        header_bytes = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= header_bytes <= min(file_bytes - 8, _MAX_HEADER_BYTES):
            raise ModelLoadError(f"{path} is truncated or not a safetensors file")
        raw_header = file.read(header_bytes)
    try:
        header = json.loads(raw_header)
        stops = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        expected_bytes = 8 + header_bytes + max(stops, default=0)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise ModelLoadError(f"{path} has a damaged header") from error
    if file_bytes < expected_bytes:
        raise ModelLoadError(f"{path} is truncated: {file_bytes} of {expected_bytes} bytes")
