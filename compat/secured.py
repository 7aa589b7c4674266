"""A broker whose only listener is SASL_SSL, with an authorizer, and how each client reaches it.

The certificates come from `openssl`, so that environments without the extra `security` can use this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from compat.authority import make_authority
from compat.brokers import KbrokerProcess

USER, PASSWORD = "al", "open sesame canary"
SHARED = {"security.protocol": "SASL_SSL"}


class Secured(KbrokerProcess):
    """A broker process. Shape: authority is the file that clients trust; settings are those of the broker."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        super().__init__(directory, overrides=[f"{key}={value}" for key, value in settings.items()])
        self.authority = directory / "ca.pem"
        self.settings = settings

    @property
    def log(self) -> str:
        """All of its standard error."""
        return (self.directory / "stderr.txt").read_text(errors="replace")

    def java(self, mechanism: str = "SCRAM-SHA-512", password: str = PASSWORD) -> dict[str, str]:
        """The security settings of a Java client; `kbroker`'s commands and sources take the same."""
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        login = f'org.apache.kafka.common.security.{module} required username="{USER}" password="{password}";'
        return {**self.java_tls(), "sasl.mechanism": mechanism, "sasl.jaas.config": login}

    def java_tls(self) -> dict[str, str]:
        """The settings of a Java client without those of its login."""
        return {**SHARED, "ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority)}

    def librdkafka(self, mechanism: str = "SCRAM-SHA-512", password: str = PASSWORD) -> dict[str, Any]:
        """The settings of librdkafka."""
        login = {} if mechanism == "OAUTHBEARER" else {"sasl.username": USER, "sasl.password": password}
        common = {"bootstrap.servers": self.bootstrap_servers, "ssl.ca.location": str(self.authority), **SHARED}
        return {**common, "sasl.mechanism": mechanism, **login}

    def own(self, user: str = USER, password: str = PASSWORD, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
        """The settings of kbroker's own client."""
        return self.kafka_python(mechanism) | {"sasl_plain_username": user, "sasl_plain_password": password}

    def kafka_python(self, mechanism: str = "SCRAM-SHA-512", password: str = PASSWORD) -> dict[str, Any]:
        """The settings of kafka-python."""
        login = {} if mechanism == "OAUTHBEARER" else {"sasl_plain_username": USER, "sasl_plain_password": password}
        common = {"bootstrap_servers": self.bootstrap_servers, "ssl_cafile": str(self.authority)}
        return {**common, "security_protocol": "SASL_SSL", "sasl_mechanism": mechanism, **login}

    def franz(self, mechanism: str = "SCRAM-SHA-512", password: str = PASSWORD, token: str = "") -> dict[str, str]:
        """The `security` of franz-go's jobs."""
        return {"ca": str(self.authority), "mechanism": mechanism, "user": USER, "password": password, "token": token}


@contextmanager
def started(
    directory: Path, settings: Mapping[str, str] | None = None, *, guests: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Secured]:
    """A broker that offers PLAIN and SCRAM to its user, who is a super user, and to guests (names and passwords), who
    have no rights; sessions last two seconds.
    """
    authority = make_authority(directory)
    (directory / "broker.pem").write_text(
        (authority / "server.key").read_text() + (authority / "server.pem").read_text()
    )
    users = {USER: PASSWORD, **guests}
    (directory / "users.properties").write_text("".join(f"{user}={word}\n" for user, word in users.items()))
    given = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / "broker.pem"),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "kbroker.sasl.plain.scram.credentials": "true",
        "connections.max.reauth.ms": "2000",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{USER}",
        "kbroker.bootstrap.users.file": str(directory / "users.properties"),
        **(settings or {}),
    }
    broker = Secured(directory, given)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
