"""Keys while their file changes, and who a request's headers are."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from services.gateway.errors import AuthenticationError
from services.gateway.tenants.authentication import authenticate
from services.gateway.tenants.caller import DEFAULT, Caller
from services.gateway.tenants.key import draw_key
from services.gateway.tenants.key_file import KeyFileError, write_keys
from services.gateway.tenants.key_ring import CHECK_EVERY_S, KeyRing

NOW = datetime(2025, 1, 2, tzinfo=UTC)
ALICE, BOB = Caller("alice", "alice", None), Caller("bob", "team", True)
ALICES, ALICES_TEXT = draw_key(ALICE, "", NOW)
BOBS, BOBS_TEXT = draw_key(BOB, "", NOW)


class Clock:
    """Stands still until told."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pass_check(self) -> None:
        self.now_s += CHECK_EVERY_S


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_without_a_file_no_key_is_needed(path: Path) -> None:
    for ring in (KeyRing(None, is_required=False), KeyRing(path, is_required=False)):
        assert not ring.is_required
        assert ring.caller(ALICES_TEXT) is None


def test_each_key_stands_for_its_caller(path: Path) -> None:
    write_keys(path, [ALICES, BOBS])
    ring = KeyRing(path, is_required=False)
    assert ring.is_required
    assert ring.caller(ALICES_TEXT) == ALICE
    assert ring.caller(BOBS_TEXT) == BOB


def test_wrong_keys_stand_for_nobody(path: Path) -> None:
    write_keys(path, [ALICES, replace(BOBS, revoked=NOW)])
    ring = KeyRing(path, is_required=False)
    alices_id, alices_secret = ALICES_TEXT.split("_")[1:]
    wrong = [
        *(
            "",
            "fp_",
            "none",
            alices_secret,
            BOBS_TEXT,
            ALICES_TEXT[:-1],
            ALICES_TEXT.swapcase(),
            "\udcff",
            "x" * 10_000,
        ),
        *(f"fp_{alices_id}_{BOBS_TEXT.split('_')[2]}", f"fp_{BOBS.key_id}_{alices_secret}", f"fp_none_{alices_secret}"),
    ]
    assert [ring.caller(text) for text in wrong] == [None] * len(wrong)


def test_a_file_of_revoked_keys_still_keeps_the_door_shut(path: Path) -> None:
    write_keys(path, [])
    assert KeyRing(path, is_required=False).is_required


def test_changes_are_read_without_a_restart_and_once_a_second(path: Path, clock: Clock) -> None:
    ring = KeyRing(path, is_required=False, clock=clock)
    write_keys(path, [ALICES])
    assert not ring.is_required
    clock.pass_check()
    assert ring.is_required
    assert ring.caller(ALICES_TEXT) == ALICE
    write_keys(path, [ALICES, BOBS])
    assert ring.caller(BOBS_TEXT) is None
    clock.pass_check()
    assert ring.caller(BOBS_TEXT) == BOB
    write_keys(path, [replace(ALICES, revoked=NOW), BOBS])
    clock.pass_check()
    assert ring.caller(ALICES_TEXT) is None
    assert ring.caller(BOBS_TEXT) == BOB


def _break(path: Path) -> None:
    path.write_text("{")


def _open_to_others(path: Path) -> None:
    path.chmod(0o666)


@pytest.mark.parametrize("harm", [_break, _open_to_others, Path.unlink])
def test_whatever_happens_to_the_file_the_last_good_keys_stay(
    harm: object, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    write_keys(path, [ALICES])
    ring = KeyRing(path, is_required=False, clock=clock)
    assert callable(harm)
    harm(path)
    for _ in range(3):
        clock.pass_check()
        assert ring.is_required
        assert ring.caller(ALICES_TEXT) == ALICE
        assert ring.caller(BOBS_TEXT) is None
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert str(path) in errors[0]
    write_keys(path, [BOBS])
    clock.pass_check()
    assert ring.caller(BOBS_TEXT) == BOB
    assert ring.caller(ALICES_TEXT) is None


def test_a_file_that_appears_damaged_lets_nobody_in(path: Path, clock: Clock) -> None:
    ring = KeyRing(path, is_required=False, clock=clock)
    path.write_text("{")
    clock.pass_check()
    assert ring.is_required
    assert ring.caller(ALICES_TEXT) is None


def test_a_start_with_a_damaged_file_is_refused(path: Path) -> None:
    path.write_text("{")
    with pytest.raises(KeyFileError, match=str(path)):
        KeyRing(path, is_required=False)


def test_on_the_network_a_missing_file_does_not_open_the_door(path: Path, clock: Clock) -> None:
    ring = KeyRing(path, is_required=True, clock=clock)
    assert ring.is_required
    clock.pass_check()
    assert ring.is_required


def test_without_keys_everybody_is_the_same_caller() -> None:
    for headers in ({}, {"authorization": "Bearer none"}, {"x-api-key": ALICES_TEXT}):
        assert authenticate(Headers(headers), KeyRing(None, is_required=False)) == DEFAULT


@pytest.fixture
def ring(path: Path) -> KeyRing:
    write_keys(path, [ALICES, BOBS])
    return KeyRing(path, is_required=False)


@pytest.mark.parametrize(
    "headers",
    [
        [("authorization", f"Bearer {ALICES_TEXT}")],
        [("authorization", f"bearer  {ALICES_TEXT} ")],
        [("x-api-key", ALICES_TEXT)],
        [("x-api-key", ALICES_TEXT), ("authorization", f"Bearer {ALICES_TEXT}")],
        [("x-api-key", ALICES_TEXT), ("authorization", "Bearer ")],
        [("x-api-key", ALICES_TEXT), ("authorization", "Basic cHJveHk6cGFzcw==")],
    ],
)
def test_a_key_is_taken_from_either_header(ring: KeyRing, headers: list[tuple[str, str]]) -> None:
    assert authenticate(_headers(headers), ring) == ALICE


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ([], "No API key was sent"),
        ([("authorization", ALICES_TEXT)], "No API key was sent"),
        ([("authorization", f"Basic {ALICES_TEXT}")], "No API key was sent"),
        ([("x-api-key", " ")], "No API key was sent"),
        ([("x-api-key", "none")], "The API key is not known"),
        ([("authorization", f"Bearer {ALICES_TEXT}x")], "The API key is not known"),
        ([("x-api-key", ALICES_TEXT), ("authorization", f"Bearer {BOBS_TEXT}")], "Different API keys were sent"),
        ([("x-api-key", ALICES_TEXT), ("x-api-key", BOBS_TEXT)], "Different API keys were sent"),
        ([("x-api-key", ALICES_TEXT), ("authorization", "Bearer none")], "Different API keys were sent"),
    ],
)
def test_what_is_wrong_with_the_headers_is_said_without_a_key(
    ring: KeyRing, headers: list[tuple[str, str]], message: str
) -> None:
    with pytest.raises(AuthenticationError, match=message) as caught:
        authenticate(_headers(headers), ring)
    assert caught.value.http_status == 401
    assert caught.value.headers == {"www-authenticate": "Bearer"}
    assert "fp_" not in caught.value.message


def _headers(pairs: list[tuple[str, str]]) -> Headers:
    return Headers(raw=[(name.encode(), value.encode()) for name, value in pairs])
