"""Names become directories; a directory appears complete or not at all."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from services.models.cache import build_once, default_cache_dir
from services.models.errors import ModelCacheError, ModelError, ModelFileError, ModelNameError
from services.models.progress import ProgressLines, Step, silent
from services.models.store import DEFAULT_MODEL, resolve
from tests.unit.models.gguf_writer import write_tiny_llama


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_gguf_file_is_converted_once_per_content(tmp_path: Path) -> None:
    source, cache = write_tiny_llama(tmp_path / "tiny.gguf"), tmp_path / "cache"
    first = resolve(str(source), cache)
    made_at = (first / "model.safetensors").stat().st_mtime_ns
    assert resolve(str(source), cache) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == made_at
    second = resolve(str(write_tiny_llama(tmp_path / "tiny.gguf", seed=1)), cache)
    assert second != first
    assert visible(cache) == sorted([first.name, second.name])


def test_directory_is_used_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = resolve(str(write_tiny_llama(tmp_path / "tiny.gguf")), tmp_path / "cache")
    (tmp_path / "org").mkdir()
    model.rename(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name", tmp_path / "unused") == Path("org/name")
    assert resolve(str(tmp_path / "org" / "name"), tmp_path / "unused") == tmp_path / "org" / "name"
    assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize("name", ["", "gpt-5", "a/b/c", "org/", "-x/y", "org name/x", "https://host/model"])
def test_unknown_name_lists_what_is_possible(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelNameError, match=f"expected {DEFAULT_MODEL}, a model directory"):
        resolve(name, tmp_path)


@pytest.mark.parametrize("name", ["./absent", "/absent/model", "~/absent-model", "../absent", "absent.gguf"])
def test_absent_path_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="absent"):
        resolve(name, tmp_path)


def test_damage_in_the_cache_says_how_to_repair_it(tmp_path: Path) -> None:
    source, cache = write_tiny_llama(tmp_path / "tiny.gguf"), tmp_path / "cache"
    model = resolve(str(source), cache)
    os.truncate(model / "model.safetensors", 2000)
    with pytest.raises(ModelFileError, match=rf"model\.safetensors: truncated.*delete {model}"):
        resolve(str(source), cache)


def test_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "tiny.gguf")
    os.truncate(source, source.stat().st_size - 200)
    with pytest.raises(ModelFileError, match=r"tiny\.gguf: truncated"):
        resolve(str(source), tmp_path / "cache")
    assert visible(tmp_path / "cache") == []


def test_unwritable_cache_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    source = write_tiny_llama(tmp_path / "tiny.gguf")
    with pytest.raises(ModelCacheError, match=r"cache: cannot write the model cache: .+") as caught:
        resolve(str(source), tmp_path / "cache")
    assert isinstance(caught.value, ModelError)


KILLED_BUILD = """
import os, signal, sys
from pathlib import Path
from services.models.cache import build_once
from services.models.progress import silent

def build(workspace):
    model = workspace / "model"
    model.mkdir()
    (model / "half").write_bytes(bytes(100))
    print("half", flush=True)
    if sys.argv[2] == "wait":
        sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)

build_once(Path(sys.argv[1]), build, silent)
"""


def complete_build(workspace: Path) -> Path:
    (workspace / "model").mkdir()
    (workspace / "model" / "whole").write_bytes(bytes(100))
    return workspace / "model"


def test_killed_build_is_never_seen_and_is_swept_by_the_next(tmp_path: Path) -> None:
    place = tmp_path / "cache" / "name-1"
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_BUILD, place, "now"], check=False, capture_output=True, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not place.exists()
    assert any(name.endswith(".partial") for name in visible(place.parent))
    assert build_once(place, complete_build, silent) == place
    assert visible(place) == ["whole"]
    assert visible(place.parent) == ["name-1"]


def test_second_process_waits_for_the_first_and_takes_over_when_it_dies(tmp_path: Path) -> None:
    place = tmp_path / "name-1"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_BUILD, place, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == b"half\n"
        is_waiting = threading.Event()
        steps: list[Step] = []

        def observe(step: Step) -> None:
            steps.append(step)
            is_waiting.set()

        second = threading.Thread(target=build_once, args=(place, complete_build, observe))
        second.start()
        assert is_waiting.wait(20)
        assert not place.exists()
        first.stdin.close()
        second.join()
    assert [step.stage for step in steps] == ["wait"]
    assert visible(place) == ["whole"]


def test_simultaneous_builds_run_once(tmp_path: Path) -> None:
    place = tmp_path / "name-1"
    builds: list[Path] = []

    def build(workspace: Path) -> Path:
        builds.append(workspace)
        return complete_build(workspace)

    threads = [threading.Thread(target=build_once, args=(place, build, silent)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1


def test_cache_folder_follows_xdg() -> None:
    assert default_cache_dir({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/fencepost/models")
    home = Path.home() / ".cache" / "fencepost" / "models"
    assert default_cache_dir({}) == default_cache_dir({"XDG_CACHE_HOME": "relative"}) == home


def test_progress_lines_show_start_and_end(capsys: pytest.CaptureFixture[str]) -> None:
    show = ProgressLines(interval_s=1000)
    for done in range(101):
        show(Step("download", "model", done * 1_000_000, 100_000_000, "bytes"))
    show(Step("convert", "model", 3, 3, "tensors"))
    show(Step("download", "org/name", 2_500_000, None, "bytes"))
    assert capsys.readouterr().err.splitlines() == [
        "download model: 0.0 of 100.0 MB (0 %)",
        "download model: 100.0 of 100.0 MB (100 %)",
        "convert model: 3 of 3 tensors (100 %)",
        "download org/name: 2.5 MB",
    ]
