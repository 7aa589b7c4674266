"""R12: brokers that reach each other and the controller only over slow links which reset their connections."""

from __future__ import annotations

import re
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Producer

from compat.brokers import address_of, free_port
from compat.cluster import KAFKA, KBROKER, ProcessCluster
from compat.kafka import libraries
from compat.slow_link import Quality, SlowLink
from compat.torture.load import Plan, create_topic

TOPIC = "storm"
ROUNDS, RECORDS, RECORD_BYTES = 40, 20, 1_000
PATIENCE_S = 60.0


def slow_cluster(directory: Path, stack: ExitStack, controller: str) -> tuple[ProcessCluster, list[SlowLink]]:
    """Three brokers; a listener of their own is for replication, and they advertise the address of a slow link to it.

    The controller is behind such a link too. Clients reach the brokers directly.
    """
    cluster = stack.enter_context(ProcessCluster(directory, controllers=[controller], brokers=[KBROKER] * 3))
    links = []

    def link_to(address: str) -> str:
        port = free_port()
        links.append(stack.enter_context(SlowLink(port, address_of(address), Quality())))
        return f"127.0.0.1:{port}"

    for node in cluster.brokers.values():
        direct = f"127.0.0.1:{free_port()}"
        clients, behind = f"PLAINTEXT://{node.address}", f"REPLICATION://{link_to(direct)}"
        node.settings |= {
            "listeners": f"REPLICATION://{direct},{clients}",
            "advertised.listeners": f"{behind},{clients}",
            "inter.broker.listener.name": "REPLICATION",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,REPLICATION:PLAINTEXT",
            "controller.quorum.voters": f"100@{link_to(cluster.controllers[100].address)}",
            "kbroker.http.listener": f"127.0.0.1:{free_port()}",
        }
    return cluster, links


def isr_shrinks(cluster: ProcessCluster) -> int:
    """How often replicas have left an ISR, by the metrics of all brokers."""
    total = 0.0
    for node in cluster.brokers.values():
        page = urllib.request.urlopen(f"http://{node.settings['kbroker.http.listener']}/metrics").read().decode()
        found = re.search(r"^kafka_server_replicamanager_isrshrinks_total (\S+)$", page, re.MULTILINE)
        assert found is not None
        total += float(found[1])
    return int(total)


@pytest.mark.parametrize("controller", [KBROKER, KAFKA])
def test_r12_slow_links_do_not_shrink_the_isr(tmp_path: Path, controller: str) -> None:
    """100 ms, 3 Mbit/s, 1 % of the chunks reset, connections that live for a second."""
    libraries()
    with ExitStack() as stack:
        cluster, links = slow_cluster(tmp_path, stack, controller)
        cluster.start()
        create_topic(cluster.bootstrap_servers, Plan(TOPIC, partitions=3, replicas=3))
        cluster.await_isrs(TOPIC, *cluster.brokers)
        connections = sum(link.connections for link in links)
        producer = Producer(
            {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "request.timeout.ms": 10_000}
        )
        failures: list[KafkaError] = []
        for _ in range(ROUNDS):
            for number in range(RECORDS):
                producer.produce(
                    TOPIC,
                    bytes(RECORD_BYTES),
                    partition=number % 3,
                    on_delivery=lambda error, _: failures.extend([error] if error else []),
                )
            assert producer.flush(PATIENCE_S) == 0
        assert failures == []
        assert sum(link.connections for link in links) > connections + 20, "the links were too good"
        assert isr_shrinks(cluster) == 0
        cluster.await_isrs(TOPIC, *cluster.brokers, patience_s=0)
        assert cluster.replicas_become_equal(TOPIC, range(3))
        for node in cluster.brokers.values():
            assert "the controller has fenced this broker" not in node.log()
