"""Throw-away certificates for 127.0.0.1."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True, slots=True)
class Certificate:
    """Both files in PEM form."""

    cert_file: Path
    key_file: Path

    @property
    def flags(self) -> tuple[str, ...]:
        return "--tls-cert-file", str(self.cert_file), "--tls-key-file", str(self.key_file)


def self_signed(folder: Path, name: str, *, password: bytes | None = None) -> Certificate:
    """Write a certificate that trusts itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .sign(key, hashes.SHA256())
    )
    found = Certificate(folder / f"{name}.pem", folder / f"{name}-key.pem")
    found.cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    found.key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password),
        )
    )
    return found
