"""A tiered partition on real processes: its load, where the logs of its replicas start, and its moves."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from compat.cluster import ProcessCluster
from compat.cluster.nodes import QUICK_SESSIONS
from compat.kafka.tools import tool
from compat.waiting import until

TOPIC = "orders"
PATIENCE_S = 60.0
BUILT = "starting a partition where the leader's local log starts"
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "20000",
    "local.retention.bytes": "1",
    "min.insync.replicas": "1",
}


class Load:
    """One idempotent producer for the whole test, and the records that were acknowledged."""

    def __init__(self, servers: str, *, size: int = 100) -> None:
        self.sent = 0
        self._rest = b"x" * size
        self.errors: list[KafkaError] = []
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.interval.ms": 500,
                "error_cb": self._on_error,
            }
        )

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.errors.append(error)

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.errors.append(error)

    def produce(self, count: int) -> None:
        """Every record is acknowledged."""
        for number in range(self.sent, self.sent + count):
            self._producer.produce(TOPIC, b"%06d" % number + self._rest, on_delivery=self._on_delivery)
            if number % 20 == 0:
                assert self._producer.flush(PATIENCE_S) == 0
        assert self._producer.flush(PATIENCE_S) == 0
        assert not self.errors
        self.sent += count

    def read(self, servers: str) -> None:
        """A consumer that starts at offset 0 gets exactly the produced records."""
        reader = Consumer({"bootstrap.servers": servers, "group.id": "readers", "auto.offset.reset": "error"})
        reader.assign([TopicPartition(TOPIC, 0, 0)])
        found: list[Message] = []

        def complete() -> bool:
            found.extend(reader.consume(1_000, timeout=0.5))
            return len(found) >= self.sent

        try:
            until(complete, patience_s=PATIENCE_S)
        finally:
            reader.close()
        assert [one.error() for one in found if one.error()] == []
        assert [(one.offset(), int((one.value() or b"")[:6])) for one in found] == [(at, at) for at in range(self.sent)]


def local_start(cluster: ProcessCluster, broker: int) -> int:
    """The first offset in the partition's directory."""
    return min((int(path.stem) for path in (cluster.brokers[broker].data / f"{TOPIC}-0").glob("*.log")), default=-1)


def reassign(cluster: ProcessCluster, place: Path, replicas: list[int], *, topic: str = TOPIC) -> None:
    """Move partition 0 of a topic, as soon as all running brokers know it."""
    running = [number for number, node in cluster.brokers.items() if node.is_running]
    until(lambda: all(cluster.leader(topic, ask=number) >= 0 for number in running), patience_s=PATIENCE_S)
    plan = place / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": replicas}]}))
    servers = ("--bootstrap-server", cluster.bootstrap_servers)
    tool("reassign.ReassignPartitionsCommand", *servers, "--reassignment-json-file", str(plan), "--execute")


def tier_settings(place: Path) -> dict[str, str]:
    return {
        **QUICK_SESSIONS,
        "remote.log.storage.system.enable": "true",
        "rsm.config.dir": str(place / "tier"),
        "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
        "remote.log.manager.task.interval.ms": "300",
        "log.retention.check.interval.ms": "300",
    }
