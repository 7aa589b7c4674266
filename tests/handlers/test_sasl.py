"""Users of a whole node: SCRAM credentials of the metadata log, of the first start, and Java's settings."""

from __future__ import annotations

import json
from pathlib import Path

import jwt
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import ec

from kbroker.client.streaming import ConnectionClosed
from kbroker.config import Settings
from kbroker.config.values import ConfigError
from kbroker.runtime.net_ports import Stream
from kbroker.security.sasl.peer import PeerLogin, log_in, peer_login
from kbroker.security.sasl.scram import MECHANISMS, CredentialStore, salted_password
from kbroker.security.sasl.server import SaslServer
from kbroker.security.securing import NodeSecurity
from kbroker.storage.checkpoint import write_atomically
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import WALL_START_MS, MemoryEnv
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from wire.errors import ErrorCode
from wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from wire.messages.metadata import MetadataRequest

SECURED = {
    "listeners": "EXTERNAL://broker.example:9092",
    "listener.security.protocol.map": "EXTERNAL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.external.plain.sasl.jaas.config": 'PlainLoginModule required user_admin="admin-secret";',
}


async def logged_in(broker: MemoryBroker, mechanism: str, user: str, password: str) -> Client:
    stream: Stream = await broker.env.connect(*broker.address)
    login = PeerLogin(mechanism, {"sasl_plain_username": user, "sasl_plain_password": password})
    await log_in(broker.env, stream, login, host="broker")
    client = Client(stream)
    broker._clients.append(client)
    return client


def upsertion(user: str, mechanism: str, password: str) -> ScramCredentialUpsertion:
    one = MECHANISMS[mechanism]
    return ScramCredentialUpsertion(
        name=user,
        mechanism=one.number,
        iterations=4096,
        salt=b"salt",
        salted_password=salted_password(one, password, b"salt", 4096),
    )


async def test_a_user_is_created_logs_in_and_is_deleted() -> None:
    disk = SimulatedDisk()
    async with memory_broker(disk, settings=SECURED) as broker:
        admin = await logged_in(broker, "PLAIN", "admin", "admin-secret")
        for mechanism in MECHANISMS:
            request = AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion("al", mechanism, "pencil")])
            assert [one.error_code for one in (await admin.ask(request)).results] == [0]
            al = await logged_in(broker, mechanism, "al", "pencil")
            assert (await al.ask(MetadataRequest(topics=[]))).brokers
            with pytest.raises(ConnectionError, match="Authentication failed"):
                await logged_in(broker, mechanism, "al", "pen")
        (described,) = (await admin.ask(DescribeUserScramCredentialsRequest(users=None))).results
        assert [(one.mechanism, one.iterations) for one in described.credential_infos] == [(1, 4096), (2, 4096)]
    async with memory_broker(disk, settings=SECURED) as broker:  # they survive a restart
        await logged_in(broker, "SCRAM-SHA-512", "al", "pencil")
        admin = await logged_in(broker, "PLAIN", "admin", "admin-secret")
        deletion = ScramCredentialDeletion(name="al", mechanism=2)
        await admin.ask(AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[]))
        with pytest.raises(ConnectionError, match="Authentication failed"):
            await logged_in(broker, "SCRAM-SHA-512", "al", "pencil")


async def test_the_first_start_makes_users_of_a_file() -> None:
    disk = SimulatedDisk()
    write_atomically(disk, "/users.properties", b"al=pencil\nbo=sesame\n")
    settings = SECURED | {"kbroker.bootstrap.users.file": "/users.properties"}
    async with memory_broker(disk, settings=settings) as broker:
        await logged_in(broker, "SCRAM-SHA-256", "al", "pencil")
        await logged_in(broker, "SCRAM-SHA-512", "bo", "sesame")
    disk.unlink("/users.properties")
    async with memory_broker(disk, settings=settings) as broker:
        await logged_in(broker, "SCRAM-SHA-256", "bo", "sesame")


async def test_plain_with_scram_credentials_needs_no_password_in_a_file() -> None:
    disk = SimulatedDisk()
    write_atomically(disk, "/users.properties", b"al=pencil\n")
    settings = SECURED | {
        "kbroker.bootstrap.users.file": "/users.properties",
        "kbroker.sasl.plain.scram.credentials": "true",
    }
    del settings["listener.name.external.plain.sasl.jaas.config"]
    async with memory_broker(disk, settings=settings) as broker:
        await logged_in(broker, "PLAIN", "al", "pencil")
        with pytest.raises(ConnectionError, match="Authentication failed"):
            await logged_in(broker, "PLAIN", "al", "sesame")


async def test_x2_made_up_salts_cannot_be_computed_from_public_settings() -> None:
    settings = Settings.load(overrides=["sasl.enabled.mechanisms=SCRAM-SHA-256"], defaults={"log.dirs": "/none"})
    answers = []
    for seed in (1, 2):
        server = SaslServer(MemoryEnv(SimulatedDisk(), seed=seed), settings, "EXTERNAL", CredentialStore())
        step = server.begin("SCRAM-SHA-256").respond(b"n,,n=nobody,r=client")
        answers.append(step.token.partition(b",s=")[2])
    assert answers[0] != answers[1]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("sasl.enabled.mechanisms", "GSSAPI", "GSSAPI, which is not supported"),
        ("sasl.enabled.mechanisms", "", "needs a mechanism"),
        ("sasl.enabled.mechanisms", "OAUTHBEARER", "jwks.endpoint.url is missing"),
        ("listener.name.external.plain.sasl.jaas.config", "ScramLoginModule required;", "needs PlainLoginModule"),
        ("listener.name.external.plain.sasl.jaas.config", "PlainLoginModule required", "semicolon"),
        ("listener.name.external.plain.sasl.jaas.config", "PlainLoginModule;", "a flag"),
        ("listener.name.external.plain.sasl.jaas.config", 'PlainLoginModule required user_a"x";', "name="),
        ("kbroker.sasl.plain.without.tls", "false", "over the network"),
    ],
)
def test_a_listener_that_cannot_work_is_refused_at_the_start(key: str, value: str, reason: str) -> None:
    settings = Settings.load(overrides=[f"{name}={text}" for name, text in (SECURED | {key: value}).items()])
    with pytest.raises(ConfigError, match=reason) as raised:
        NodeSecurity(MemoryEnv(SimulatedDisk()), settings)
    assert "admin-secret" not in str(raised.value)


def test_a_mechanism_that_nobody_implements_is_refused() -> None:
    with pytest.raises(ConfigError, match="CRAM-MD5 is not supported"):
        Settings.load(overrides=["sasl.enabled.mechanisms=PLAIN,CRAM-MD5"])


def test_a_node_logs_in_with_the_user_of_its_login_module() -> None:
    given = SECURED | {
        "listener.name.external.plain.sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="a=\\"b;"'
            ' user_admin="x";'
        ),
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
    }
    settings = Settings.load(overrides=[f"{name}={text}" for name, text in given.items()])
    login = peer_login(settings, "EXTERNAL", is_controller=False)
    assert login == ("PLAIN", {"sasl_plain_username": "admin", "sasl_plain_password": 'a="b;'}, "")
    with pytest.raises(ConfigError, match=r"sasl.mechanism.controller.protocol=GSSAPI is not supported"):
        peer_login(settings, "EXTERNAL", is_controller=True)


async def test_users_and_mechanisms_change_while_the_broker_runs() -> None:
    key = "listener.name.external.plain.sasl.jaas.config"

    async def change(admin: Client, name: str, value: str) -> int:
        configs = [AlterableConfig(name=name, config_operation=0, value=value)]
        resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=configs)
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        code: int = (await admin.ask(request)).responses[0].error_code
        return code

    async with memory_broker(settings=SECURED) as broker:
        admin = await logged_in(broker, "PLAIN", "admin", "admin-secret")
        assert await change(admin, key, "PlainLoginModule required") == ErrorCode.INVALID_REQUEST
        assert await change(admin, key, 'PlainLoginModule required user_bo="x" username="bo" password="x";') == 0
        await logged_in(broker, "PLAIN", "bo", "x")
        with pytest.raises(ConnectionError, match="Authentication failed"):
            await logged_in(broker, "PLAIN", "admin", "admin-secret")
        assert await change(admin, "sasl.mechanism.inter.broker.protocol", "PLAIN") == 0
        assert broker.node.security is not None
        peer = broker.node.security.inter_broker
        assert peer is not None
        assert peer.sasl == ("PLAIN", {"sasl_plain_username": "bo", "sasl_plain_password": "x"}, "")
        assert await change(admin, "listener.name.external.sasl.enabled.mechanisms", "SCRAM-SHA-256") == 0
        with pytest.raises(ConnectionError, match="offers SASL SCRAM-SHA-256, not PLAIN"):
            await logged_in(broker, "PLAIN", "bo", "x")


async def test_a_signed_token_logs_in_until_it_expires(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    keys = {"keys": [{**jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "k"}]}
    disk = SimulatedDisk()
    write_atomically(disk, "/keys.json", json.dumps(keys).encode())
    settings = SECURED | {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.external.sasl.oauthbearer.jwks.endpoint.url": "file:///keys.json",
        "sasl.oauthbearer.expected.audience": "kafka",
    }
    now_s = WALL_START_MS // 1000

    async def log_in_with(broker: MemoryBroker, **claims: object) -> Client:
        given = {"sub": "al", "aud": "kafka", "iat": now_s, "exp": now_s + 60, **claims}
        path = tmp_path / "token"
        path.write_text(jwt.encode(given, key, algorithm="ES256", headers={"kid": "k"}))
        stream: Stream = await broker.env.connect(*broker.address)
        await log_in(
            broker.env, stream, PeerLogin("OAUTHBEARER", {"sasl_oauthbearer_token_file": str(path)}), host="broker"
        )
        broker._clients.append(client := Client(stream))
        return client

    async with memory_broker(disk, settings=settings) as broker:
        client = await log_in_with(broker)
        assert (await client.ask(MetadataRequest(topics=[]))).brokers
        with pytest.raises(ConnectionError, match="Authentication failed"):
            await log_in_with(broker, aud="other")
        await trio.sleep(61)
        with pytest.raises(ConnectionClosed):
            await client.ask(MetadataRequest(topics=[]))
