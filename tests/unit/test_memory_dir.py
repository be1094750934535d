import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from services.memory_dir import memory_dir


def _full(path: Path) -> SimpleNamespace:
    return SimpleNamespace(free=2**20)


def test_the_folder_is_new_private_and_gone_afterwards(tmp_path: Path) -> None:
    with memory_dir(Path("/data"), 1, tmp_path) as folder:
        assert folder is not None
        assert list(tmp_path.iterdir()) == [folder]
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "left").write_bytes(b"x")
    assert not list(tmp_path.iterdir())
    # As after a kill: what was left is removed.
    folder.mkdir()
    (folder / "left").write_bytes(b"x")
    with memory_dir(Path("/data"), 1, tmp_path) as again:
        assert again == folder
        assert not list(folder.iterdir())


def test_stacks_of_other_data_have_other_folders(tmp_path: Path) -> None:
    with memory_dir(Path("/one"), 1, tmp_path) as one, memory_dir(Path("/two"), 1, tmp_path) as two:
        assert one != two


def test_without_room_or_such_a_file_system_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with memory_dir(Path("/data"), 1, tmp_path / "missing") as folder:
        assert folder is None
    monkeypatch.setattr(shutil, "disk_usage", _full)
    with memory_dir(Path("/data"), 1, tmp_path) as folder:
        assert folder is None
