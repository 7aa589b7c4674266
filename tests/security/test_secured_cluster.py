"""Nodes that use TLS for all their listeners and connections, in memory."""

from __future__ import annotations

import json
from pathlib import Path

import jwt
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import ec
from trio.testing import MockClock

from kbroker.client.streaming import ConnectionClosed
from kbroker.config import Settings
from kbroker.config.tls import TlsSettings
from kbroker.config.values import ConfigError, Secret
from kbroker.runtime.env import RealEnv, RealThreads
from kbroker.security.sasl.peer import PeerLogin
from kbroker.security.securing import NodeSecurity
from kbroker.security.server_tls import ServerTls
from kbroker.testing.cluster import memory_cluster
from kbroker.testing.env import WALL_START_MS
from tests.security.certificates import Authority, Signed
from wire.messages.metadata import MetadataRequest

AUTHORITY = Authority()
NODE = AUTHORITY.sign(names=("node-1", "node-2", "node-3", "node-100"))
SSL = 1


def inline(pem: str) -> str:
    """A text in PEM as one line of a properties file."""
    return pem.replace("\n", "\\n")


def settings(own: Signed = NODE) -> dict[str, object]:
    """Settings of nodes that use TLS everywhere, and want certificates of their clients."""
    return {
        "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.truststore.type": "PEM",
        "ssl.keystore.key": inline(own.key_pem()),
        "ssl.keystore.certificate.chain": inline(own.chain),
        "ssl.truststore.certificates": inline(AUTHORITY.chain),
        "ssl.client.auth": "required",
    }


def client_tls(own: Signed = NODE) -> ServerTls:
    """The TLS of a client with a certificate."""
    env = RealEnv()
    given = TlsSettings(
        ssl_keystore_type="PEM",
        ssl_truststore_type="PEM",
        ssl_keystore_key=Secret(own.key_pem()),
        ssl_keystore_certificate_chain=Secret(own.chain),
        ssl_truststore_certificates=Secret(AUTHORITY.chain),
    )
    return ServerTls(env, "client", given, env.threads(1), accepts=False)


def test_all_listeners_share_the_threads_for_handshakes() -> None:
    """Otherwise a flood of handshakes on each of several listeners would take several times the threads."""
    pools = []

    class Counting(RealEnv):
        def threads(self, max_threads: int) -> RealThreads:
            pools.append(max_threads)
            return super().threads(max_threads)

    given = {
        **settings(),
        "listeners": "A://localhost:0,B://localhost:0",
        "listener.security.protocol.map": "A:SSL,B:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": "A",
        "kbroker.http.listener": "localhost:0",
        "kbroker.http.security.protocol": "SSL",
        "kbroker.max.tls.handshakes": "7",
    }
    security = NodeSecurity(Counting(), Settings.load(overrides=[f"{key}={value}" for key, value in given.items()]))
    assert security.of("A").tls is not security.of("B").tls
    assert security.pages is not None
    assert pools == [7]


def test_clients_that_every_public_authority_can_admit_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    given = {
        **settings(),
        "listeners": "A://localhost:0,B://localhost:0,C://localhost:0",
        "listener.security.protocol.map": "A:SSL,B:SSL,C:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": "A",
        "listener.name.a.ssl.client.auth": "required",
        "listener.name.b.ssl.client.auth": "required",
        "listener.name.b.ssl.truststore.certificates": "",
        "listener.name.c.ssl.client.auth": "none",
        "listener.name.c.ssl.truststore.certificates": "",
    }
    NodeSecurity(RealEnv(), Settings.load(overrides=[f"{key}={value}" for key, value in given.items()]))
    (line,) = (vars(record) for record in caplog.records if "public authority" in record.message)
    assert line["kbroker_fields"] == {"listener": "B"}


async def test_three_brokers_replicate_over_tls(autojump_clock: MockClock) -> None:
    async with memory_cluster(brokers=3, settings=settings(), has_tier=False) as cluster:
        plain = await cluster.connect(1)
        with pytest.raises(ConnectionClosed):
            await plain.ask(MetadataRequest(topics=[]))
        cluster.tls = client_tls()
        await cluster.create_topic("orders", replicas=3)
        assert await cluster.produce("orders", b"a", b"b") == [0, 1]
        await cluster.until(lambda: not cluster.problems())
        image = cluster.nodes[1].image
        assert image is not None
        registered = [endpoint for one in image.brokers.values() for endpoint in one.endpoints.values()]
        assert [endpoint.security_protocol for endpoint in registered] == [SSL] * 3
        await cluster.leader("orders").kill()
        assert await cluster.produce("orders", b"c") == [2]
        assert [record.value for record in await cluster.records("orders")] == [b"a", b"b", b"c"]


async def test_three_brokers_log_in_over_tls_at_each_other_and_at_the_controller(autojump_clock: MockClock) -> None:
    module = 'required username="node" password="p" user_node="p" user_al="q";'
    given = settings() | {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:SASL_SSL",
        "ssl.client.auth": "none",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": f"PlainLoginModule {module}",
        "listener.name.controller.plain.sasl.jaas.config": f"PlainLoginModule {module}",
        "connections.max.reauth.ms": "60000",
    }
    async with memory_cluster(brokers=3, settings=given, has_tier=False) as cluster:
        cluster.tls = client_tls()
        with pytest.raises(ConnectionClosed):
            await (await cluster.connect(1)).ask(MetadataRequest(topics=[]))
        cluster.login = PeerLogin("PLAIN", {"sasl_plain_username": "al", "sasl_plain_password": "q"})
        await cluster.create_topic("orders", replicas=3)
        assert await cluster.produce("orders", b"a", b"b") == [0, 1]
        await cluster.until(lambda: not cluster.problems())
        await trio.sleep(100)  # sessions end, and the nodes connect again
        assert await cluster.produce("orders", b"c") == [2]
        await cluster.until(lambda: not cluster.problems())
        await cluster.leader("orders").kill()
        assert await cluster.produce("orders", b"d") == [3]
        assert [record.value for record in await cluster.records("orders")] == [b"a", b"b", b"c", b"d"]


class TokenFile:
    """Signs tokens for the nodes, and puts them where the nodes read them. Shape: keys are for the nodes' disks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        self.keys = json.dumps({"keys": [{**public, "kid": "k"}]}).encode()

    def write(self, *, until_s: int, audience: str = "kafka") -> None:
        """Replace the token. Units: until_s counts from the start of the cluster."""
        start_s = WALL_START_MS // 1000
        claims = {"sub": "node", "aud": audience, "iat": start_s, "exp": start_s + until_s}
        self.path.write_text(jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": "k"}))


async def test_brokers_log_in_with_the_newest_token_of_a_file(autojump_clock: MockClock, tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "token")
    given = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        "listener.name.plaintext.oauthbearer.sasl.oauthbearer.token.endpoint.url": tokens.path.as_uri(),
        "listener.name.controller.oauthbearer.sasl.jaas.config": (
            f'OAuthBearerLoginModule required tokenFile="{tokens.path}";'
        ),
        "sasl.oauthbearer.jwks.endpoint.url": "file:///keys.json",
        "sasl.oauthbearer.expected.audience": "kafka",
    }
    tokens.write(until_s=60)
    async with memory_cluster(brokers=3, settings=given, files={"/keys.json": tokens.keys}, has_tier=False) as cluster:
        cluster.login = PeerLogin("OAUTHBEARER", {"sasl_oauthbearer_token_file": str(tokens.path)})
        await cluster.create_topic("orders", replicas=3)
        assert await cluster.produce("orders", b"a") == [0]
        tokens.write(until_s=9_000)
        await trio.sleep(100)  # the sessions of the first token have ended
        assert await cluster.produce("orders", b"b") == [1]
        await cluster.wait_healthy()

        stranger = cluster.nodes[3]
        await stranger.stop()
        tokens.write(until_s=9_000, audience="others")
        await stranger.start(waits=False)
        await trio.sleep(20)
        assert stranger.is_running
        assert not stranger.is_serving
        with pytest.raises(ConnectionError, match="invalid_token"):
            await cluster.connect(1)
        tokens.write(until_s=9_000)
        await cluster.wait_healthy()
        assert await cluster.produce("orders", b"c") == [2]
        assert [record.value for record in await cluster.records("orders")] == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, r"listener.name.a.oauthbearer.sasl.jaas.config: .* needs a tokenFile there, or sasl.oauthbearer.token"),
        (
            {"sasl.oauthbearer.token.endpoint.url": "https://issuer/token"},
            r"sasl.oauthbearer.token.endpoint.url must be file:PATH",
        ),
    ],
)
def test_a_node_that_logs_in_by_oauthbearer_starts_only_with_a_token_file(
    given: dict[str, str], why: str, tmp_path: Path
) -> None:
    (tmp_path / "keys.json").write_text('{"keys": []}')
    given = {
        "listeners": "A://localhost:0",
        "listener.security.protocol.map": "A:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "A",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{tmp_path}/keys.json",
        **given,
    }
    with pytest.raises(ConfigError, match=why):
        NodeSecurity(RealEnv(), Settings.load(overrides=[f"{key}={value}" for key, value in given.items()]))
