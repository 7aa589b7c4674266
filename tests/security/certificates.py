"""Certificates for tests: an authority, and keys with certificates that it signs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID


class Signed:
    """A private key and its certificate."""

    def __init__(self, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, certificate: x509.Certificate) -> None:
        self.key = key
        self.certificate = certificate

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def chain(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def key_pem(self, password: str | None = None) -> str:
        encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()

    def write(self, path: Path, *, password: str | None = None) -> str:
        path.write_text(self.key_pem(password) + self.chain)
        return str(path)

    def write_pkcs12(self, path: Path, password: str) -> str:
        protection = BestAvailableEncryption(password.encode())
        path.write_bytes(pkcs12.serialize_key_and_certificates(b"kafka", self.key, self.certificate, None, protection))
        return str(path)


class Authority(Signed):
    """Signs certificates."""

    def __init__(self, name: str = "Test Authority") -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, subject, key).add_extension(x509.BasicConstraints(True, 0), critical=True)
        super().__init__(key, builder.sign(key, hashes.SHA256()))

    def sign(
        self,
        *attributes: tuple[x509.ObjectIdentifier, str],
        names: tuple[str, ...] = ("localhost", "127.0.0.1", "::1"),
        days: int = 30,
        key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None,
    ) -> Signed:
        """A new certificate; days below 0 make one that has expired."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        given = attributes or ((NameOID.COMMON_NAME, "kbroker"),)
        subject = x509.Name([x509.NameAttribute(kind, value) for kind, value in given])
        alternatives = x509.SubjectAlternativeName([_general(name) for name in names])
        builder = _builder(subject, self.certificate.subject, key, days=days)
        if names:
            builder = builder.add_extension(alternatives, critical=False)
        return Signed(key, builder.sign(self.key, hashes.SHA256()))  # type: ignore[arg-type]

    def revoke(self, *revoked: Signed, days: int = 30) -> str:
        """A certificate revocation list in PEM; days below 0 make one that has expired."""
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now - timedelta(days=60))
            .next_update(now + timedelta(days=days))
        )
        for one in revoked:
            number = one.certificate.serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now - timedelta(days=1))
            builder = builder.add_revoked_certificate(entry.build())
        made = builder.sign(self.key, hashes.SHA256())  # type: ignore[arg-type]
        return made.public_bytes(Encoding.PEM).decode()


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, *, days: int = 30
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    begin = now - timedelta(days=60)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(now + timedelta(days=days))
    )
