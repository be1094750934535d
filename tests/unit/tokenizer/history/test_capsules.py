"""Capsules, and the file of their keys."""

import base64
import logging
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tokenizer.errors import KeyFileError
from services.tokenizer.history.capsule_keys import load_ring, random_ring
from services.tokenizer.history.capsules import MAX_CAPSULE_BYTES, Capsules
from services.tokenizer.history.record_format import encode_record
from tests.unit.tokenizer.transcript_records import call, record

RECORD = record(call())
RING = random_ring()
CAPSULES = Capsules(RING, "tokenizer")
OLD, NEW = (f"{name}:{base64.b64encode(bytes([byte]) * 32).decode()}" for name, byte in (("2024", 1), ("2025", 2)))


def sealed() -> bytes:
    capsule = CAPSULES.seal("tenant", RECORD)
    assert capsule is not None
    return capsule


def with_keys(path: Path, *lines: str) -> Capsules:
    path.write_text("\n".join(lines), encoding="utf-8")
    return Capsules(load_ring(path), "tokenizer")


def test_capsule_gives_its_record_back() -> None:
    opened = CAPSULES.open("tenant", sealed())
    assert opened is not None
    assert encode_record(opened) == encode_record(RECORD)


def test_two_capsules_of_one_record_differ_and_show_nothing() -> None:
    assert sealed() != sealed()
    assert b"look" not in sealed()


def test_capsule_of_another_tenant_tokenizer_or_ring_stays_closed() -> None:
    assert CAPSULES.open("other", sealed()) is None
    assert Capsules(RING, "other").open("tenant", sealed()) is None
    assert Capsules(random_ring(), "tokenizer").open("tenant", sealed()) is None


def test_every_changed_or_missing_byte_keeps_it_closed() -> None:
    capsule = sealed()
    for at in range(len(capsule)):
        for bit in (1, 128):
            assert CAPSULES.open("tenant", capsule[:at] + bytes([capsule[at] ^ bit]) + capsule[at + 1 :]) is None
        assert CAPSULES.open("tenant", capsule[:at]) is None
    assert CAPSULES.open("tenant", capsule + b"\0") is None


@given(st.binary(max_size=100))
def test_any_bytes_are_ignored(data: bytes) -> None:
    assert CAPSULES.open("tenant", data) is None
    assert CAPSULES.open("tenant", sealed()[:19] + data) is None


def test_size_is_bounded() -> None:
    noise = random.Random(0).randbytes(MAX_CAPSULE_BYTES).hex()
    assert CAPSULES.seal("tenant", record(text=noise)) is None
    assert CAPSULES.open("tenant", sealed() + bytes(MAX_CAPSULE_BYTES)) is None


def test_first_key_seals_and_all_open(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    old = with_keys(path, OLD)
    new = with_keys(path, "# newest first", "", f"  {NEW}  ", OLD)
    capsule = old.seal("tenant", RECORD)
    newer = new.seal("tenant", RECORD)
    assert capsule is not None
    assert newer is not None
    assert new.open("tenant", capsule)
    assert old.open("tenant", newer) is None
    assert with_keys(path, NEW).open("tenant", capsule) is None
    assert with_keys(path, NEW).open("tenant", newer)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "no key"),
        (["# only a comment"], "no key"),
        ([OLD, "no-colon"], "line 2: expected 32 bytes"),
        ([f":{OLD.split(':')[1]}"], "line 1: expected KEY_ID"),
        ([f"a b{OLD}"], "line 1: expected KEY_ID"),
        ([OLD, OLD], "line 2: expected KEY_ID"),
        (["short:AAAA"], "line 1: expected 32 bytes"),
        (["odd:not base64!"], "line 1: expected 32 bytes"),
        (["ümlaut:AAAA"], "line 1: expected KEY_ID"),
    ],
)
def test_malformed_key_file_stops_the_start(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(KeyFileError, match=message) as caught:
        with_keys(tmp_path / "keys", *lines)
    assert str(tmp_path / "keys") in str(caught.value)
    assert OLD.split(":")[1] not in str(caught.value)


def test_missing_or_binary_key_file_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="No such file"):
        load_ring(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    with pytest.raises(KeyFileError, match="not a text file"):
        load_ring(tmp_path / "binary")


def test_without_a_file_the_key_is_random_and_said_to_be(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        ring = load_ring(None)
    assert "end with it" in caplog.text
    assert ring.sealing_id != load_ring(None).sealing_id
    assert Capsules(ring, "tokenizer").seal("tenant", RECORD)
