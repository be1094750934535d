"""Writes what pyproject.toml asks for as one requirements file per extra, and build.txt for the build itself.

An image installs these in a layer of their own, which a change of the source leaves in the build cache.

Usage: requirements.py PYPROJECT FOLDER
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main(pyproject: Path, folder: Path) -> None:
    """Raises KeyError when a table is missing, OSError when a file cannot be read or written."""
    content = tomllib.loads(pyproject.read_text())
    project = content["project"]
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "build.txt", content["build-system"]["requires"])
    for extra, requirements in project["optional-dependencies"].items():
        write(folder / f"{extra}.txt", [*project["dependencies"], *requirements])


def write(path: Path, requirements: list[str]) -> None:
    """One requirement a line."""
    path.write_text("".join(f"{requirement}\n" for requirement in requirements))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
