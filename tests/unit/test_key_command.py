"""``fencepost key``: what it prints, where, and what it leaves in the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.__main__ import main
from services.gateway.tenants.caller import Caller
from services.gateway.tenants.key_ring import KeyRing


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `fencepost up` would look."""
    monkeypatch.setenv("FENCEPOST_UP_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data" / "keys.json"


def _create(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["key", "create", *argv]) == 0
    return capsys.readouterr().out.removesuffix("\n")


def _caller(path: Path, text: str) -> Caller | None:
    return KeyRing(path, is_required=False).caller(text)


def test_the_key_stands_alone_on_standard_output(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "create", "--tenant", "team"]) == 0
    said = capsys.readouterr()
    text = said.out.removesuffix("\n")
    assert _caller(path, text) == Caller("team", "team", None)
    assert said.err.splitlines() == [
        f"Key {text.split('_')[1]} for tenant team is in {path}. Keep the line above: it is not shown again.",
        "It is the first one: a gateway that uses this file now refuses requests without a key.",
    ]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_key_has_what_it_was_given(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--tenant", "a", "--cache-scope", "shared", "--persist", "false", "--name", "the laptop")
    first, second = _create(capsys, *argv), _create(capsys, "--tenant", "b", "--persist", "true")
    assert _caller(path, first) == Caller("a", "shared", False)
    assert _caller(path, second) == Caller("b", "b", True)


def test_another_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    assert _caller(other, _create(capsys, "--tenant", "a", "--file", str(other))) == Caller("a", "a", None)


def test_the_list_shows_no_key(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "list"]) == 0
    assert capsys.readouterr().out == f"There are no keys: {path} does not exist.\n"
    text = _create(capsys, "--tenant", "a", "--cache-scope", "s", "--persist", "false", "--name", "the laptop")
    assert main(["key", "list"]) == 0
    head, row = (line.split(maxsplit=6) for line in capsys.readouterr().out.splitlines())
    assert head == ["ID", "TENANT", "SCOPE", "PERSIST", "CREATED", "REVOKED", "NAME"]
    key_id, secret = text.split("_")[1:]
    assert (*row[:4], *row[5:]) == (key_id, "a", "s", "no", "no", "the laptop")
    assert secret not in " ".join(row)


def test_a_revoked_key_opens_nothing(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = _create(capsys, "--tenant", "a"), _create(capsys, "--tenant", "b")
    key_id = first.split("_")[1]
    for _ in range(2):
        assert main(["key", "revoke", key_id]) == 0
        assert capsys.readouterr().err == f"Key {key_id} is revoked.\n"
    assert _caller(path, first) is None
    assert _caller(path, second) == Caller("b", "b", None)


@pytest.mark.parametrize(
    ("argv", "status", "named"),
    [
        (["create"], 2, "--tenant (or FENCEPOST_KEY_TENANT) is required"),
        (["create", "--tenant", "a b"], 2, "--tenant: expected 1 to 64 letters, digits, dots, dashes or underscores"),
        (["create", "--tenant", "a", "--cache-scope", ""], 2, "--cache-scope: expected 1 to 64 letters"),
        (["create", "--tenant", "a", "--persist", "maybe"], 2, "--persist: expected true or false"),
        (["create", "--tenant", "a", "--name", "a\nb"], 2, "--name: expected at most 100 printable characters"),
        (["revoke", "abc"], 1, "there are no keys: "),
        (["list", "--all"], 2, "--all"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    argv: list[str], status: int, named: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["key", *argv]) == status
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("fencepost key: ")
    assert named in said.err
    assert said.err.count("\n") == 1
    assert not path.exists()


def test_an_unknown_id_is_named(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _create(capsys, "--tenant", "a")
    assert main(["key", "revoke", "abc"]) == 1
    assert capsys.readouterr().err == (f"fencepost key: {path} has no key abc; `fencepost key list` shows the ids\n")


@pytest.mark.parametrize("argv", [[], ["make"], ["revoke"], ["revoke", "--file"]])
def test_without_a_command_it_says_what_there_is(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", *argv]) == 2
    assert "fencepost key create --tenant TENANT" in capsys.readouterr().err


def test_a_damaged_file_is_left_alone(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.parent.mkdir()
    path.write_text("{")
    for argv in (["create", "--tenant", "a"], ["list"], ["revoke", "abc"]):
        assert main(["key", *argv]) == 1
        assert capsys.readouterr().err == f"fencepost key: {path} is not a file of API keys, or is damaged\n"
    assert path.read_text() == "{"
