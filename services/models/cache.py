"""The folder of prepared models: each appears at once and complete, or not at all.

A model is built in a workspace beside its place and renamed into it after everything is on disk,
so a process killed at any point leaves nothing that looks like a model. A lock file lets one
process build while others wait; the kernel drops the lock of a dead owner.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from services.models.errors import ModelCacheError
from services.models.progress import Progress, Step


def default_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CACHE_HOME/fencepost/models`, by default `~/.cache/fencepost/models`."""
    base = environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative values ignored.
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "fencepost" / "models"


def build_once(place: Path, build: Callable[[Path], Path], progress: Progress) -> Path:
    """Returns `place`, building it first if it does not exist.

    `build` gets an empty workspace folder and returns the finished directory inside it.
    Its errors pass through, except that any OSError becomes ModelCacheError; the workspace is
    removed in every case, at the latest by the next build after a kill.
    """
    if place.is_dir():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place, progress):
            if not place.is_dir():
                _build(place, build)
    except OSError as error:
        raise ModelCacheError(place.parent, error) from error
    return place


def _build(place: Path, build: Callable[[Path], Path]) -> None:
    """Runs under the lock, so every workspace of this place is a dead process's."""
    for stale in place.parent.glob(f".{place.name}.*.partial"):
        shutil.rmtree(stale, ignore_errors=True)
    workspace = place.parent / f".{place.name}.{os.getpid()}.partial"
    workspace.mkdir()
    try:
        built = build(workspace)
        for path in (*built.iterdir(), built):
            _sync(path)
        built.rename(place)
        _sync(place.parent)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


@contextmanager
def _locked(place: Path, progress: Progress) -> Generator[None, None, None]:
    with (place.parent / f".{place.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(Step("wait", place.name, 0, None, "tensors"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
