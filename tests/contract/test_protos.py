"""The contracts in proto/: generated, complete as outlined, linted, and not broken against the committed baseline."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FileDescriptor

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "proto"
CONTRACTS = sorted(path.relative_to(PROTO) for path in PROTO.glob("fencepost/*/v1/*.proto"))

# Streams of requests and of responses, after each name.
UNARY, SERVER, BOTH = (False, False), (False, True), (True, True)
OUTLINE = {
    "fencepost.tokenizer.v1.TokenizerService": {
        "Generate": SERVER,
        "Encode": UNARY,
        "Decode": UNARY,
        "CountTokens": UNARY,
        "ListModels": UNARY,
        "ExplainPrefix": UNARY,
    },
    "fencepost.engine.v1.EngineService": {
        "Generate": SERVER,
        "Prefill": SERVER,
        "Annotate": UNARY,
        "Release": UNARY,
        "Flush": UNARY,
        "WatchCache": SERVER,
        "WatchLoad": SERVER,
        "GetModel": UNARY,
    },
    "fencepost.kvstore.v1.SnapshotService": {
        "Match": UNARY,
        "Read": SERVER,
        "Write": BOTH,
        "Lease": UNARY,
        "Delete": UNARY,
        "Stats": UNARY,
    },
    "fencepost.kvstore.v1.RecordService": {
        "Put": UNARY,
        "Get": UNARY,
        "BatchGet": UNARY,
        "Delete": UNARY,
        "Scan": UNARY,
    },
}


def stub_module(contract: Path, suffix: str) -> Any:
    return importlib.import_module(".".join(contract.with_suffix("").parts) + suffix)


def descriptors() -> list[FileDescriptor]:
    return [stub_module(contract, "_pb2").DESCRIPTOR for contract in CONTRACTS]


def test_every_package_has_contracts() -> None:
    assert {contract.parts[1] for contract in CONTRACTS} == {"tokenizer", "engine", "kvstore"}


@pytest.mark.parametrize("contract", CONTRACTS, ids=str)
def test_stubs_are_generated_and_current(contract: Path) -> None:
    descriptor = stub_module(contract, "_pb2").DESCRIPTOR
    stubs = stub_module(contract, "_pb2_grpc")
    assert descriptor.package == ".".join(contract.parts[:-1])
    for service in descriptor.services_by_name:
        assert hasattr(stubs, f"{service}Servicer")
        assert hasattr(stubs, f"{service}Stub")
    for suffix in ("_pb2.pyi", "_pb2_grpc.pyi"):
        assert (PROTO / contract.with_name(contract.stem + suffix)).exists()


def test_rpcs_are_those_of_the_outline() -> None:
    found = {
        service.full_name: {
            method.name: (method.client_streaming, method.server_streaming) for method in service.methods
        }
        for descriptor in descriptors()
        for service in descriptor.services_by_name.values()
    }
    assert found == OUTLINE


def test_contracts_meet_in_no_sibling() -> None:
    """Each package stands alone, so that a service needs its own contracts and its neighbour's, no third one."""
    for descriptor in descriptors():
        package = descriptor.package.split(".")[1]
        imported = {dependency.name for dependency in descriptor.dependencies}
        assert all(name.startswith((f"fencepost/{package}/", "google/protobuf/")) for name in imported)


@pytest.mark.parametrize(
    "arguments", [("lint",), ("breaking", "--against", "proto/baseline.binpb")], ids=["lint", "breaking"]
)
def test_buf_finds_nothing(arguments: tuple[str, ...]) -> None:
    buf = Path(sys.prefix) / "bin" / "buf"
    done = subprocess.run([buf, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_buf_notices_a_break(tmp_path: Path) -> None:
    """Against the same baseline, so the check above is known to check."""
    for contract in CONTRACTS:
        target = tmp_path / "proto" / contract
        target.parent.mkdir(parents=True, exist_ok=True)
        text = (PROTO / contract).read_text()
        target.write_text(text.replace("string cache_scope = ", "string cache_area = "))
    (tmp_path / "buf.yaml").write_bytes((ROOT / "buf.yaml").read_bytes())
    command = [Path(sys.prefix) / "bin" / "buf", "breaking", "--against", PROTO / "baseline.binpb"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "cache_scope" in done.stdout
