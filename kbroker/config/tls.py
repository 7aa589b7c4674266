"""Settings of TLS. Each may also be set for one listener, below `listener.name.<name>.`.

Source  SslConfigs and BrokerSecurityConfigs of Apache Kafka 4.3.1
"""

from __future__ import annotations

from kbroker.config.principal_rules import PrincipalRules
from kbroker.config.settings import Dynamic, setting, settings
from kbroker.config.values import ConfigError, Secret

PER_BROKER = Dynamic.PER_BROKER
VERSIONS = ("TLSv1.2", "TLSv1.3")


def _known_versions(names: tuple[str, ...]) -> str | None:
    if not names:
        return "at least one of TLSv1.2 and TLSv1.3 must be enabled"
    unknown = [name for name in names if name not in VERSIONS]
    return f"{unknown[0]} is not supported; use TLSv1.2 and TLSv1.3" if unknown else None


def _known_type(kind: str) -> str | None:
    """JKS is Kafka's default, so only the use of a JKS file is an error (kbroker.security.stores)."""
    return None if kind.upper() in ("PEM", "PKCS12", "JKS") else "must be PEM or PKCS12; other types are not supported"


def _valid_rules(text: str) -> str | None:
    try:
        PrincipalRules(text)
    except ConfigError as error:
        return str(error)
    return None


@settings
class TlsSettings:
    """Certificates, keys and protocols of TLS, for listeners and for connections to other nodes."""

    ssl_keystore_type: str = setting(
        default="JKS",
        dynamic=PER_BROKER,
        check=_known_type,
        doc="Format of the key store: PEM or PKCS12. A file in Java's format JKS is refused.",
    )
    ssl_keystore_location: str | None = setting(
        dynamic=PER_BROKER,
        doc="File with the private key and its certificate chain. The broker reloads a changed file.",
    )
    ssl_keystore_password: Secret | None = setting(dynamic=PER_BROKER, doc="Password of a PKCS12 key store.")
    ssl_keystore_key: Secret | None = setting(
        dynamic=PER_BROKER, doc="The private key itself in PEM, instead of a file. Requires ssl.keystore.type=PEM."
    )
    ssl_keystore_certificate_chain: Secret | None = setting(
        dynamic=PER_BROKER, doc="The certificate chain of ssl.keystore.key in PEM, the server's certificate first."
    )
    ssl_key_password: Secret | None = setting(dynamic=PER_BROKER, doc="Password of an encrypted private key in PEM.")
    ssl_truststore_type: str = setting(
        default="JKS",
        dynamic=PER_BROKER,
        check=_known_type,
        doc="Format of the trust store: PEM or PKCS12. A file in Java's format JKS is refused.",
    )
    ssl_truststore_location: str | None = setting(
        dynamic=PER_BROKER,
        doc="File with the certificates that sign those of clients and of other nodes. Without it the authorities of "
        "the operating system are trusted.",
    )
    ssl_truststore_password: Secret | None = setting(dynamic=PER_BROKER, doc="Password of a PKCS12 trust store.")
    ssl_truststore_certificates: Secret | None = setting(
        dynamic=PER_BROKER, doc="The trusted certificates in PEM, instead of a file. Requires ssl.truststore.type=PEM."
    )
    kbroker_ssl_crl_location: str | None = setting(
        doc="File with certificate revocation lists in PEM, one for each authority in the chains of clients and of "
        "other nodes. Without it revoked certificates are accepted. The broker reloads a changed file.",
    )
    ssl_client_auth: str = setting(
        default="none",
        one_of=("required", "requested", "none"),
        dynamic=PER_BROKER,
        doc="Whether clients must have a certificate (required), may have one (requested), or are not asked for one.",
    )
    ssl_principal_mapping_rules: str = setting(
        default="DEFAULT",
        check=_valid_rules,
        doc="Rules that map the distinguished name of a client's certificate to the name of its principal, as "
        "comma-separated RULE:pattern/replacement/[LU] or DEFAULT.",
    )
    ssl_enabled_protocols: tuple[str, ...] = setting(
        default=VERSIONS, check=_known_versions, dynamic=PER_BROKER, doc="Versions of TLS: TLSv1.2 and TLSv1.3."
    )
    ssl_cipher_suites: tuple[str, ...] = setting(
        default=(),
        dynamic=PER_BROKER,
        doc="Cipher suites by their standard names or OpenSSL's, such as TLS_AES_256_GCM_SHA384. Empty means OpenSSL's "
        "secure ones.",
    )
    ssl_endpoint_identification_algorithm: str = setting(
        default="https",
        check=lambda text: None if text.lower() in ("", "https") else "must be https, or empty to check no host names",
        dynamic=PER_BROKER,
        doc="Whether the broker checks the host name in the certificate of a node to which it connects: https, or "
        "empty for no check.",
    )
    ssl_allow_dn_changes: bool = setting(
        default=False, doc="Whether a reloaded certificate may have another distinguished name."
    )
    ssl_allow_san_changes: bool = setting(
        default=False, doc="Whether a reloaded certificate may lack subject alternative names of the previous one."
    )

    @property
    def has_trust_store(self) -> bool:
        """Whether a setting names the trusted certificates; otherwise they are those of the operating system."""
        return bool(self.ssl_truststore_location or self.ssl_truststore_certificates)
