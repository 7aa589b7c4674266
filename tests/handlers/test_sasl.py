"""Users of a whole node: SCRAM credentials of the metadata log, of the first start, and Java's settings."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import jwt
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import ec

from kbroker.client.streaming import ConnectionClosed
from kbroker.config import Settings
from kbroker.config.sasl import SCRAM_SECRET
from kbroker.config.values import ConfigError
from kbroker.runtime.net_ports import Stream
from kbroker.security.sasl import UnknownKey
from kbroker.security.sasl.peer import PeerLogin, log_in, peer_login
from kbroker.security.sasl.scram import MECHANISMS, CredentialStore, salted_password
from kbroker.security.sasl.server import SaslServer
from kbroker.security.securing import NodeSecurity
from kbroker.storage.checkpoint import write_atomically
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import WALL_START_MS, MemoryEnv, MemoryThreads
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from wire.errors import ErrorCode
from wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
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


async def test_a_user_is_created_logs_in_and_is_deleted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kbroker")
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
    fields = [(line.message, vars(line).get("kbroker_fields", {})) for line in caplog.records]
    changes = [(text, str(one["principal"]), one["user"], one["mechanism"]) for text, one in fields if "user" in one]
    set_by_admin = ("credential set", "User:admin", "al")
    assert changes == [
        (*set_by_admin, "SCRAM-SHA-256"),
        (*set_by_admin, "SCRAM-SHA-512"),
        ("credential deleted", *set_by_admin[1:], "SCRAM-SHA-512"),
    ]


async def test_the_first_start_makes_users_of_a_file() -> None:
    disk = SimulatedDisk()
    write_atomically(disk, "/users.properties", b"al=pencil\nbo=sesame\n")
    settings = SECURED | {"kbroker.bootstrap.users.file": "/users.properties"}
    async with memory_broker(disk, settings=settings) as broker:
        await logged_in(broker, "SCRAM-SHA-256", "al", "pencil")
        await logged_in(broker, "SCRAM-SHA-512", "bo", "sesame")
        salts = [record.salt for record in broker.node.broker.image.scram_credentials.values()]
        assert len(set(salts)) == 4
        assert all(re.fullmatch(b"[1-9a-z][0-9a-z]{19,25}", salt) for salt in salts), "not as Kafka's tools make them"
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


def made_up_salt(server: SaslServer) -> bytes:
    token = server.begin("SCRAM-SHA-256").respond(b"n,,n=nobody,r=client").token
    return token.partition(b",s=")[2]


def salt_on(broker: MemoryBroker, listener: str) -> bytes:
    assert broker.node.security is not None
    server = broker.node.security.of(listener).sasl
    assert server is not None
    return made_up_salt(server)


async def test_x2_made_up_salts_cannot_be_computed_from_public_settings() -> None:
    settings = Settings.load(overrides=["sasl.enabled.mechanisms=SCRAM-SHA-256"], defaults={"log.dirs": "/none"})
    answers = []
    for secret in (b"one", b"another"):
        server = SaslServer(MemoryEnv(SimulatedDisk()), settings, "EXTERNAL", CredentialStore(secret))
        answers.append(made_up_salt(server))
    assert answers[0] != answers[1]


async def test_x2_made_up_salts_are_the_same_everywhere_and_after_a_restart() -> None:
    disk = SimulatedDisk()
    settings = SECURED | {
        "listeners": "EXTERNAL://broker.example:9092,INTERNAL://broker.example:9094",
        "listener.security.protocol.map": "EXTERNAL:SASL_PLAINTEXT,INTERNAL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "listener.name.internal.plain.sasl.jaas.config": 'PlainLoginModule required user_admin="x";',
        "listener.name.internal.scram-sha-256.sasl.jaas.config": (
            'ScramLoginModule required username="broker" password="of the brokers";'
        ),
    }
    async with memory_broker(disk, settings=settings) as broker:
        admin = await logged_in(broker, "PLAIN", "admin", "admin-secret")
        first, second = upsertion("al", "SCRAM-SHA-256", "pencil"), upsertion("bo", "SCRAM-SHA-256", "sesame")
        await admin.ask(AlterUserScramCredentialsRequest(deletions=[], upsertions=[first]))
        await logged_in(broker, "SCRAM-SHA-256", "al", "pencil")
        salt = salt_on(broker, "EXTERNAL")
        assert salt_on(broker, "INTERNAL") == salt
        await admin.ask(AlterUserScramCredentialsRequest(deletions=[], upsertions=[second]))
        await logged_in(broker, "SCRAM-SHA-256", "bo", "sesame")
        assert salt_on(broker, "EXTERNAL") == salt
        asked = DescribeConfigsResource(resource_type=4, resource_name="", configuration_keys=None)
        (described,) = (await admin.ask(DescribeConfigsRequest(resources=[asked]))).results
        assert [(one.name, one.value, one.is_sensitive) for one in described.configs] == [(SCRAM_SECRET, None, True)]
    async with memory_broker(disk, settings=settings) as broker:
        assert salt_on(broker, "EXTERNAL") == salt


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("sasl.enabled.mechanisms", "GSSAPI", "GSSAPI, which is not supported"),
        ("sasl.enabled.mechanisms", "", "needs a mechanism"),
        ("sasl.enabled.mechanisms", "OAUTHBEARER", "jwks.endpoint.url is missing"),
        ("listener.name.external.plain.sasl.jaas.config", "ScramLoginModule required;", "needs PlainLoginModule"),
        ("listener.name.external.plain.sasl.jaas.config", "PlainLoginModule required", "semicolon"),
        ("listener.name.external.plain.sasl.jaas.config", "PlainLoginModule;", "one of required"),
        ("listener.name.external.plain.sasl.jaas.config", "PlainLoginModule requird;", "one of required"),
        ("listener.name.external.plain.sasl.jaas.config", 'PlainLoginModule required user_a"x";', "name="),
        ("kbroker.sasl.plain.without.tls", "false", "over the network"),
    ],
)
def test_a_listener_that_cannot_work_is_refused_at_the_start(key: str, value: str, reason: str) -> None:
    settings = Settings.load(overrides=[f"{name}={text}" for name, text in (SECURED | {key: value}).items()])
    with pytest.raises(ConfigError, match=reason) as raised:
        NodeSecurity(MemoryEnv(SimulatedDisk()), settings)
    assert "admin-secret" not in str(raised.value)


def test_a_login_module_without_the_listeners_prefix_is_not_silently_ignored() -> None:
    given = SECURED | {"sasl.jaas.config": SECURED["listener.name.external.plain.sasl.jaas.config"]}
    del given["listener.name.external.plain.sasl.jaas.config"]
    settings = Settings.load(overrides=[f"{name}={text}" for name, text in given.items()])
    with pytest.raises(ConfigError, match=r"is missing \(sasl.jaas.config has no effect without this prefix\)"):
        NodeSecurity(MemoryEnv(SimulatedDisk()), settings)


@pytest.mark.parametrize(
    "key",
    ["sasl.server.callback.handler.class", "sasl.oauthbearer.jwt.validator.class", "ssl.engine.factory.class"],
)
def test_a_class_that_would_decide_who_logs_in_is_refused(key: str) -> None:
    """Without it other clients could log in than the operator means."""
    for name in (key, f"listener.name.external.oauthbearer.{key}", f"listener.name.external.{key}"):
        with pytest.raises(ConfigError, match=r"com\.example\.LdapCheck"):
            Settings.load(overrides=[f"{name}=com.example.LdapCheck"])


def test_kafkas_own_class_for_tokens_is_taken() -> None:
    name = "listener.name.external.oauthbearer.sasl.server.callback.handler.class"
    kafkas = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
    Settings.load(overrides=[f"{key}={text}" for key, text in (SECURED | {name: kafkas}).items()])


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


async def test_login_modules_come_from_a_file_of_java(tmp_path: Path) -> None:
    file = tmp_path / "jaas.conf"
    file.write_text(
        'KafkaServer { PlainLoginModule required username="al" password="al-secret" user_al="al-secret"; };\n'
        'inner.KafkaServer { PlainLoginModule required username="bo" password="bo-secret" user_bo="bo-secret"; };\n'
    )
    given = {key: text for key, text in SECURED.items() if "jaas" not in key} | {
        "kbroker.jaas.file": str(file),
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
    }
    async with memory_broker(settings=given) as broker:
        await logged_in(broker, "PLAIN", "al", "al-secret")
        with pytest.raises(ConnectionError, match="refuses the login"):
            await logged_in(broker, "PLAIN", "bo", "bo-secret")
    settings = Settings.load(overrides=[f"{key}={text}" for key, text in given.items()])
    for later in (settings, settings.with_dynamic({}, {})):
        users = [
            peer_login(later, name, is_controller=False).credentials["sasl_plain_username"] for name in ("A", "INNER")
        ]
        assert users == ["al", "bo"]
    assert "al-secret" not in repr(settings)
    async with memory_broker(settings=SECURED | given) as broker:  # the listener's own setting is stronger
        await logged_in(broker, "PLAIN", "admin", "admin-secret")
        with pytest.raises(ConnectionError, match="refuses the login"):
            await logged_in(broker, "PLAIN", "al", "al-secret")
    file.unlink()
    with pytest.raises(ConfigError, match=r"kbroker.jaas.file: cannot read .*jaas.conf: No such file"):
        Settings.load(overrides=[f"{key}={text}" for key, text in given.items()])
    Settings.load(overrides=[f"kbroker.jaas.file={file}"])  # as in Kafka, nothing reads it without a listener with SASL


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


async def test_checks_of_dynamic_settings_make_no_threads() -> None:
    class Counting(MemoryEnv):
        pools = 0

        def threads(self, max_threads: int) -> MemoryThreads:
            self.pools += 1
            return super().threads(max_threads)

    env = Counting(SimulatedDisk())
    settings = Settings.load(overrides=[f"{name}={text}" for name, text in SECURED.items()])
    security = NodeSecurity(env, settings)
    before = env.pools
    for _ in range(3):
        security.check(settings)
        security.request_renewal(settings)
    assert env.pools == before


async def test_a_change_of_other_settings_keeps_the_keys_of_the_issuer() -> None:
    disk = CountingDisk()
    write_atomically(disk, "/keys.json", b'{"keys": []}')
    url = "listener.name.external.sasl.oauthbearer.jwks.endpoint.url"
    given = SECURED | {"sasl.enabled.mechanisms": "OAUTHBEARER", url: "file:///keys.json"}

    def loaded(**changed: str) -> Settings:
        return Settings.load(overrides=[f"{name}={text}" for name, text in (given | changed).items()])

    server = SaslServer(MemoryEnv(disk), loaded(), "EXTERNAL", CredentialStore())

    async def log_in() -> None:
        """With a token whose key is unknown, so that it asks for the keys unless it has just done so."""
        head, claims = (
            base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in ({"alg": "ES256", "kid": "k"}, {})
        )
        text = f"n,,\x01auth=Bearer {head}.{claims}.AAAA\x01\x01"
        step = await server.respond(server.begin("OAUTHBEARER"), text.encode(), "10.0.0.1")
        assert isinstance(step.refusal, UnknownKey)

    await log_in()
    assert disk.opened == ["/keys.json"]
    for max_ms in ("1000", "2000"):
        server.check(loaded(**{"connections.max.reauth.ms": max_ms}))
        server.apply(loaded(**{"connections.max.reauth.ms": max_ms}))
        await log_in()
    assert disk.opened == ["/keys.json"]
    with pytest.raises(ConfigError, match="does not exist"):
        server.check(loaded(**{url: "file:///others.json"}))
    write_atomically(disk, "/others.json", b'{"keys": []}')
    server.apply(loaded(**{url: "file:///others.json"}))
    await log_in()
    assert disk.opened == ["/keys.json", "/others.json"]


class CountingDisk(SimulatedDisk):
    """Notes which files are read."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def open(self, path: str, **how: Any) -> Any:
        if not how.get("writable", True):
            self.opened.append(path)
        return super().open(path, **how)


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
        with pytest.raises(ConnectionError, match="invalid_token"):
            await log_in_with(broker, aud="other")
        await trio.sleep(61)
        with pytest.raises(ConnectionClosed):
            await client.ask(MetadataRequest(topics=[]))
