"""Clients of the test's own library: `kbroker.testing.clients`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib import machinery
from pathlib import Path

import pytest

from kbroker.testing import Server, broker, clients
from kbroker.testing.control import last_requests
from kbroker.testing.servers import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:.*Use files\\(\\) instead")  # of kafka-python, at its first client


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with broker() as running:
        yield running


@pytest.fixture(autouse=True)
def _closed(server: Server) -> Iterator[None]:
    yield
    server.close_clients()


def install(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let only these modules be found."""

    def find(name: str) -> machinery.ModuleSpec | None:
        return machinery.ModuleSpec(name, None, origin=f"{name}.py") if name in names else None

    monkeypatch.setattr(clients, "find_spec", find)


def test_clients_of_kafka_python_find_the_broker(server: Server) -> None:
    topic = server.create_topic("of-kafka-python")
    server.producer(library="kafka-python", linger_ms=0).send(topic, b"a").get(timeout=30)
    consumer = server.consumer(topic, group="kafka-python", library="kafka-python")
    assert next(consumer).value == b"a"
    assert topic in server.admin(library="kafka-python").list_topics()
    server.close_clients()
    assert server.consumer_offset("kafka-python", topic) == 1
    server.wait_for_group("kafka-python", state="Empty")


def test_clients_of_confluent_kafka_find_the_broker(server: Server) -> None:
    topic = server.create_topic("of-confluent-kafka")
    server.producer(library="confluent-kafka", **{"linger.ms": 0}).produce(topic, b"a")
    server.close_clients()  # sends what the producer still has
    grouped = server.consumer(topic, group="confluent-kafka", library="confluent-kafka")
    assert grouped.poll(30).value() == b"a"
    alone = server.consumer(topic, library="confluent-kafka")
    assert alone.poll(30).value() == b"a"
    named = server.consumer(topic, library="confluent-kafka", **{"group.id": "named"})
    assert named.poll(30).value() == b"a"
    alone.close()  # a test may close its clients itself
    assert topic in server.admin(library="confluent-kafka").list_topics(timeout=30).topics
    server.close_clients()
    assert server.consumer_offset("confluent-kafka", topic) == server.consumer_offset("named", topic) == 1
    server.wait_for_group("confluent-kafka", state="Empty")


def test_clients_of_aiokafka_find_the_broker(server: Server) -> None:
    topic = server.create_topic("of-aiokafka")

    async def main() -> None:
        async with server.producer(library="aiokafka") as producer:
            await producer.send_and_wait(topic, b"a")
        async with server.consumer(topic, group="aiokafka", library="aiokafka") as consumer:
            assert (await asyncio.wait_for(consumer.getone(), 30)).value == b"a"
        admin = server.admin(library="aiokafka")
        await admin.start()
        assert topic in await admin.list_topics()
        await admin.close()

    asyncio.run(main())
    assert server.consumer_offset("aiokafka", topic) == 1


def test_rules_end_before_clients_close(server: Server) -> None:
    topic = server.create_topic("with-rules")
    server.faults.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=None)
    server.producer(library="kafka-python").send(topic, b"a")
    server.close_clients()
    assert len(server.records(topic)) == 1


def test_all_clients_are_closed_although_one_fails(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    first = server.consumer(library="confluent-kafka")
    last = server.producer(library="kafka-python")
    with monkeypatch.context() as patch:
        patch.setattr(last, "close", lambda timeout: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            server.close_clients()
    last.close()
    with pytest.raises(RuntimeError, match="closed"):
        first.poll(0)


@pytest.mark.parametrize("library", ["kafka-python", "confluent-kafka"])
def test_a_producer_waits_for_a_broker_that_is_down(server: Server, library: str) -> None:
    topic = server.create_topic(f"down-{library}")
    producer = server.producer(library=library)
    send = producer.produce if library == "confluent-kafka" else producer.send
    send(topic, b"a")
    producer.flush()
    (node,) = server.nodes
    node.set_down()
    send(topic, b"b")
    assert wait_until(lambda: "the test has set this broker down" in last_requests(node), 30)
    node.set_up()
    producer.flush()
    assert [each.value for each in server.records(topic)] == [b"a", b"b"]


def test_clients_of_a_broker_that_has_ended_are_not_waited_for() -> None:
    with broker() as ended:
        topic = ended.create_topic("a")
        consumer = ended.consumer(topic, group="a", library="confluent-kafka")
        producer = ended.producer(library="confluent-kafka")
        producer.produce(topic, b"a")
        assert consumer.poll(30)
        ended.nodes[0].stop()
        producer.produce(topic, b"b")
        ended.close_clients()
        assert len(producer) == 1, "it was not flushed"


def test_the_only_installed_library_is_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "confluent_kafka")
    assert type(server.producer()).__module__ in ("cimpl", "confluent_kafka.cimpl")
    with pytest.raises(ModuleNotFoundError, match="aiokafka is not installed: pip install aiokafka"):
        server.producer(library="aiokafka")


def test_without_a_library_the_error_names_what_to_install(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    with pytest.raises(ModuleNotFoundError, match=r"no Kafka client is installed: .* kbroker\[kafka-python\]"):
        server.consumer()


def test_a_folder_of_the_project_is_not_a_library(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "kafka").mkdir()
    find = machinery.PathFinder.find_spec
    monkeypatch.setattr(clients, "find_spec", lambda name: find(name, [str(tmp_path)]))
    with pytest.raises(ModuleNotFoundError, match="no Kafka client is installed"):
        server.admin()


def test_one_of_several_libraries_has_to_be_named(server: Server) -> None:
    with pytest.raises(ValueError, match="kafka-python and confluent-kafka and aiokafka are installed: name one"):
        server.admin()
    with pytest.raises(ValueError, match="did you mean aiokafka"):
        server.admin(library="aiokafak")
