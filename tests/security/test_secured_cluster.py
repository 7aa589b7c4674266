"""Nodes that use TLS for all their listeners and connections, in memory."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kbroker.client.streaming import ConnectionClosed
from kbroker.config import Settings
from kbroker.config.tls import TlsSettings
from kbroker.config.values import Secret
from kbroker.runtime.env import RealEnv, RealThreads
from kbroker.security.sasl.peer import PeerLogin
from kbroker.security.securing import NodeSecurity
from kbroker.security.server_tls import ServerTls
from kbroker.testing.cluster import memory_cluster
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
