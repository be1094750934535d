"""How far a download or a conversion has come, as values that a caller may show as it likes."""

import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TextIO

_POLL_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Step:
    """One observation of one stage; where `total` is known, the last one has `done == total`."""

    stage: Literal["wait", "download", "unpack", "convert"]
    subject: str
    done: int
    total: int | None
    """None while the whole is unknown."""
    unit: Literal["bytes", "tensors"]


Progress = Callable[[Step], None]
"""Called from whichever thread observes the step."""


def silent(step: Step) -> None:
    """Shows nothing."""
    del step


class ProgressLines:
    """Writes a line when a stage starts, about every `interval_s` seconds, and when it ends."""

    def __init__(self, stream: TextIO | None = None, interval_s: float = 1.0) -> None:
        """`stream` is standard error if None; it stays the caller's."""
        self._stream = sys.stderr if stream is None else stream
        self._interval_s = interval_s
        self._current: tuple[str, str] | None = None
        self._next_at = 0.0

    def __call__(self, step: Step) -> None:
        stage = (step.stage, step.subject)
        now = time.monotonic()
        if stage == self._current and now < self._next_at and step.done != step.total:
            return
        self._current = stage
        self._next_at = now + self._interval_s
        self._stream.write(_line(step) + "\n")
        self._stream.flush()


@contextmanager
def watched_folder(folder: Path, subject: str, total: int | None, progress: Progress) -> Generator[None, None, None]:
    """Reports the bytes under `folder` as a download's progress while the block runs.

    Watching the disk works for every downloader, whatever it prints. `total` is in bytes.
    """
    is_done = threading.Event()

    def watch() -> None:
        while not is_done.wait(_POLL_S):
            done = _bytes_under(folder)
            progress(Step("download", subject, done if total is None else min(done, total - 1), total, "bytes"))

    progress(Step("download", subject, 0, total, "bytes"))
    watcher = threading.Thread(target=watch, name="download-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_done.set()
        watcher.join()
    if total is not None:
        progress(Step("download", subject, total, total, "bytes"))


def _bytes_under(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            # A hub cache links its snapshots to its blobs: count only the latter.
            total += 0 if path.is_symlink() else path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def _line(step: Step) -> str:
    if step.stage == "wait":
        return f"wait for another process that prepares {step.subject}"
    scale, unit = (1e6, "MB") if step.unit == "bytes" else (1, step.unit)
    digits = 1 if step.unit == "bytes" else 0
    amount = f"{step.done / scale:.{digits}f}"
    if step.total is None:
        return f"{step.stage} {step.subject}: {amount} {unit}"
    percent = 100 * step.done // max(step.total, 1)
    return f"{step.stage} {step.subject}: {amount} of {step.total / scale:.{digits}f} {unit} ({percent} %)"
