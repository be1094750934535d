"""Generates the typed protobuf stubs beside their .proto files at build and install time."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


def generate_stubs(root: Path) -> list[Path]:
    """Run protoc over every contract below ``root/proto`` and return the contracts.

    Raises RuntimeError when a contract does not compile; protoc has then said why on standard error.
    """
    # A build requirement, absent in a plain installation.
    from grpc_tools import protoc  # pyright: ignore[reportMissingTypeStubs]

    proto = root / "proto"
    contracts = sorted(proto.glob("fencepost/*/v1/*.proto"))
    outputs = [f"--{kind}_out={proto}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    well_known = files("grpc_tools") / "_proto"
    status = int(cast(Any, protoc).main(["protoc", f"-I{proto}", f"-I{well_known}", *outputs, *map(str, contracts)]))
    if status != 0:
        raise RuntimeError(f"protoc failed with status {status}")
    return contracts


class StubsHook(BuildHookInterface[Any]):
    """Hatchling's hook, called for wheels, source distributions and editable installs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        generate_stubs(Path(self.root))


if __name__ == "__main__":
    generate_stubs(Path(__file__).parent)
