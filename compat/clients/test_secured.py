"""Clients over SASL_SSL with an authorizer: franz-go, librdkafka, kafka-python, aiokafka and kcat; OAUTHBEARER."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.net.sasl.oauth import AbstractTokenProvider

from compat import secured
from compat.brokers import in_ci
from compat.clients import franz
from compat.clients.tokens import Issuer
from compat.secured import PASSWORD, USER, Secured

PARTITIONS, COUNT = 3, 60
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
INVALID = '{"status":"invalid_token"}'
LONG_EXPIRED_S = -100
TOKEN_S, DURATION_S = 4, 5
"""A session lasts two seconds."""


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def broker(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured.started(tmp_path_factory.mktemp("secured"), issuer.settings) as made:
        yield made


@pytest.fixture
def topic(broker: Secured, new_topic_name: Callable[[str], str]) -> str:
    return create(broker, new_topic_name("secured"))


def create(broker: Secured, name: str, partitions: int = PARTITIONS) -> str:
    admin = AdminClient(broker.librdkafka())
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(20)
    return name


class Token(AbstractTokenProvider):  # type: ignore[misc]
    """For kafka-python."""

    def __init__(self, issuer: Issuer, lifetime_s: float) -> None:
        super().__init__()
        self._issuer, self._lifetime_s = issuer, lifetime_s

    def token(self) -> str:
        return self._issuer.token(USER, self._lifetime_s)


class AioToken(AioTokenProvider):  # type: ignore[misc]
    """For aiokafka."""

    def __init__(self, issuer: Issuer, lifetime_s: float) -> None:
        super().__init__()
        self._issuer, self._lifetime_s = issuer, lifetime_s

    async def token(self) -> str:
        return self._issuer.token(USER, self._lifetime_s)


def librdkafka(broker: Secured, issuer: Issuer, mechanism: str, *, lifetime_s: float = 3600) -> dict[str, object]:
    """Settings of librdkafka, which asks for another token every two seconds."""
    settings = broker.librdkafka(mechanism)
    if mechanism == "OAUTHBEARER":
        settings["oauth_cb"] = lambda _: (issuer.token(USER, lifetime_s), time.time() + 2)
    return settings


def kafka_python(broker: Secured, issuer: Issuer, mechanism: str, *, lifetime_s: float = 3600) -> dict[str, object]:
    """Settings of kafka-python."""
    settings = broker.kafka_python(mechanism)
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = Token(issuer, lifetime_s)
    return settings


def aio(broker: Secured, issuer: Issuer, mechanism: str, *, lifetime_s: float = 3600) -> dict[str, object]:
    """Settings of aiokafka."""
    settings = broker.kafka_python(mechanism)
    settings["ssl_context"] = ssl.create_default_context(cafile=settings.pop("ssl_cafile"))
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = AioToken(issuer, lifetime_s)
    return settings


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_franz_go_writes_and_reads(broker: Secured, issuer: Issuer, topic: str, mechanism: str) -> None:
    security = broker.franz(mechanism, token=issuer.token(USER))
    common = {"servers": broker.bootstrap_servers, "topic": topic, "count": COUNT, "security": security}
    franz.run("produce", codec="zstd", **common)
    found = franz.run("consume", **common)
    assert sorted(value for part in found.values() for value in part) == sorted(f"zstd-{i}" for i in range(COUNT))


def test_franz_go_uses_groups_transactions_and_administration(
    broker: Secured, topic: str, new_topic_name: Callable[[str], str]
) -> None:
    common = {"servers": broker.bootstrap_servers, "security": broker.franz()}
    franz.run("produce", topic=topic, codec="none", count=COUNT, **common)
    expected = sorted(f"none-{number}" for number in range(COUNT))
    found = franz.run("group", topic=topic, group=topic, protocol="classic", count=COUNT, **common)
    assert sorted(found) == expected
    copies = create(broker, new_topic_name("copies"), 1)
    franz.run(
        "transact",
        topic=topic,
        output=copies,
        group=copies,
        protocol="classic",
        id=copies,
        count=COUNT,
        seed=1,
        **common,
    )
    found = franz.run("consume", topic=copies, count=COUNT, isolation="read_committed", **common)
    assert sorted(value.lower() for part in found.values() for value in part) == expected
    name = new_topic_name("kadm")
    assert franz.run("admin", topic=name, id=name, **common) == {"ongoing": True, "state": "Ongoing", "open": 1}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_writes_and_reads_in_a_group(broker: Secured, issuer: Issuer, topic: str, mechanism: str) -> None:
    settings = librdkafka(broker, issuer, mechanism)
    producer = confluent_kafka.Producer(settings)
    values = {b"%d" % number for number in range(COUNT)}
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0
    consumer = confluent_kafka.Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: set[bytes] = set()
    deadline = time.monotonic() + 30
    while found != values and time.monotonic() < deadline:
        found |= {message.value() for message in consumer.consume(COUNT, timeout=0.5) if message.error() is None}
    consumer.close()
    assert found == values


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_and_aiokafka_write_and_read(broker: Secured, issuer: Issuer, topic: str, mechanism: str) -> None:
    with closing(kafka.KafkaProducer(**kafka_python(broker, issuer, mechanism))) as producer:
        producer.send(topic, b"one", partition=0).get(20)
    with closing(kafka.KafkaConsumer(**kafka_python(broker, issuer, mechanism))) as consumer:
        consumer.assign([kafka.TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        (records,) = consumer.poll(20_000).values()
        assert [record.value for record in records] == [b"one"]

    async def ask() -> list[bytes | None]:
        async with aiokafka.AIOKafkaProducer(**aio(broker, issuer, mechanism)) as producer:
            await producer.send_and_wait(topic, b"two", partition=0)
        reader = aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", **aio(broker, issuer, mechanism))
        async with reader:
            return [(await reader.getone()).value for _ in range(2)]

    assert asyncio.run(asyncio.wait_for(ask(), 30)) == [b"one", b"two"]


def test_kcat_writes_and_reads(broker: Secured, topic: str) -> None:
    kcat = shutil.which("kcat")
    if kcat is None:
        assert not in_ci()
        pytest.skip("kcat is not installed")
    # By PLAIN: librdkafka before 2.6.1 repeats its nonce in SCRAM's final message, which Kafka 4 refuses too.
    settings = {**broker.librdkafka("PLAIN"), "topic.auto.offset.reset": "earliest"}
    words = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    for more, given in ((["-P"], b"hello\n"), (["-C", "-e", "-q", "-o", "beginning"], b"")):
        done = subprocess.run(
            [kcat, "-t", topic, *more, *words], input=given, capture_output=True, check=False, timeout=30
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout == b"hello\n"


@pytest.mark.parametrize("client", ["librdkafka", "kafka-python"])
def test_connections_outlast_their_tokens(broker: Secured, issuer: Issuer, topic: str, client: str) -> None:
    """The clients log in again with a new token on the same connection (KIP-368); otherwise the broker closes it."""
    failures: list[object] = []
    expired = broker.log.count("session has expired")
    if client == "librdkafka":
        settings = librdkafka(broker, issuer, "OAUTHBEARER", lifetime_s=TOKEN_S)
        producer = confluent_kafka.Producer({**settings, "error_cb": failures.append})

        def send() -> None:
            producer.produce(topic, b"x", on_delivery=lambda error, _: failures.append(error) if error else None)
            assert producer.flush(10) == 0
            producer.poll(0.2)

        repeat(send)
    else:
        with closing(kafka.KafkaProducer(**kafka_python(broker, issuer, "OAUTHBEARER", lifetime_s=TOKEN_S))) as sender:

            def send() -> None:
                sender.send(topic, b"x").get(10)
                time.sleep(0.2)

            repeat(send)
    assert not failures
    assert broker.log.count("session has expired") == expired


def repeat(send: Callable[[], None]) -> None:
    deadline = time.monotonic() + DURATION_S
    while time.monotonic() < deadline:
        send()


def test_an_expired_token_is_refused_with_kafkas_words(broker: Secured, issuer: Issuer) -> None:
    failures: list[str] = []
    settings = librdkafka(broker, issuer, "OAUTHBEARER", lifetime_s=LONG_EXPIRED_S)
    admin = AdminClient({**settings, "error_cb": lambda error: failures.append(str(error))}, logger=None)
    with pytest.raises(confluent_kafka.KafkaException):
        admin.list_topics(timeout=2)
    admin.poll(0)
    assert any(INVALID in failure for failure in failures), failures
    assert "the token has expired" in broker.log
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaConsumer(
            **kafka_python(broker, issuer, "OAUTHBEARER", lifetime_s=LONG_EXPIRED_S), bootstrap_timeout_ms=2_000
        )


def test_no_password_is_in_the_log(broker: Secured) -> None:
    assert PASSWORD not in broker.log
