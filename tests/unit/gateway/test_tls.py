"""Certificates that cannot be used: the file at fault is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.gateway import tls
from services.settings import SettingsError
from tests.contract.certificates import Certificate, self_signed

NO_KEY = "holds no private key in PEM form without a password"


@pytest.fixture
def good(tmp_path: Path) -> Certificate:
    return self_signed(tmp_path, "good")


def refusal(cert_file: Path, key_file: Path) -> str:
    with pytest.raises(SettingsError) as refused:
        tls.check(cert_file, key_file)
    return str(refused.value)


def test_a_certificate_and_its_key(good: Certificate) -> None:
    tls.check(good.cert_file, good.key_file)


def test_files_that_cannot_be_read(good: Certificate, tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    assert refusal(good.cert_file, missing) == f"--tls-key-file: cannot read {missing}: No such file or directory"
    assert refusal(missing, good.key_file) == f"--tls-cert-file: cannot read {missing}: No such file or directory"
    assert refusal(tmp_path, good.key_file) == f"--tls-cert-file: cannot read {tmp_path}: Is a directory"


def test_files_that_hold_something_else(good: Certificate, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for path in (empty, good.key_file):
        assert refusal(path, good.key_file) == f"--tls-cert-file: {path} holds no certificate in PEM form"
    for path in (empty, good.cert_file):
        assert refusal(good.cert_file, path) == f"--tls-key-file: {path} {NO_KEY}"


def test_a_key_of_another_certificate(good: Certificate, tmp_path: Path) -> None:
    other = self_signed(tmp_path, "other")
    said = f"--tls-key-file: {other.key_file} does not belong to {good.cert_file}"
    assert refusal(good.cert_file, other.key_file) == said


def test_a_key_behind_a_password_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    locked = self_signed(tmp_path, "locked", password=b"secret")
    assert refusal(locked.cert_file, locked.key_file) == f"--tls-key-file: {locked.key_file} {NO_KEY}"
