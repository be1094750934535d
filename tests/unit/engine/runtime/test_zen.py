"""When AMD's kernel is used, and that using it costs no memory; what it computes is in test_attention."""

import importlib.metadata
import logging
import os
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from services.engine.runtime import zen
from services.engine.runtime.zen import ZenKernel, find_zen, loads_zen

needs_zen = pytest.mark.skipif(not loads_zen(), reason="zentorch is not installed or cannot run here")
_PYPROJECT = Path(__file__).parents[4] / "pyproject.toml"


class _Package:
    """An installed zentorch, as importlib.metadata tells of it."""

    def __init__(self, version: str, folder: Path) -> None:
        self.version = version
        self._folder = folder

    def locate_file(self, path: str) -> Path:
        return self._folder / path


@pytest.fixture
def not_loaded() -> Iterator[None]:
    loads_zen.cache_clear()
    yield
    loads_zen.cache_clear()


@pytest.fixture
def install(not_loaded: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[_Package | None], None]:
    def installed(package: _Package | None) -> None:
        def distribution(name: str) -> _Package:
            if package is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return package

        monkeypatch.setattr(importlib.metadata, "distribution", distribution)

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    return installed


def test_none_is_installed(install: Callable[[_Package | None], None]) -> None:
    install(None)
    assert not loads_zen()
    assert find_zen() is None


@pytest.mark.parametrize("version", ["2.12.0.0", "2.13.0.1", "2.13.0.2", "2.14.0.1"])
def test_others_than_the_known_one_are_not_used(
    install: Callable[[_Package | None], None], tmp_path: Path, caplog: pytest.LogCaptureFixture, version: str
) -> None:
    install(_Package(version, tmp_path))
    with caplog.at_level(logging.INFO):
        assert not loads_zen()
    assert f"zentorch {version} with torch {torch.__version__} is not used" in caplog.text


def test_it_is_not_used_with_another_torch(
    install: Callable[[_Package | None], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(_Package(zen.VERSION, tmp_path))
    monkeypatch.setattr(torch, "__version__", "2.14.0+cpu")
    assert not loads_zen()


def test_a_library_that_cannot_be_loaded_is_named(
    install: Callable[[_Package | None], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install(_Package(zen.VERSION, tmp_path))
    assert not loads_zen()
    assert f"zentorch {zen.VERSION} cannot be loaded" in caplog.text
    assert str(tmp_path) in caplog.text


@needs_zen
def test_a_kernel_that_computes_something_else_is_not_used(
    not_loaded: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = ZenKernel.forward

    def unset(kernel: ZenKernel, *arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
        output, weight = right(kernel, *arguments)  # pyright: ignore[reportArgumentType]
        return output, torch.zeros_like(weight)

    monkeypatch.setattr(ZenKernel, "forward", unset)
    assert not loads_zen()
    assert "computes something else" in caplog.text


@needs_zen
def test_a_call_keeps_no_memory() -> None:
    # Other builds of the library keep 80 bytes of each: 3.2 MB of these.
    kernel, state = ZenKernel(), torch.ones(1, 1, 8, 16)

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with torch.inference_mode():
        for _ in range(2_000):
            kernel(state, state, state, False, 0.25)
        before = resident_bytes()
        for _ in range(40_000):
            kernel(state, state, state, False, 0.25)
    assert resident_bytes() - before < 2**20


def test_what_is_installed_with_the_engine_is_what_is_used() -> None:
    extras = tomllib.loads(_PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert any(f"zentorch=={zen.VERSION};" in each for each in extras["engine"])
