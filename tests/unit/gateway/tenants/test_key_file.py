"""One key, and the file of them."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.gateway.tenants.caller import Caller
from services.gateway.tenants.key import digest_of, draw_key, is_label, parts_of
from services.gateway.tenants.key_file import KeyFileError, read_keys, sole_writer, stamp_of, write_keys

NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
TEAM = Caller("team", "shared", False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_a_keys_text_is_its_id_and_a_secret_of_256_bits() -> None:
    key, text = draw_key(TEAM, "laptop", NOW)
    assert re.fullmatch(r"fp_[0-9A-Za-z]{12}_[0-9A-Za-z]{43}", text)
    key_id, secret = parts_of(text) or ("", "")
    assert key_id == key.key_id
    assert key.digest == hashlib.sha256(secret.encode()).digest()
    assert 62 ** len(secret) >= 2**256
    assert key.opens_with(digest_of(secret))
    assert not key.opens_with(digest_of(secret[:-1]))
    assert draw_key(TEAM, "laptop", NOW)[1] != text


@pytest.mark.parametrize("text", ["", "fp_", "fp_a_", "fp__b", "sk_a_b", "fp_a_b_c", "fp_a_b\n", " fp_a_b", "fp_é_b"])
def test_other_texts_are_no_keys(text: str) -> None:
    assert parts_of(text) is None


def test_a_keys_repr_shows_neither_secret_nor_digest() -> None:
    key, text = draw_key(TEAM, "", NOW)
    assert text.split("_")[2] not in repr(key)
    assert key.digest.hex() not in repr(key)
    assert repr(key.digest) not in repr(key)


def test_labels() -> None:
    assert all(map(is_label, ["a", "team-1", "Team_2.eu", "x" * 64]))
    assert not any(map(is_label, ["", "-a", "a b", "a/b", "é", "a\n", "x" * 65]))


def test_what_is_written_is_read(path: Path) -> None:
    keys = [draw_key(Caller("a", "a", persist), "näme", NOW)[0] for persist in (None, True, False)]
    write_keys(path, keys)
    found = read_keys(path)
    assert found == (stamp_of(path), tuple(keys))
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_the_file_holds_no_secret(path: Path) -> None:
    key, text = draw_key(TEAM, "laptop", NOW)
    write_keys(path, [key])
    assert text.split("_")[2] not in path.read_text()
    assert json.loads(path.read_text()) == {
        "version": 1,
        "keys": [
            {
                "id": key.key_id,
                "sha256": key.digest.hex(),
                "tenant": "team",
                "cache_scope": "shared",
                "persist": False,
                "name": "laptop",
                "created": "2025-01-02T03:04:05+00:00",
                "revoked": None,
            }
        ],
    }


def test_no_file_is_no_keys(path: Path) -> None:
    assert read_keys(path) is None
    assert stamp_of(path) is None
    assert read_keys(path / "below") is None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_refused(path: Path, mode: int) -> None:
    write_keys(path, [])
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=rf"^{path} can be written by others than its owner; run: chmod 600 {path}$"):
        read_keys(path)


def _entry(**changes: object) -> dict[str, object]:
    entry: dict[str, object] = {"id": "a", "sha256": "00" * 32, "tenant": "t", "cache_scope": "t", "persist": None}
    return {**entry, "name": "", "created": "2025-01-02T03:04:05+00:00", "revoked": None, **changes}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '"keys"',
        '{"keys": []}',
        '{"version": 2, "keys": []}',
        '{"version": 1}',
        '{"version": 1, "keys": [1]}',
        "[" * 100_000,
        json.dumps({"version": 1, "keys": [_entry(), _entry()]}),
        *(
            json.dumps({"version": 1, "keys": [_entry(**{name: value})]})
            for name, value in [
                ("id", 1),
                ("sha256", "00"),
                ("sha256", "secret"),
                ("tenant", ""),
                ("cache_scope", None),
                ("persist", 1),
                ("name", None),
                ("created", "yesterday"),
                ("revoked", True),
            ]
        ),
    ],
)
def test_a_damaged_file_is_named_and_not_shown(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(KeyFileError, match=rf"^{path} is not a file of API keys, or is damaged$"):
        read_keys(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=rf"^cannot read {tmp_path}: Is a directory$"):
        read_keys(tmp_path)


def test_writers_wait_for_each_other(path: Path) -> None:
    def add() -> None:
        for _ in range(10):
            with sole_writer(path):
                found = read_keys(path)
                write_keys(path, (*(() if found is None else found[1]), draw_key(TEAM, "", NOW)[0]))

    writers = [threading.Thread(target=add) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = read_keys(path)
    assert found is not None
    assert len(found[1]) == 40
