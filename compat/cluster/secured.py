"""A cluster with everything of docs/security.md switched on: all listeners are SASL_SSL, and all nodes authorize.

Clients log in on EXTERNAL with SCRAM. Brokers log in at each other on INTERNAL with SCRAM, and need a certificate there
too. On CONTROLLER there is PLAIN, because a controller that starts has no SCRAM credentials yet. All nodes share a
certificate and the user `node`; the user `admin` is a super user.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from compat.brokers import address_of
from compat.cluster.nodes import FIRST_CONTROLLER, KBROKER, ProcessCluster
from compat.oracle.raw import RawConnection
from compat.waiting import until
from kbroker.client.security import exchange
from kbroker.metadata.names import REMOTE_LOG_METADATA_TOPIC
from kbroker.security.authorizing import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from tests.security.certificates import Authority

ADMIN, NODE = "admin", "node"
SCRAM: Final = "SCRAM-SHA-512"
SCRAM_NUMBER: Final = 2
_MODULES: Final = "org.apache.kafka.common.security"

Rule = tuple[str, Operation, ResourceType, str]
"""Name of a user, operation, type and prefix of the names of resources, which is allowed."""


class Refused(AssertionError):
    """A broker does not let a user in."""


def password(user: str) -> str:
    """The password of every user who exists."""
    return f"password of {user}"


def _module(name: str, users: Iterable[str] = ()) -> str:
    own = f'username="{NODE}" password="{password(NODE)}"'
    known = "".join(f' user_{user}="{password(user)}"' for user in users)
    return f"{_MODULES}.{name} required {own}{known};"


def _settings(place: Path, super_users: Sequence[str]) -> dict[str, str]:
    return {
        "listener.security.protocol.map": "CONTROLLER:SASL_SSL,INTERNAL:SASL_SSL,EXTERNAL:SASL_SSL",
        "inter.broker.listener.name": "INTERNAL",
        "sasl.enabled.mechanisms": SCRAM,
        "sasl.mechanism.inter.broker.protocol": SCRAM,
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": _module("plain.PlainLoginModule", [NODE, ADMIN]),
        "listener.name.internal.scram-sha-512.sasl.jaas.config": _module("scram.ScramLoginModule"),
        "listener.name.external.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
        "listener.name.internal.ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(place / "node.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(place / "ca.pem"),
        "kbroker.tls.reload.interval.ms": "500",
        # The first handshake of a JVM takes seconds, and much longer on a busy machine.
        "kbroker.authentication.timeout.ms": "60000",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(f"User:{user}" for user in super_users),
    }


class SecuredCluster(ProcessCluster):
    """See the module docstring. Kafka's controllers need `node` among the super users, kbroker's do not.

    Shape   place is the directory of the certificates
    """

    LISTENERS = ("INTERNAL", "EXTERNAL")

    def __init__(
        self,
        place: Path,
        *,
        super_users: Sequence[str] = (ADMIN,),
        settings: Mapping[str, str] | None = None,
        **how: Any,
    ) -> None:
        self.place = place
        self.authority = Authority()
        (place / "ca.pem").write_text(self.authority.chain)
        self.renew_certificates()
        self._context = ssl.create_default_context(cafile=str(place / "ca.pem"))
        super().__init__(place, settings={**_settings(place, super_users), **(settings or {})}, **how)
        self._has_first_rights = NODE in super_users
        users = {user: password(user) for user in (ADMIN, NODE)}
        (place / "users.properties").write_text("".join(f"{user}={word}\n" for user, word in users.items()))
        for controller in self.controllers.values():
            if controller.kind == KBROKER:
                controller.settings["kbroker.bootstrap.users.file"] = str(place / "users.properties")
            for user, word in users.items():
                controller.format_flags += ["--add-scram", f"{SCRAM}=[name={user},password={word}]"]

    def renew_certificates(self) -> bytes:
        """Replace the certificate of all nodes; returns the new one, in DER."""
        made = self.authority.sign()
        made.write(self.place / "renewed.pem")
        (self.place / "renewed.pem").rename(self.place / "node.pem")
        return made.der

    def certificate(self, address: str) -> bytes:
        """The certificate that a listener shows to new connections, in DER."""
        with contextlib.closing(RawConnection(address)) as connection:
            context = ssl.create_default_context(cafile=str(self.place / "ca.pem"))
            context.load_cert_chain(self.place / "node.pem")
            with context.wrap_socket(connection.socket, server_hostname="127.0.0.1") as secured:
                return secured.getpeercert(binary_form=True) or b""

    def start_controllers(self) -> None:
        """Start them, and let brokers do what they need; a broker is no super user."""
        for node in self.controllers.values():
            node.start()
        self.active_controller()
        if not self._has_first_rights:
            rules = [
                (NODE, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME),
                (NODE, Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME),
                (NODE, Operation.READ, ResourceType.TOPIC, REMOTE_LOG_METADATA_TOPIC),
                (NODE, Operation.WRITE, ResourceType.TOPIC, REMOTE_LOG_METADATA_TOPIC),
            ]
            self.allow(rules, through=FIRST_CONTROLLER, pattern=PatternType.LITERAL)

    def start(self, *, timeout_s: float = 300) -> float:
        """See ProcessCluster; the brokers start when they may."""
        self.start_controllers()
        for node in self.brokers.values():
            node.start()
        self.await_brokers(*self.brokers, timeout_s=timeout_s)
        return 0.0

    def connect(self, node: int) -> contextlib.AbstractContextManager[RawConnection]:
        """A connection of `admin`."""
        return self.connect_as(ADMIN, node)

    @contextlib.contextmanager
    def connect_as(self, user: str, node: int, *, word: str | None = None) -> Iterator[RawConnection]:
        """A connection to a node that has logged in. Errors: OSError; Refused."""
        mechanism = "PLAIN" if node in self.controllers else SCRAM
        given = {"sasl_plain_username": user, "sasl_plain_password": password(user) if word is None else word}
        with self.log_in(node, mechanism, given) as connection:
            yield connection

    @contextlib.contextmanager
    def log_in(self, node: int, mechanism: str, given: Mapping[str, Any]) -> Iterator[RawConnection]:
        """A connection that has logged in with these settings of kbroker's own client. Errors: OSError; Refused."""
        address = (self.brokers | self.controllers)[node].address
        with contextlib.closing(RawConnection(address)) as connection:
            connection.socket = self._context.wrap_socket(
                connection.socket, server_hostname=address_of(address)[0], do_handshake_on_connect=True
            )
            _log_in(connection, mechanism, given)
            yield connection

    def client(self, user: str, broker: int | None = None) -> dict[str, Any]:
        """The settings of librdkafka for a user, with one bootstrap server or all."""
        return {
            "bootstrap.servers": self.bootstrap_servers if broker is None else self.brokers[broker].address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.place / "ca.pem"),
            "sasl.mechanism": SCRAM,
            "sasl.username": user,
            "sasl.password": password(user),
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.interval.ms": 500,
        }

    def kafka_python(self, user: str) -> dict[str, Any]:
        """The settings of kafka-python for a user."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(self.place / "ca.pem"),
            "sasl_mechanism": SCRAM,
            "sasl_plain_username": user,
            "sasl_plain_password": password(user),
        }

    def franz(self, user: str, broker: int) -> dict[str, Any]:
        """The parameters of each job of franz-go for a user, with one bootstrap server."""
        login = {"mechanism": SCRAM, "user": user, "password": password(user)}
        return {"servers": self.brokers[broker].address, "security": {"ca": str(self.place / "ca.pem"), **login}}

    def command_config(self, user: str) -> str:
        """The path of a properties file for Kafka's tools."""
        path = self.place / f"{user}.properties"
        login = f'{_MODULES}.scram.ScramLoginModule required username="{user}" password="{password(user)}";'
        lines = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": SCRAM,
            "sasl.jaas.config": login,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.place / "ca.pem"),
        }
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return str(path)

    # -- Changes through one node. Requests are repeated until the controller has got what they need.

    def allow(self, rules: Iterable[Rule], *, through: int, pattern: PatternType = PatternType.PREFIXED) -> None:
        """Create ACLs."""
        creations = [
            {
                "ResourceType": int(kind), "ResourceName": name, "ResourcePatternType": int(pattern),
                "Principal": f"User:{user}", "Host": "*", "Operation": int(operation),
                "PermissionType": int(Permission.ALLOW),
            }
            for user, operation, kind, name in rules
        ]  # fmt: skip
        with self.connect(through) as connection:
            answer = connection.call("CreateAcls", 3, {"Creations": creations})
        assert not any(one["ErrorCode"] for one in answer["Results"]), answer

    def forbid_all(self, user: str, *, through: int) -> None:
        """Delete the ACLs of a user."""
        every = {
            "ResourceTypeFilter": int(ResourceType.ANY), "ResourceNameFilter": None,
            "PatternTypeFilter": int(PatternType.ANY), "PrincipalFilter": f"User:{user}", "HostFilter": None,
            "Operation": int(Operation.ANY), "PermissionType": int(Permission.ANY),
        }  # fmt: skip
        with self.connect(through) as connection:
            answer = connection.call("DeleteAcls", 3, {"Filters": [every]})
        assert [one["ErrorCode"] for one in answer["FilterResults"]] == [0], answer
        assert answer["FilterResults"][0]["MatchingAcls"]

    # -- What holds on all brokers

    def code_of(self, topic: str, user: str, broker: int) -> int:
        """The error code of a topic in a broker's answer to Metadata."""
        with self.connect_as(user, broker) as connection:
            answer = connection.call("Metadata", 5, {"Topics": [{"Name": topic}], "AllowAutoTopicCreation": False})
        return int(answer["Topics"][0]["ErrorCode"])

    def refuses(self, user: str, broker: int, word: str) -> bool:
        """Whether a broker refuses a password."""
        try:
            with self.connect_as(user, broker, word=word):
                return False
        except Refused:
            return True

    def await_refusal(self, user: str) -> None:
        """Wait until no running broker lets a user in."""
        for broker in (each for each, node in self.brokers.items() if node.is_running):
            until(lambda: self.refuses(user, broker, password(user)), each_s=0.05, patience_s=60)  # noqa: B023

    def await_view(self, user: str, topic: str, code: int) -> None:
        """Wait until every running broker answers a user's Metadata of a topic with this error code."""

        def holds(broker: int) -> bool:
            try:
                return self.code_of(topic, user, broker) == code
            except Refused:  # the broker does not know the user yet
                return False

        for broker in (each for each, node in self.brokers.items() if node.is_running):
            until(lambda: holds(broker), each_s=0.05, patience_s=60)  # noqa: B023  (called here)


def _log_in(connection: RawConnection, mechanism: str, given: Mapping[str, Any]) -> None:
    tokens = exchange(mechanism, given, host="", nonce="n" * 24)
    chosen = connection.call("SaslHandshake", 1, {"Mechanism": mechanism})
    assert not chosen["ErrorCode"], chosen
    token = next(tokens)
    while True:
        answer = connection.call("SaslAuthenticate", 2, {"AuthBytes": token})
        if answer["ErrorCode"]:
            raise Refused(answer["ErrorMessage"])
        try:
            token = tokens.send(answer["AuthBytes"])
        except StopIteration:
            return
