"""Declarations of metrics. Each metric is declared once, with its type, name, help text, labels and reader.

    @gauge("kafka_log_log_size", "Bytes of the log's segments.", "topic", "partition")
    def log_size(broker: Broker) -> Samples:
        for partition in held(broker):
            yield (partition.topic, str(partition.index)), partition.log.size

Names are Kafka's in the usual format of Prometheus's JMX exporter: `kafka.server:type=BrokerTopicMetrics,
name=MessagesInPerSec` is `kafka_server_brokertopicmetrics_messagesin_total`. Metrics that Kafka does not have begin
with `kbroker_`. The metrics page and docs/metrics.md are generated from the declarations.

A reader runs on the event loop, a hundred samples at a time. Other tasks run in between, so it iterates over copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from kbroker.broker import Broker
from kbroker.runtime.metrics import Histogram
from kbroker.web.ports import Observed

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

Sample: TypeAlias = tuple[tuple[str, ...], float | Histogram]
"""(label values, value); empty label values mean the sum over all labels."""
Samples: TypeAlias = Iterable[Sample]
NodeReader: TypeAlias = Callable[[Observed], Samples]
BrokerReader: TypeAlias = Callable[[Broker], Samples]

DECLARED: list[Declared] = []
"""Every metric, in the order of the page."""


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    read: NodeReader


def of_node(kind: str, name: str, help: str, *labels: str) -> Callable[[NodeReader], NodeReader]:
    """Declare a metric that is read from the node; it is available from the start."""
    assert name.endswith("_total") == (kind == COUNTER), name

    def declare(read: NodeReader) -> NodeReader:
        DECLARED.append(Declared(name, kind, help, labels, read))
        return read

    return declare


def of_broker(kind: str, name: str, help: str, *labels: str) -> Callable[[BrokerReader], BrokerReader]:
    """Declare a metric that is read from the broker; it is available once the logs are open."""

    def declare(read: BrokerReader) -> BrokerReader:
        of_node(kind, name, help, *labels)(lambda node: () if node.broker is None else read(node.broker))
        return read

    return declare


def one(value: float) -> Samples:
    """The samples of a metric without labels."""
    return (((), value),)
