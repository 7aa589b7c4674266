"""R9 on real processes: a partition whose only in-sync replica is dead waits for it, or accepts a loss."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from compat.brokers import free_port
from compat.cluster import KAFKA, KBROKER, ProcessCluster
from compat.cluster.nodes import QUICK_SESSIONS
from compat.cluster.observing import TRUNCATION
from compat.kafka import libraries
from compat.waiting import until
from kbroker.testing.cluster_checker import BY_EPOCH
from kbroker.testing.disk_logs import truncation_reason

TOPIC = "orders"
PATIENCE_S = 60.0
SETTINGS = {**QUICK_SESSIONS, "unclean.leader.election.interval.ms": "1000"}
LEADER_NOT_AVAILABLE = 5
WITHOUT_REPLICA = 3
"""The broker that only answers Metadata."""


class Partition:
    """A partition with replicas on brokers 1 and 2, and a consumer that reads it all the time."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self.cluster = cluster
        self.admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        new = NewTopic(TOPIC, num_partitions=1, replica_assignment=[[1, 2]], config={"min.insync.replicas": "1"})
        self.admin.create_topics([new])[TOPIC].result(30)
        self.reader = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "readers",
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 500,
            }
        )
        self.reader.assign([TopicPartition(TOPIC, 0, 0)])
        self.errors: list[KafkaError] = []

    def state(self) -> tuple[int, set[int], int]:
        """(leader, ISR, error code) in Metadata, which does not know a new topic at once."""
        for part in self.cluster.metadata(WITHOUT_REPLICA, [TOPIC])["Topics"][0]["Partitions"]:
            return part["LeaderId"], set(part["IsrNodes"]), part["ErrorCode"]
        return -1, set(), 0

    def await_state(self, leader: int, isr: set[int]) -> None:
        until(lambda: self.state()[:2] == (leader, isr), patience_s=PATIENCE_S)

    def produce(self, first: int, end: int, text: str = "first") -> None:
        """Produce values with acks=all."""
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap_servers, "acks": "all"})
        for number in range(first, end):
            producer.produce(TOPIC, f"{text}-{number}")
        assert producer.flush(PATIENCE_S) == 0

    def read(self, first: int, end: int, text: str = "first") -> None:
        """The reader receives exactly these values at these offsets."""
        found: list[Message] = []

        def complete() -> bool:
            for message in self.reader.consume(1_000, timeout=0.2):
                error = message.error()
                if error is None:
                    found.append(message)
                else:
                    self.errors.append(error)
            return len(found) >= end - first

        until(complete, patience_s=PATIENCE_S)
        expected = [(number, f"{text}-{number}".encode()) for number in range(first, end)]
        assert [(each.offset(), each.value()) for each in found] == expected

    def await_truncation(self) -> None:
        """The reader gets an error: the log now ends before its position."""

        def truncation_reported() -> bool:
            self.errors += [each.error() for each in self.reader.consume(1, timeout=0.2) if each.error() is not None]
            return any("truncation" in error.str() for error in self.errors)

        try:
            until(truncation_reported, patience_s=PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"only these errors: {[str(each) for each in self.errors]}") from error

    def allow_unclean_elections(self) -> None:
        entry = ConfigEntry("unclean.leader.election.enable", "true", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(30)


@pytest.mark.parametrize("controller", [KBROKER, KAFKA])
def test_r9_a_loss_is_refused_or_accepted_and_never_silent(tmp_path: Path, controller: str) -> None:
    """Broker 1 alone has the last records and is dead, while broker 2 runs."""
    libraries()
    with ProcessCluster(tmp_path, controllers=[controller], settings=SETTINGS) as cluster:
        pages = f"127.0.0.1:{free_port()}"
        cluster.brokers[2].settings["kbroker.http.listener"] = pages
        cluster.start()
        partition = Partition(cluster)
        one, two = cluster.brokers[1], cluster.brokers[2]

        def only_broker_two_runs(first: int, end: int) -> None:
            """Give broker 1 records that broker 2 does not get, then kill it and start broker 2."""
            two.kill()
            partition.await_state(1, {1})
            partition.produce(first, end)
            partition.read(first, end)
            one.kill()
            two.start()
            cluster.await_brokers(2, WITHOUT_REPLICA)
            until(lambda: partition.state() == (-1, {1}, LEADER_NOT_AVAILABLE), patience_s=PATIENCE_S)

        partition.await_state(1, {1, 2})
        partition.produce(0, 100)
        partition.read(0, 100)

        only_broker_two_runs(100, 150)
        one.start()
        partition.await_state(1, {1, 2})
        partition.reader.seek(TopicPartition(TOPIC, 0, 0))
        partition.read(0, 150)

        only_broker_two_runs(150, 200)
        partition.allow_unclean_elections()
        partition.await_state(2, {2})
        counted = "\nkafka_controller_controllerstats_uncleanleaderelections_total 1.0\n"
        until(
            lambda: counted in urllib.request.urlopen(f"http://{pages}/metrics").read().decode(), patience_s=PATIENCE_S
        )
        if controller == KBROKER:
            assert "leaders elected outside of the ISR: records may be lost" in cluster.controllers[100].log()
        partition.await_truncation()
        partition.produce(150, 160, "second")
        one.start()
        partition.await_state(2, {1, 2})
        assert f"partition={TOPIC}-0 from_offset=200 to_offset=150" in one.log()
        seen = [
            (partition, to_offset)
            for partition, to_offset, _, why in TRUNCATION.findall(one.log())
            if truncation_reason(why) == BY_EPOCH
        ]
        assert (f"{TOPIC}-0", "150") in seen, "the observer of compat/cluster/observing.py misses truncations"
        until(lambda: cluster.log_bytes(1, TOPIC, 0) == cluster.log_bytes(2, TOPIC, 0), patience_s=PATIENCE_S)
        partition.reader.assign([TopicPartition(TOPIC, 0, 150)])
        partition.read(150, 160, "second")
        partition.reader.close()
