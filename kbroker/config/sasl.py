"""Settings of SASL. With the prefix `listener.name.<listener>.`, some also `listener.name.<listener>.<mechanism>.`,
they apply to one listener or to one of its mechanisms.
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.config.settings import HOUR, KB, SECOND, Dynamic, Long, Setting, setting, settings
from kbroker.config.values import Kind, Secret

OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
SCRAM_MIN_ITERATIONS: Final = 4_096
"""With fewer, a password is found too fast from what one login shows (RFC 7677)."""
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")


def _unsupported(mechanisms: Any) -> str | None:
    # GSSAPI alone is Kafka's default, which a file may state although no listener uses SASL.
    unknown = [one for one in mechanisms if one not in MECHANISMS and mechanisms != ("GSSAPI",)]
    return f"{unknown[0][:100]} is not supported; {', '.join(MECHANISMS)} are" if unknown else None


@settings
class SaslSettings:
    """Who may log in on listeners with SASL, and how the broker logs in at other nodes."""

    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        default=("GSSAPI",),
        dynamic=Dynamic.PER_BROKER,
        check=_unsupported,
        doc="Mechanisms of listeners with SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. The default of Kafka,"
        " GSSAPI, is not supported, so a listener with SASL needs this setting.",
    )
    sasl_jaas_config: Secret | None = setting(
        default=None,
        dynamic=Dynamic.PER_BROKER,
        doc="The login module of a mechanism, in Java's syntax. The broker reads it only with the prefix"
        " listener.name.<listener>.<mechanism>. (both in lower case). user_NAME=PASSWORD are the users of PLAIN;"
        " username and password are those with which the broker logs in at other nodes.",
    )
    sasl_mechanism_inter_broker_protocol: str = setting(
        default="GSSAPI",
        dynamic=Dynamic.PER_BROKER,
        doc="Mechanism of connections to other brokers, if their listener has SASL.",
    )
    sasl_mechanism_controller_protocol: str = setting(
        default="GSSAPI", doc="Mechanism of connections to controllers, if their listener has SASL."
    )
    sasl_server_max_receive_size: int = setting(
        default=512 * KB, at_least=1, doc="Largest request before a client is authenticated."
    )
    connection_failed_authentication_delay_ms: int = setting(
        default=100,
        at_least=0,
        doc="The broker answers a failed login after this time. After several failed logins of an address it waits"
        " longer; see kbroker.failed.authentication.max.delay.ms.",
    )
    connections_max_reauth_ms: Long = setting(
        default=0,
        doc="Time after which a client has to log in again on its connection (KIP-368). A connection that continues"
        " without is closed. 0 means never; a token that expires limits the time too.",
    )
    kbroker_failed_authentication_max_delay_ms: int = setting(
        default=10 * SECOND,
        at_least=0,
        doc="After five failed logins of an address in a minute, each further one doubles the delay of its answer, up"
        " to this time. It does not apply to addresses of this machine.",
    )
    kbroker_sasl_plain_scram_credentials: bool = setting(
        default=False,
        doc="Lets users log in over PLAIN with their SCRAM password, so that no file has to contain passwords.",
    )
    kbroker_sasl_plain_without_tls: bool = setting(
        default=True,
        doc="Allows PLAIN on a listener without TLS, as Kafka does, although the network sees the passwords. The broker"
        " warns if the listener is not on loopback; with false it refuses to start.",
    )
    kbroker_jaas_file: str | None = setting(
        default=None,
        doc="File with login modules, as Java reads it from java.security.auth.login.config: the part"
        " <listener>.KafkaServer (in lower case) or KafkaServer counts for mechanisms without sasl.jaas.config. The"
        " broker reads it when it starts. The image takes it from KAFKA_OPTS.",
    )
    kbroker_bootstrap_users_file: str | None = setting(
        default=None,
        doc="Properties file of users and their passwords. The first start of a controller makes SCRAM credentials for"
        " them, as kafka-storage format --add-scram does; later starts do not read it.",
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = setting(
        default=None,
        doc="Where the broker reads the keys that sign tokens: a URL with https or file. For http see"
        " kbroker.sasl.oauthbearer.http. OAUTHBEARER needs the extra kbroker[security].",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: Long = setting(
        default=HOUR, at_least=1, doc="The broker reads the keys again after this time."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: Long = setting(
        default=100, at_least=1, doc="First pause after a failure to read the keys."
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: Long = setting(
        default=10 * SECOND,
        at_least=1,
        doc="Longest pause after a failure to read the keys, and shortest between two reads because of unknown keys.",
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = setting(
        default=(), doc="A token must be for one of these audiences (claim aud)."
    )
    sasl_oauthbearer_expected_issuer: str | None = setting(
        default=None, doc="A token must be from this issuer (claim iss)."
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        default=30, at_least=0, doc="Tolerated difference between the clocks of the broker and of the issuer."
    )
    sasl_oauthbearer_sub_claim_name: str = setting(default="sub", doc="The claim with the name of the user.")
    sasl_oauthbearer_scope_claim_name: str = setting(
        default="scope", doc="The claim with the scope, a string or a list of strings."
    )
    sasl_oauthbearer_token_endpoint_url: str | None = setting(
        default=None,
        doc="URL (file:) of the token with which this node logs in at other nodes by OAUTHBEARER, if the login module"
        " has no tokenFile. Each login reads it. Other URLs are refused: kbroker gets no tokens from an issuer.",
    )
    kbroker_sasl_oauthbearer_algorithms: tuple[str, ...] = setting(
        default=("RS256", "ES256", "PS256"), one_of=ALGORITHMS, doc="Accepted algorithms of signatures."
    )
    kbroker_sasl_oauthbearer_http: bool = setting(
        default=False, doc="Allows http in sasl.oauthbearer.jwks.endpoint.url also for hosts other than localhost."
    )
    kbroker_sasl_oauthbearer_unsecured: bool = setting(
        default=False,
        doc="Accepts tokens without a signature, with which every client can log in as any user: only for tests of"
        " clients. Apache Kafka does this by default.",
    )


SCRAM_SECRET: Final = "kbroker.sasl.scram.secret"  # noqa: S105  (a name)
DYNAMIC_SECRETS: Final = (
    Setting(
        name=SCRAM_SECRET,
        kind=Kind.PASSWORD,
        dynamic=Dynamic.CLUSTER_WIDE,
        internal=True,
        doc="From this the broker makes up the salts of users that do not exist. The controller sets it to random bytes"
        " with the first SCRAM credential.",
    ),
)
"""Settings that are only in the metadata log."""
