"""Makes OpenSSL contexts from settings: versions, cipher suites, certificates and trusted authorities.

Python cannot choose among the cipher suites of TLS 1.3 before 3.15. OpenSSL, as a server, prefers them in the order of
_SUITES_13. So a list that allows only the first ones of them is enforced after the handshake: if OpenSSL has chosen
another suite, the client offers none that is allowed.

Source  DefaultSslEngineFactory of Apache Kafka 4.3.1; RFC 8446 and ciphers(1) of OpenSSL for the names
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Final, NamedTuple

from kbroker.config.tls import VERSIONS, TlsSettings
from kbroker.config.values import ConfigError
from kbroker.runtime.disk import in_memory_file
from kbroker.runtime.ports import ReadableDisk
from kbroker.security.certificates import alternative_names, subject
from kbroker.security.stores import KeyStore, key_store, revocations, trusted

_SUITES_13: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_LEAST_BITS: Final = 128
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class Contexts(NamedTuple):
    """The contexts of one listener, made from its settings.

    Shape   server accepts connections, None without a key store; client connects to such a listener of another node;
            name and alternative_names are those of this node's certificate; suites_13 are the allowed cipher suites of
            TLS 1.3
    """

    server: ssl.SSLContext | None
    client: ssl.SSLContext
    name: str
    alternative_names: frozenset[bytes]
    suites_13: frozenset[str]

    def demand_allowed(self, tls: ssl.SSLObject) -> str | None:
        """Why a finished handshake is not allowed, None if it is."""
        cipher = tls.cipher()
        if cipher is not None and cipher[1] == "TLSv1.3" and cipher[0] not in self.suites_13:
            return f"the peer offers no cipher suite of ssl.cipher.suites ({cipher[0]} was chosen)"
        return None


def load(tls: TlsSettings, disk: ReadableDisk) -> Contexts:
    """Read the stores and make the contexts; blocking. Errors: ConfigError, OSError."""
    store, certificates, lists = key_store(tls, disk), trusted(tls, disk), revocations(tls, disk)
    server = None if store is None else ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = bool(tls.ssl_endpoint_identification_algorithm)
    if server is not None:
        server.verify_mode = _CLIENT_AUTH[tls.ssl_client_auth]
        server.num_tickets = 1
    suites_13: frozenset[str] = frozenset()
    for context in (server, client):
        if context is None:
            continue
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        # As Java does, trust a certificate that is in the trust store, even if it is not of an authority.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        suites_13 = _limit(context, tls.ssl_enabled_protocols, tls.ssl_cipher_suites)
        if certificates is None:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH if context is server else ssl.Purpose.SERVER_AUTH)
        else:
            try:
                context.load_verify_locations(cadata=certificates)
            except ssl.SSLError as error:
                raise ConfigError(f"ssl.truststore: the certificates cannot be read: {error.reason}") from error
        if lists is not None:
            _check_revocations(context, lists)
        if store is not None:
            _load_key(context, store)
    own = b"" if store is None else _first_certificate(store.pem)
    try:
        name, names = (subject(own), alternative_names(own)) if own else ("", frozenset())
    except ValueError as error:
        raise ConfigError(f"ssl.keystore: the certificate cannot be read: {error}") from error
    return Contexts(server, client, name, names, suites_13)


def _check_revocations(context: ssl.SSLContext, lists: bytes) -> None:
    """Refuse certificates that are revoked, or whose authority has no list in force, as Java with checkRevocation."""
    try:
        with in_memory_file(lists) as path:
            context.load_verify_locations(cafile=path)
    except ssl.SSLError as error:
        raise ConfigError(f"kbroker.ssl.crl.location: the lists cannot be read: {error.reason}") from error
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN


def _load_key(context: ssl.SSLContext, store: KeyStore) -> None:
    try:
        with in_memory_file(store.pem) as path:
            context.load_cert_chain(path, password=lambda: store.password)
    except ssl.SSLError as error:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        hint = "; check ssl.key.password" if b"ENCRYPTED" in store.pem else ""
        raise ConfigError(f"ssl.keystore: the key and its certificates cannot be used: {reason}{hint}") from error


def _first_certificate(pem: bytes) -> bytes:
    begin, end = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
    start = pem.find(begin)
    return ssl.PEM_cert_to_DER_cert(pem[start : pem.index(end, start) + len(end)].decode("latin-1"))


def _limit(context: ssl.SSLContext, versions: Sequence[str], suites: Sequence[str]) -> frozenset[str]:
    """Set versions and cipher suites; return the allowed suites of TLS 1.3. Errors: ConfigError."""
    allowed = [name for name in VERSIONS if name in versions]
    chosen_13 = frozenset(suites).intersection(_SUITES_13) if suites else frozenset(_SUITES_13)
    older = [name for name in suites if name not in _SUITES_13]
    if suites:
        if not chosen_13 and "TLSv1.3" in allowed:
            allowed.remove("TLSv1.3")
        if not older and "TLSv1.2" in allowed:
            allowed.remove("TLSv1.2")
    if not allowed:
        raise ConfigError("ssl.cipher.suites has no suite for a version in ssl.enabled.protocols")
    if "TLSv1.3" in allowed and chosen_13 != frozenset(_SUITES_13[: len(chosen_13)]):
        raise ConfigError(
            f"ssl.cipher.suites: of the suites of TLS 1.3 only the first ones of {', '.join(_SUITES_13)} can be chosen"
        )
    context.minimum_version, context.maximum_version = _VERSIONS[allowed[0]], _VERSIONS[allowed[-1]]
    if older:
        names = [openssl_name(name) for name in older]
        for java, name in zip(older, names, strict=True):
            try:
                context.set_ciphers(name)
            except ssl.SSLError as error:
                raise ConfigError(f"ssl.cipher.suites: OpenSSL does not support {java}") from error
        context.set_ciphers(":".join(names))
        for cipher in context.get_ciphers():
            if cipher["strength_bits"] < _LEAST_BITS or cipher["auth"] == "auth-null":
                raise ConfigError(f"ssl.cipher.suites: {cipher['name']} protects nothing, or is too weak")
    return chosen_13


def openssl_name(suite: str) -> str:
    """OpenSSL's name of a cipher suite of TLS 1.2.

    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256. A name of another form stays as it is.
    """
    exchange, separator, cipher = suite.partition("_WITH_")
    if not separator:
        return suite
    exchange = exchange.removeprefix("TLS_").removeprefix("SSL_").replace("_", "-")
    cipher = cipher.replace("AES_", "AES").replace("CAMELLIA_", "CAMELLIA").replace("_CBC_", "_")
    cipher = cipher.removesuffix("_SHA256") if "CHACHA20" in cipher else cipher
    return "-".join(filter(None, ("" if exchange == "RSA" else exchange, cipher.replace("_", "-"))))
