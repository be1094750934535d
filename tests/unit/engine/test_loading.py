"""Devices and sizes at the start of an engine."""

from pathlib import Path

import pytest
import torch

from services import settings
from services.engine.config import EngineConfig
from services.engine.errors import ModelUnusable
from services.engine.loading import Loaded, load
from services.engine.runtime.run_attention import FlashKernel
from services.engine.runtime.zen import find_zen
from services.settings import SettingsError
from tests.contract.engine_client import write_tiny_engine_model

_WITHOUT_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_dir = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_engine_model(model_dir)
    return model_dir


def _load(model_dir: Path, *flags: str) -> Loaded:
    argv = ("--model", str(model_dir), "--threads", str(torch.get_num_threads()), *flags)
    return load(settings.load(EngineConfig, "engine", argv, {}))


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:11"])
def test_a_device_is_named_as_torch_names_it(device: str) -> None:
    config = settings.load(EngineConfig, "engine", ("--model", "m", "--device", device), {})
    assert config.device == device


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA", "cuda:1,2", "mps"])
def test_any_other_device_stops_the_start(device: str) -> None:
    with pytest.raises(SettingsError, match="--device: expected auto, cpu, cuda or cuda:NUMBER"):
        settings.load(EngineConfig, "engine", ("--model", "m", "--device", device), {})


@_WITHOUT_CUDA
@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_cuda_that_is_not_there_stops_the_start(model_dir: Path, device: str) -> None:
    with pytest.raises(
        ModelUnusable, match=rf"^--device {device}: torch [^ ]+ (finds no CUDA|is a build without CUDA)"
    ):
        _load(model_dir, "--device", device)


@_WITHOUT_CUDA
def test_auto_is_the_cpu_where_there_is_no_cuda(model_dir: Path) -> None:
    loaded = _load(model_dir, "--vram-bytes", "1MiB")
    kernel = find_zen() or FlashKernel()
    assert (loaded.runtime.block_tokens, loaded.runtime.attention_name) == (16, f"runs by {kernel.name}")
    assert loaded.identity.weight_format == "fp16"


def test_memory_for_state_is_what_was_asked_for(model_dir: Path) -> None:
    loaded = _load(model_dir, "--device", "cpu", "--vram-bytes", "1MiB", "--block-tokens", "64")
    block_bytes = 64 * loaded.runtime.layout.bytes_per_token
    assert loaded.runtime.num_blocks == 2**20 // block_bytes
    assert loaded.runtime.allocated_bytes == loaded.runtime.num_blocks * block_bytes
    assert loaded.context_tokens == min(loaded.runtime.context_tokens, loaded.runtime.num_blocks * 64)


def test_memory_for_less_than_two_blocks_stops_the_start(model_dir: Path) -> None:
    with pytest.raises(ModelUnusable, match=r"^--vram-bytes 1024 holds no two blocks of"):
        _load(model_dir, "--device", "cpu", "--vram-bytes", "1024")


def test_blocks_that_do_not_divide_a_page_stop_the_start(model_dir: Path) -> None:
    with pytest.raises(ModelUnusable, match="--block-tokens must divide 256, got 48"):
        _load(model_dir, "--device", "cpu", "--block-tokens", "48")
