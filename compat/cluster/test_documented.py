"""The properties files of docs/cluster.md start a cluster, with a controller of kbroker or of Apache Kafka."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from compat.brokers import CHECKOUT, free_port
from compat.cluster import KAFKA, KBROKER
from compat.cluster.nodes import Node, brokers_seen
from compat.kafka import libraries
from compat.waiting import until

DOCS = CHECKOUT / "docs"
FILES = ("controller.properties", "broker.properties")
BROKERS = (1, 2, 3)
PATIENCE_S = 90.0


@pytest.mark.parametrize("name", FILES)
def test_the_page_shows_the_files(name: str) -> None:
    assert f"```properties\n{(DOCS / 'cluster' / name).read_text()}```" in (DOCS / "cluster.md").read_text()


def settings(name: str, addresses: dict[str, str], node_id: int) -> dict[str, str]:
    """The settings of a file, with addresses of this machine; `Node` replaces the id and the directory."""
    text = (DOCS / "cluster" / name).read_text().replace("broker.example:9092", f"broker-{node_id}")
    for documented, real in addresses.items():
        text = text.replace(documented, real)
    assert ".example" not in text
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize("kind", [KBROKER, KAFKA])
def test_the_documented_files_start_a_cluster(tmp_path: Path, kind: str) -> None:
    libraries()
    addresses = {"controller.example:9093": f"127.0.0.1:{free_port()}"}
    addresses |= {f"broker-{each}": f"127.0.0.1:{free_port()}" for each in BROKERS}
    planned = [(100, kind, FILES[0]), *((each, KAFKA if each == 3 else KBROKER, FILES[1]) for each in BROKERS)]
    with ExitStack() as stack:
        for node_id, runs, name in planned:
            node = Node(
                tmp_path / str(node_id), kind=runs, node_id=node_id, settings=settings(name, addresses, node_id)
            )
            node.start()
            stack.callback(node.kill)
        first = addresses["broker-1"]
        until(lambda: brokers_seen(first) == set(BROKERS), patience_s=PATIENCE_S)
        create(first)
        values = [b"%d" % number for number in range(1_000)]
        producer = Producer({"bootstrap.servers": first, "acks": "all"})
        for value in values:
            producer.produce("orders", value)
        assert producer.flush(PATIENCE_S) == 0
        assert consumed(first, len(values)) == values


def create(servers: str) -> None:
    new = NewTopic("orders", num_partitions=1, replication_factor=3)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([new])["orders"].result(30)


def consumed(servers: str, count: int) -> list[bytes]:
    """The first records that a new group reads."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    found: list[bytes] = []

    def enough() -> bool:
        found.extend(each.value() or b"" for each in consumer.consume(count, timeout=1) if each.error() is None)
        return len(found) >= count

    try:
        until(enough, patience_s=PATIENCE_S)
    finally:
        consumer.close()
    return found
