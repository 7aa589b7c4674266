"""Transactions of every client, with both protocols: classic and KIP-890 part 2 (transaction.version 0 and 2)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compat.brokers import Broker
from compat.clients import filling
from compat.clients.members import CLIENTS, Member, await_assignment
from compat.clients.samples import CODECS
from compat.clients.transactional import END, ISOLATION, PATIENCE_S, PRODUCERS, READERS, Transactional, read
from compat.conftest import KafkaTool
from compat.features import raise_features
from compat.kafka.libraries import executable
from compat.oracle.groups import await_coordinator
from compat.oracle.raw import connected
from compat.waiting import until

PARTITIONS = 3
EVERYWHERE = range(PARTITIONS)


@pytest.fixture(scope="module", params=[0, 2], ids=["tv0", "tv2"])
def broker(request: pytest.FixtureRequest, start_broker: Callable[..., Broker]) -> Broker:
    """A broker with this transaction.version."""
    started = start_broker()
    raise_features(started.bootstrap_servers, {"transaction.version": request.param} if request.param else {})
    return started


@pytest.fixture
def servers(broker: Broker) -> str:
    return broker.bootstrap_servers


@pytest.fixture
def topic(servers: str, new_topic_name: Callable[[str], str]) -> str:
    """A topic of three partitions."""
    return filling.create(servers, new_topic_name("transactions"), PARTITIONS)


@pytest.fixture(params=PRODUCERS)
def client(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def begin(servers: str, client: str) -> Iterator[Callable[..., Transactional]]:
    """`begin("id")`: a producer of the client; all are closed at the end."""
    made: list[Transactional] = []

    def producer(transactional_id: str, **more: Any) -> Transactional:
        made.append(PRODUCERS[client](servers, transactional_id, **more))
        return made[-1]

    yield producer
    for each in made:
        each.close()


def values(name: str, count: int = 3) -> dict[int, list[bytes]]:
    """Values for each partition that name their transaction."""
    return {each: [b"%s-%d-%d" % (name.encode(), each, number) for number in range(count)] for each in EVERYWHERE}


def joined(*parts: dict[int, list[bytes]]) -> dict[int, list[bytes]]:
    """The values of several transactions, one after the other."""
    return {each: [value for part in parts for value in part[each]] for each in EVERYWHERE}


def finish(servers: str, topic: str) -> None:
    """Write `END` to each partition, outside of transactions."""
    filling.fill(servers, topic, {each: [END] for each in EVERYWHERE})


def last_stable_offsets(servers: str, topic: str) -> list[int]:
    asked = [{"PartitionIndex": index, "Timestamp": -1, "CurrentLeaderEpoch": -1} for index in EVERYWHERE]
    message = {"ReplicaId": -1, "IsolationLevel": 1, "Topics": [{"Name": topic, "Partitions": asked}]}
    with connected(servers) as connection:
        answer = connection.call("ListOffsets", 4, message)
    return [part["Offset"] for part in answer["Topics"][0]["Partitions"]]


def test_readers_see_committed_transactions_of_each_codec(
    servers: str, topic: str, begin: Callable[..., Transactional]
) -> None:
    committed, everything = list[dict[int, list[bytes]]](), list[dict[int, list[bytes]]]()
    for codec in CODECS:
        producer = begin(f"{topic}-{codec}", codec=codec)
        for number, is_committed in enumerate([True, False, True]):
            written = values(f"{codec}-{number}")
            producer.begin()
            producer.send(topic, written)
            (producer.commit if is_committed else producer.abort)()
            everything.append(written)
            committed += [written] if is_committed else []
    finish(servers, topic)
    for reader in READERS:
        assert read(reader, servers, topic, PARTITIONS, "read_committed") == joined(*committed), reader
        assert read(reader, servers, topic, PARTITIONS, "read_uncommitted") == joined(*everything), reader


def test_an_open_transaction_holds_committed_readers_back(
    servers: str, topic: str, client: str, begin: Callable[..., Transactional]
) -> None:
    first, second, between = values("first"), values("second"), values("between")
    producer = begin(topic)
    producer.begin()
    producer.send(topic, first)
    producer.commit()
    stable = [len(part) + 1 for part in first.values()]  # with the marker, which is written after the answer
    until(lambda: last_stable_offsets(servers, topic) == stable, patience_s=PATIENCE_S)
    producer.begin()
    producer.send(topic, second)
    filling.fill(servers, topic, between)
    assert last_stable_offsets(servers, topic) == stable
    reader = READERS[client](servers, topic, PARTITIONS, "read_committed")
    found: dict[int, list[bytes]] = {each: [] for each in EVERYWHERE}

    def reads(*parts: dict[int, list[bytes]]) -> bool:
        for got in reader.poll():
            found[got.partition].append(got.value)
        return found == joined(*parts)

    until(lambda: reads(first), each_s=0, patience_s=PATIENCE_S)
    assert reads(first)  # nothing else arrives
    producer.commit()
    until(lambda: reads(first, second, between), each_s=0, patience_s=PATIENCE_S)
    reader.close()


def test_a_newer_producer_fences_the_older_one(
    servers: str, topic: str, client: str, begin: Callable[..., Transactional]
) -> None:
    older = begin(topic)
    older.begin()
    older.send(topic, values("older"))
    newer = begin(topic)  # aborts what is open
    newer.begin()
    newer.send(topic, values("newer"))
    if (
        client != "kafka-python"
    ):  # 3.0.12 then sends InitProducerId, which fences the newer one, on Apache Kafka as well
        older.send(topic, values("too late"))
    older.commit()
    assert older.fenced
    newer.commit()
    assert not newer.fenced
    finish(servers, topic)
    for isolation, expected in zip(ISOLATION, (["newer"], ["older", "newer"]), strict=True):
        assert read(client, servers, topic, PARTITIONS, isolation) == joined(*map(values, expected))


class Transformer:
    """Copies a topic in transactions, of which it aborts every third one and then starts again."""

    def __init__(self, member: Member, producer: Transactional, output: str) -> None:
        self.member, self.producer, self.output = member, producer, output
        self.aborted = 0
        self._number = 0
        self._done = dict.fromkeys(EVERYWHERE, 0)

    def step(self) -> dict[int, int]:
        """Copy the next records; returns the offsets that are committed so far."""
        records = self.member.poll()
        if not records:
            return self._done
        copies: dict[int, list[bytes]] = {}
        for record in records:
            copies.setdefault(record.partition, []).append(record.value.upper())
        offsets = {partition: self._done[partition] + len(part) for partition, part in copies.items()}
        self.producer.begin()
        self.producer.send(self.output, copies)
        self.producer.send_offsets(self.member, offsets)
        self._number += 1
        if self._number % 3 == 0:
            self.producer.abort()
            self.aborted += 1
            for partition in offsets:
                self.member.seek(partition, self._done[partition])
        else:
            self.producer.commit()
            self._done |= offsets
        return self._done


def test_consume_transform_produce_is_exactly_once(
    servers: str,
    topic: str,
    client: str,
    begin: Callable[..., Transactional],
    new_topic_name: Callable[[str], str],
) -> None:
    output = filling.create(servers, new_topic_name("copies"), PARTITIONS)
    await_coordinator(servers, topic)
    more = {"max_poll_records": 40} if client == "kafka-python" else {}
    member = CLIENTS[client](servers, topic, topic, isolation_level="read_committed", **more)
    await_assignment(member, set(EVERYWHERE))
    transformer = Transformer(member, begin(topic), output)
    rounds = [values(f"round-{number}", 20) for number in range(4)]
    for number, part in enumerate(rounds, 1):
        filling.fill(servers, topic, part)
        until(lambda: transformer.step() == dict.fromkeys(EVERYWHERE, 20 * number), each_s=0, patience_s=PATIENCE_S)  # noqa: B023
    assert transformer.aborted
    expected = {each: len(part) for each, part in joined(*rounds).items()}
    # aiokafka does not ask for stable offsets, so that it may see older ones until the markers are written.
    until(lambda: {each: at for each, (at, _) in member.committed(EVERYWHERE).items()} == expected)
    member.close()
    finish(servers, output)
    copies = {each: [value.upper() for value in part] for each, part in joined(*rounds).items()}
    assert read(client, servers, output, PARTITIONS, "read_committed") == copies


def test_kcat_commits_its_input_as_one_transaction(servers: str, topic: str) -> None:
    program = executable("kcat", hint="install kcat 1.7.1")
    command = [program, "-b", servers, "-P", "-t", topic, "-p", "0", "-X", f"transactional.id={topic}"]
    subprocess.run(command, input=b"one\ntwo\n", capture_output=True, timeout=PATIENCE_S, check=True)
    finish(servers, topic)
    assert read("confluent-kafka", servers, topic, PARTITIONS, "read_committed")[0] == [b"one", b"two"]
    assert last_stable_offsets(servers, topic) == [4, 1, 1]  # with the marker and the ends


def test_java_commits_transactions_of_a_duration(servers: str, topic: str, kafka_tool: KafkaTool) -> None:
    size = ("--num-records", "500", "--record-size", "10", "--throughput", "1000")
    transaction = ("--transactional-id", topic, "--transaction-duration-ms", "100")
    at = ("--bootstrap-server", servers, "--topic", topic)
    kafka_tool("ProducerPerformance", *at, *size, *transaction, timeout_s=PATIENCE_S)
    finish(servers, topic)
    found = read("confluent-kafka", servers, topic, PARTITIONS, "read_committed")
    assert sum(map(len, found.values())) == 500
    assert sum(last_stable_offsets(servers, topic)) > 500 + PARTITIONS  # with markers
