"""Reads key stores and trust stores: PEM, inline or in a file, and PKCS12. All become PEM, which OpenSSL reads.

Java's own format, JKS, is refused. Since Java 9 `keytool` writes PKCS12 even into a file called .jks, and Java reads it
although the type is JKS; so does this module.

Source  KIP-651 (PEM); DefaultSslEngineFactory of Apache Kafka 4.3.1 for the rules about passwords
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from kbroker.config.tls import TlsSettings
from kbroker.config.values import HIDDEN, ConfigError, Secret
from kbroker.runtime.ports import ReadableDisk

_JKS: Final = (bytes.fromhex("feedfeed"), bytes.fromhex("cececece"))
_MAX_BYTES: Final = 16 << 20
_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_LIST: Final = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)
_KEYTOOL: Final = "keytool -importkeystore -srckeystore OLD -destkeystore NEW.p12 -deststoretype PKCS12"


class KeyStore(NamedTuple):
    """A private key with its certificate chain, all in PEM; password is that of the key, "" without one."""

    pem: bytes
    password: str

    def __repr__(self) -> str:
        return f"KeyStore({HIDDEN})"


def key_store(tls: TlsSettings, disk: ReadableDisk) -> KeyStore | None:
    """The configured key store, None if there is none. Errors: ConfigError, OSError."""
    kind, location = tls.ssl_keystore_type.upper(), tls.ssl_keystore_location
    key, chain = tls.ssl_keystore_key, tls.ssl_keystore_certificate_chain
    key_password = tls.ssl_key_password
    if key or chain:
        if kind != "PEM":
            raise ConfigError(f"ssl.keystore.key requires ssl.keystore.type=PEM, not {kind}")
        if location:
            raise ConfigError("ssl.keystore.key and ssl.keystore.location must not both be set")
        if not key or not chain:
            raise ConfigError("ssl.keystore.key and ssl.keystore.certificate.chain must be set together")
        return KeyStore(_lines(key) + b"\n" + _lines(chain), key_password.reveal() if key_password else "")
    if not location:
        return None
    data = _contents(disk, location)
    if kind == "PEM":
        if tls.ssl_keystore_password:
            raise ConfigError("ssl.keystore.password must not be set for PEM; use ssl.key.password")
        return KeyStore(data, key_password.reveal() if key_password else "")
    found = _pkcs12(data, kind, location, tls.ssl_keystore_password, "ssl.keystore")
    if found.key is None or found.cert is None:
        raise ConfigError(f"ssl.keystore.location: {location} has no private key with a certificate")
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat  # noqa: PLC0415

    pem = found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain_of = [found.cert, *found.additional_certs]
    return KeyStore(pem + b"".join(one.certificate.public_bytes(Encoding.PEM) for one in chain_of), "")


def trusted(tls: TlsSettings, disk: ReadableDisk) -> str | None:
    """The trusted certificates in PEM, None if no trust store is configured. Errors: ConfigError, OSError."""
    kind, location, inline = (
        tls.ssl_truststore_type.upper(),
        tls.ssl_truststore_location,
        tls.ssl_truststore_certificates,
    )
    if inline:
        if kind != "PEM":
            raise ConfigError(f"ssl.truststore.certificates requires ssl.truststore.type=PEM, not {kind}")
        if location:
            raise ConfigError("ssl.truststore.certificates and ssl.truststore.location must not both be set")
        data = _lines(inline)
    elif not location:
        return None
    else:
        data = _contents(disk, location)
        if kind == "PEM" and tls.ssl_truststore_password:
            raise ConfigError("ssl.truststore.password must not be set for PEM")
    if kind != "PEM":
        assert location is not None
        found = _pkcs12(data, kind, location, tls.ssl_truststore_password, "ssl.truststore")
        from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415  (an extra)

        every = [*found.additional_certs, *([] if found.cert is None else [found.cert])]
        data = b"".join(one.certificate.public_bytes(Encoding.PEM) for one in every)
    if _CERTIFICATE not in data:
        raise ConfigError(f"ssl.truststore: {location or 'ssl.truststore.certificates'} has no certificate")
    return data.decode("ascii", errors="ignore")  # only comments have other characters, and ssl refuses them


def revocations(tls: TlsSettings, disk: ReadableDisk) -> bytes | None:
    """The certificate revocation lists in PEM, None if no file is configured. Errors: ConfigError, OSError."""
    if not (location := tls.kbroker_ssl_crl_location):
        return None
    data = _contents(disk, location)
    found = _LIST.findall(data)  # and nothing else: a certificate in this file must not become a trusted one
    if not found or len(found) != data.count(b"-----BEGIN X509 CRL-----"):
        raise ConfigError(
            f"kbroker.ssl.crl.location: {location} has no complete certificate revocation list in PEM; "
            "`openssl crl -inform DER -in OLD -out NEW` converts one"
        )
    return b"\n".join(found) + b"\n"


def _lines(secret: Secret) -> bytes:
    """An inline PEM text. Property files may hold it on one line, with a backslash and n for each end of a line."""
    return secret.reveal().replace("\\n", "\n").encode()


def _contents(disk: ReadableDisk, location: str) -> bytes:
    file = disk.open(location, writable=False)
    try:
        return file.pread(min(file.size(), _MAX_BYTES), 0)
    finally:
        file.close()


def _pkcs12(data: bytes, kind: str, location: str, password: Secret | None, prefix: str) -> Any:
    if data.startswith(_JKS):
        raise ConfigError(f"{prefix}.location: {location} is in Java's format JKS; convert it to PKCS12: {_KEYTOOL}")
    if data.lstrip().startswith(b"-----BEGIN"):
        raise ConfigError(f"{prefix}.type is {kind}, but {location} is a PEM file; set {prefix}.type=PEM")
    try:
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415  (an extra)
        from cryptography.hazmat.primitives.serialization import pkcs12  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(f"{prefix}.type=PKCS12 requires cryptography: pip install 'kbroker[security]'") from error
    try:
        return pkcs12.load_pkcs12(data, password.reveal().encode() if password else None)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{prefix}.location: {location} cannot be read with {prefix}.password: {error}") from error
