"""One broker or a cluster, for jobs during which brokers are killed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from compat.brokers import KbrokerProcess
from compat.cluster import KAFKA, KBROKER, ProcessCluster
from compat.kafka import KafkaNode
from compat.kafka.libraries import libraries

PATIENCE_S = 300.0
OFTEN_CLEANED = {"log.cleaner.backoff.ms": "500"}


def kind_under_test() -> str:
    """KAFKA to prove a test, otherwise KBROKER."""
    libraries()  # the directory of Kafka's schemas
    return KAFKA if os.environ.get("KBROKER_COMPAT_BROKER") == "kafka" else KBROKER


class Site(Protocol):
    """Brokers that are killed and started again."""

    @property
    def bootstrap_servers(self) -> str: ...
    def start(self) -> None: ...
    def kill_one(self) -> None:
        """`kill -9` of a broker, which is started again."""


class OneBroker:
    """A broker that is also the controller."""

    def __init__(self, broker: KbrokerProcess | KafkaNode) -> None:
        self._broker = broker

    @property
    def bootstrap_servers(self) -> str:
        return self._broker.bootstrap_servers

    def start(self) -> None:
        self._broker.start()

    def kill_one(self) -> None:
        self._broker.kill()
        self._broker.start()


class ThreeBrokers:
    """A cluster, of which one broker after the other is killed."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self._cluster, self._kills = cluster, 0

    @property
    def bootstrap_servers(self) -> str:
        return self._cluster.bootstrap_servers

    def start(self) -> None:
        self._cluster.start()

    def kill_one(self) -> None:
        brokers = list(self._cluster.brokers.values())
        victim = brokers[self._kills % len(brokers)]
        self._kills += 1
        victim.kill()
        victim.start()
        self._cluster.await_isrs(None, *self._cluster.brokers, patience_s=PATIENCE_S)


@contextlib.contextmanager
def brokers(kind: str, count: int, directory: Path) -> Iterator[Site]:
    """One broker or a cluster of this kind, not started yet, and killed at the end."""
    if count > 1:
        with ProcessCluster(directory, controllers=[kind], brokers=[kind] * count, settings=OFTEN_CLEANED) as cluster:
            yield ThreeBrokers(cluster)
        return
    broker: KbrokerProcess | KafkaNode
    if kind == KAFKA:
        broker = KafkaNode(directory, overrides=OFTEN_CLEANED)
    else:
        broker = KbrokerProcess(directory, overrides=[f"{key}={value}" for key, value in OFTEN_CLEANED.items()])
    try:
        yield OneBroker(broker)
    finally:
        print(broker.log_tail())  # pytest shows it if the test fails
        if broker.process is not None:
            broker.kill()
