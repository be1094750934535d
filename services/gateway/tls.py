"""The server's certificate and its key, checked before anything is started."""

from __future__ import annotations

import ssl
from pathlib import Path

from services.settings import SettingsError


def check(cert_file: Path, key_file: Path) -> None:
    """Raise SettingsError, in one line that names the file, unless both can be used and belong together."""
    for flag, path in (("--tls-cert-file", cert_file), ("--tls-key-file", key_file)):
        try:
            path.read_bytes()
        except OSError as error:
            raise SettingsError(f"{flag}: cannot read {path}: {error.strerror or error}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Also the server's own certificate, so that what is wrong below is wrong with the key.
        context.load_verify_locations(cert_file)
    except ssl.SSLError:
        raise SettingsError(f"--tls-cert-file: {cert_file} holds no certificate in PEM form") from None
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SettingsError(f"--tls-key-file: {key_file} does not belong to {cert_file}") from None
        raise SettingsError(f"--tls-key-file: {key_file} holds no private key in PEM form without a password") from None


def _no_password() -> str:
    """Without it the library would ask on the terminal."""
    return ""
