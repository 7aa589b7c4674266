"""What docs/security.md and docs/quotas.md describe besides TLS, SCRAM and ACLs: a secured cluster with all of it, and
checks that it works.

The tier is in MinIO over TLS, or in a directory where there is no MinIO, except in CI.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from compat.brokers import free_port, in_ci
from compat.clients.tokens import Issuer
from compat.cluster.limited import SETTINGS as QUOTAS
from compat.cluster.secured import NODE, SCRAM, Refused, SecuredCluster, password
from compat.cluster.tiered_load import tier_settings
from compat.kafka.libraries import Unavailable
from compat.minio import MinioServer, binary
from compat.waiting import until
from tests.security.certificates import Authority

PAGES_TOKEN: Final = "canary-token-of-all-pages"
SECRET_KEY: Final = "rsm.config.secret.key"
KEY_STORE: Final = "listener.name.external.ssl.keystore.location"
BROKER_RESOURCE, SET = 4, 0


class Everything(SecuredCluster):
    """A secured cluster with everything switched on. Shape: tier has the settings of the tier."""

    def __init__(self, place: Path, tier: dict[str, str]) -> None:
        self._issuer = Issuer(place)
        (place / "pages.token").write_text(PAGES_TOKEN)
        logins = {name: text for name, text in self._issuer.settings.items() if name != "sasl.enabled.mechanisms"}
        given = {
            **tier,
            **QUOTAS,
            **logins,
            "listener.name.external.sasl.enabled.mechanisms": f"{SCRAM},PLAIN,OAUTHBEARER",
            "listener.name.external.kbroker.sasl.plain.scram.credentials": "true",
            # Sessions of nodes end several times in a test, and those of clients that stay for the whole test.
            "connections.max.reauth.ms": "10000",
            "listener.name.external.connections.max.reauth.ms": "20000",
            "kbroker.ssl.crl.location": str(place / "crl.pem"),
            "kbroker.http.security.protocol": "SSL",
            "kbroker.http.token.file": str(place / "pages.token"),
        }
        super().__init__(place, settings=given, flags=("--profile", "hardened"))
        (place / "crl.pem").write_text(self.authority.revoke())
        for node in self.nodes:
            node.settings["kbroker.http.listener"] = f"127.0.0.1:{free_port()}"

    def check_logins(self, user: str, topic: str) -> None:
        """A user logs in at each broker with each mechanism, and is the same one."""
        token = self.place / "token"
        by_token = {"sasl_oauthbearer_token_file": str(token)}
        for broker in self.brokers:
            for word, is_right in ((password(user), True), ("guess", False)):
                given = {"sasl_plain_username": user, "sasl_plain_password": word}
                assert self._sees(broker, "PLAIN", given, topic) == is_right
            for lifetime_s, is_right in ((60, True), (-60, False)):
                token.write_text(self._issuer.token(user, lifetime_s))
                assert self._sees(broker, "OAUTHBEARER", by_token, topic) == is_right

    def _sees(self, broker: int, mechanism: str, given: dict[str, str], topic: str) -> bool:
        try:
            with self.log_in(broker, mechanism, given) as connection:
                answer = connection.call("Metadata", 5, {"Topics": None, "AllowAutoTopicCreation": False})
        except Refused:
            return False
        assert topic in [one["Name"] for one in answer["Topics"]]
        return True

    def check_pages(self) -> None:
        """Each node serves its pages over TLS to those who have the token."""
        context = ssl.create_default_context(cafile=str(self.place / "ca.pem"))
        for node in self.nodes:
            address = node.settings["kbroker.http.listener"]
            for token, status in ((PAGES_TOKEN, 200), ("", 401), (PAGES_TOKEN[:-1], 401)):
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                request = urllib.request.Request(f"https://{address}/state", headers=headers)
                try:
                    with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                        got = answer.status
                except urllib.error.HTTPError as error:
                    got = error.code
                assert got == status, node.node_id

    def check_audit(self, user: str, topic: str) -> None:
        """Each broker has a line about a user who may not see a topic."""
        for broker in self.brokers.values():
            denied = [line for line in broker.log().splitlines() if f" denied principal=User:{user} " in line]
            assert [line for line in denied if f" resource=TOPIC:{topic} " in line], broker.log_tail()

    def check_that_no_secret_was_logged(self, *users: str) -> None:
        """No password, token or key is in a log of a node."""
        secrets = [PAGES_TOKEN, (self.place / "token").read_text(), *map(password, (NODE, *users))]
        for node in self.nodes:
            log = node.log()
            assert log
            own = [node.settings[SECRET_KEY]] if SECRET_KEY in node.settings else []
            assert [secret for secret in [*secrets, *own] if secret in log] == [], node.node_id

    def change_certificate_of_clients(self) -> None:
        """By a dynamic setting; the other listeners keep theirs."""
        made = self.authority.sign()
        path = made.write(self.place / "of-clients.pem")
        for number, broker in self.brokers.items():
            change = {"Name": KEY_STORE, "ConfigOperation": SET, "Value": path}
            resource = {"ResourceType": BROKER_RESOURCE, "ResourceName": str(number), "Configs": [change]}
            with self.connect(number) as connection:
                answer = connection.call("IncrementalAlterConfigs", 1, {"Resources": [resource], "ValidateOnly": False})
            assert [one["ErrorCode"] for one in answer["Responses"]] == [0], answer
            until(lambda: self.certificate(broker.address) == made.der, each_s=0.1, patience_s=60)  # noqa: B023
            internal, _ = broker.settings["listeners"].split(",")
            assert self.certificate(internal.partition("://")[2]) != made.der


@contextmanager
def everything(place: Path) -> Iterator[Everything]:
    """A cluster that has not been started, and its store."""
    with _tier(place) as tier, Everything(place, tier) as cluster:
        assert isinstance(cluster, Everything)
        yield cluster


@contextmanager
def _tier(place: Path) -> Iterator[dict[str, str]]:
    settings = tier_settings(place)
    try:
        binary()
    except Unavailable:
        if in_ci():
            raise
        yield settings
        return
    authority = Authority("Authority of the store")
    signed = authority.sign()
    files = {"store.pem": signed.chain, "store.key": signed.key_pem(), "store-ca.pem": authority.chain}
    for name, text in files.items():
        (place / name).write_text(text)
    server = MinioServer(place / "minio", tls=(place / "store.pem", place / "store.key"))
    server.start()
    try:
        plugin = server.settings(bucket_create="true", ca_file=str(place / "store-ca.pem"))
        del settings["rsm.config.dir"]
        yield {
            **settings,
            "remote.log.storage.manager.class.name": "minio",
            **{f"rsm.config.{key}": text for key, text in plugin.items()},
        }
    finally:
        server.kill()
