"""Apache Kafka and kbroker take turns on one data directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from compat.brokers import free_port
from compat.clients import confluent
from compat.clients.samples import START_MS, Sample
from compat.cluster.nodes import COMMON, KAFKA, KBROKER, READY_S, Node, brokers_seen
from compat.kafka import libraries
from compat.oracle.conftest import await_leaders
from compat.oracle.groups import committing, fetching, offsets_of
from compat.oracle.raw import connected
from compat.waiting import until

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
KEYS: Final = 20
ROUNDS: Final = 30
SETTINGS: Final = {
    **COMMON,
    "process.roles": "broker,controller",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.backoff.ms": "200",
    "log.initial.task.delay.ms": "0",
}
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}
GROUPS: Final = ("plain", "modern", "transactional", "aborted", "pending")
Found = dict[int, list[tuple[int, bytes | None, bytes | None]]]


class Owner:
    """A directory, and the node that runs on it now."""

    def __init__(self, directory: Path) -> None:
        port, controller = free_port(), free_port()
        settings = {
            **SETTINGS,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "listeners": f"CONTROLLER://127.0.0.1:{controller},PLAINTEXT://127.0.0.1:{port}",
        }
        self.node = Node(directory, kind=KAFKA, node_id=1, settings=settings, release=None)
        self.node.format_flags.append("--standalone")
        self.servers = self.node.address

    def hand_to(self, kind: str) -> None:
        """Stop the node cleanly, and start the other broker on the directory."""
        if self.node.is_running:
            assert self.node.stop() in {0, 143}, self.node.log_tail()
        self.node.kind = kind
        self.node.start()
        until(self.is_ready, each_s=0.05, patience_s=READY_S)

    def is_ready(self) -> bool:
        assert self.node.is_running, self.node.log_tail()
        return brokers_seen(self.servers) == {1}

    def create(self, name: str, *, partitions: int = 1, configs: dict[str, str] | None = None) -> None:
        listed = [{"Name": key, "Value": value} for key, value in (configs or {}).items()]
        topic = {"Name": name, "NumPartitions": partitions, "ReplicationFactor": 1, "Configs": listed}
        with connected(self.servers) as connection:
            answer = connection.call("CreateTopics", 7, {"Topics": [topic], "timeoutMs": 30_000})
        assert answer["Topics"][0]["ErrorCode"] == 0, answer
        await_leaders(self.servers, name, partitions)

    def read(self, topic: str, partitions: int = 1, *, committed: bool = True) -> Found:
        """All records of a topic up to the end of each partition, which is the last stable offset if committed."""
        isolation = "read_committed" if committed else "read_uncommitted"
        reader = confluent.consumer(self.servers, **{"isolation.level": isolation, "enable.partition.eof": True})
        reader.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(partitions)])
        found: Found = {index: [] for index in range(partitions)}
        ends: set[int] = set()
        deadline = time.monotonic() + READY_S
        while len(ends) < partitions:
            assert time.monotonic() < deadline, f"{topic} ends at {ends}"
            for message in reader.consume(1000, timeout=0.2):
                if message.error() is not None:
                    ends.add(message.partition())
                    continue
                found[message.partition()].append((message.offset(), message.key(), message.value()))
        reader.close()
        return found

    def commit(self, group: str, offsets: dict[int, int]) -> None:
        """Commit offsets in the topic of codecs, as soon as the group's coordinator is loaded."""
        wanted = {"codecs": [(index, offset, "note") for index, offset in offsets.items()]}

        def are_stored() -> bool:
            with connected(self.servers) as connection:
                connection.call("FindCoordinator", 3, {"Key": group, "KeyType": 0})  # creates the topic
                answer = connection.call("OffsetCommit", 9, committing(group, wanted))
            return not any(part["ErrorCode"] for each in answer["Topics"] for part in each["Partitions"])

        until(are_stored)

    def consume(self, group: str, offsets: dict[int, int]) -> None:
        """Join a group by its new protocol (KIP-848), and commit offsets in the topic of codecs."""
        settings = {"bootstrap.servers": self.servers, "group.id": group, "group.protocol": "consumer"}
        member = Consumer({**settings, "enable.auto.commit": False})
        member.subscribe(["codecs"])
        until(lambda: bool(member.poll(0.1) or member.assignment()), patience_s=READY_S)
        member.commit(offsets=[TopicPartition("codecs", *each) for each in offsets.items()], asynchronous=False)
        member.close()

    def offsets(self, group: str) -> dict[int, int]:
        """The committed offsets of a group in the topic of codecs, as soon as its coordinator is loaded."""
        found: dict[int, int] = {}

        def are_read() -> bool:
            with connected(self.servers) as connection:
                answer = connection.call("OffsetFetch", 7, fetching(group, {"codecs": range(len(CODECS))}))
            found.update({index: offset for index, (offset, _) in offsets_of(answer).items() if offset >= 0})
            return not answer["ErrorCode"]

        until(are_read)
        return found

    def everything(self) -> dict[str, Any]:
        """All that clients can read."""
        return {
            "codecs": self.read("codecs", len(CODECS)),
            "compacted": self.read("compacted"),
            "committed": self.read("ledger"),
            "uncommitted": self.read("ledger", committed=False),
            "offsets": {group: self.offsets(group) for group in GROUPS},
        }


class Writer:
    """A transactional producer that commits offsets of a group too."""

    def __init__(self, owner: Owner, transactional_id: str, group: str) -> None:
        self.producer = Producer(
            {
                "bootstrap.servers": owner.servers,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 900_000,
            }
        )
        self.producer.init_transactions(60)
        self._reader = confluent.consumer(owner.servers, **{"group.id": group})

    def begin(self, value: str, offset: int | None = None) -> None:
        """A transaction with a record and a committed offset, which is left open."""
        self.producer.begin_transaction()
        self.producer.produce("ledger", value.encode())
        if offset is not None:
            places = [TopicPartition("codecs", 0, offset)]
            self.producer.send_offsets_to_transaction(places, self._reader.consumer_group_metadata(), 60)
        assert self.producer.flush(60) == 0


def fill(owner: Owner, turn: str, number: int) -> None:
    """What each owner adds."""
    for index, codec in enumerate(CODECS):
        made = [Sample(b"%d" % at, f"{turn} {at} ".encode() * 20, START_MS + at) for at in range(100)]
        confluent.produce(owner.servers, "codecs", index, made, codec, idempotent=index % 2 == 0)
    updates = Producer({"bootstrap.servers": owner.servers, "linger.ms": 0})
    for round_number in range(ROUNDS):
        if round_number in (1, ROUNDS - 1):
            time.sleep(0.15)  # longer than segment.ms, so that there are segments to clean
        for key in range(KEYS):
            updates.produce("compacted", f"{turn} {round_number}".encode(), b"%d" % key)
        assert updates.flush(60) == 0
    owner.commit("plain", {0: number, 3: 2 * number})
    owner.consume("modern", {1: 3 * number})
    done = Writer(owner, "done", "transactional")
    done.begin(f"{turn} committed", 10 * number)
    done.producer.commit_transaction(60)
    undone = Writer(owner, "undone", "aborted")
    undone.begin(f"{turn} aborted", 10 * number)
    undone.producer.abort_transaction(60)
    Writer(owner, "open", "pending").begin(f"{turn} left open", 10 * number)  # the end of a producer does not abort it


def values(found: Found) -> list[str]:
    return [str(value, "ascii") for _, _, value in found[0] if value is not None]


def refuse_and_lower(owner: Owner) -> None:
    """kbroker does not start on the directory as Kafka formats it, and names what to lower. Kafka lowers it."""
    node = owner.node
    assert node.stop() in {0, 143}, node.log_tail()
    node.kind = KBROKER
    node.start()
    assert node.process is not None
    assert node.process.wait(READY_S) == 1
    refused = node.log_tail().splitlines()[-1]
    assert "the metadata log has eligible.leader.replicas.version=1 (supported: 0 to 0), which" in refused
    assert "kafka-features.sh downgrade --feature eligible.leader.replicas.version=0`" in refused
    owner.hand_to(KAFKA)
    update = {"Feature": "eligible.leader.replicas.version", "MaxVersionLevel": 0, "UpgradeType": 2}
    with connected(owner.servers) as connection:
        answer = connection.call("UpdateFeatures", 1, {"timeoutMs": 30_000, "FeatureUpdates": [update]})
    assert answer["ErrorCode"] == 0, answer


def test_kafka_and_kbroker_take_turns_on_one_directory(tmp_path: Path) -> None:
    """Each finds all that the other has written, ends the transaction that the other left open, and adds its own.

    The directory is formatted as the quick start of Apache Kafka 4.3 does it, and one feature is lowered.
    """
    libraries()
    owner = Owner(tmp_path)
    try:
        owner.hand_to(KAFKA)
        refuse_and_lower(owner)
        owner.create("codecs", partitions=len(CODECS))
        owner.create("compacted", configs=COMPACTED)
        owner.create("ledger")
        fill(owner, "Kafka", 1)
        until(lambda: len(owner.read("compacted")[0]) < KEYS * ROUNDS // 2, each_s=0.2, patience_s=READY_S)
        first = owner.everything()
        assert [len(found) for found in first["codecs"].values()] == [100] * len(CODECS)
        assert values(first["committed"]) == ["Kafka committed"]
        assert values(first["uncommitted"]) == ["Kafka committed", "Kafka aborted", "Kafka left open"]
        assert first["offsets"] == {
            "plain": {0: 1, 3: 2}, "modern": {1: 3}, "transactional": {0: 10}, "aborted": {}, "pending": {},
        }  # fmt: skip
        owner.hand_to(KBROKER)
        assert owner.everything() == first
        Writer(owner, "open", "pending")  # aborts the transaction that Kafka has left open
        fill(owner, "kbroker", 2)
        second = owner.everything()
        assert [len(found) for found in second["codecs"].values()] == [200] * len(CODECS)
        assert values(second["committed"]) == ["Kafka committed", "kbroker committed"]
        assert second["offsets"] == {
            "plain": {0: 2, 3: 4}, "modern": {1: 6}, "transactional": {0: 20}, "aborted": {}, "pending": {},
        }  # fmt: skip
        owner.hand_to(KAFKA)
        third = owner.everything()
        compacted = third.pop("compacted"), second.pop("compacted")  # Kafka's cleaner goes on
        assert third == second
        assert [{key: value for _, key, value in found[0]} for found in compacted] == [
            {b"%d" % key: f"kbroker {ROUNDS - 1}".encode() for key in range(KEYS)}
        ] * 2
        Writer(owner, "open", "pending").begin("the end")
        assert values(owner.read("ledger", committed=False))[-2:] == ["kbroker left open", "the end"]
        assert owner.offsets("pending") == {}
    finally:
        if owner.node.is_running:
            owner.node.kill()
