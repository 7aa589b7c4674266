"""Declarations of metrics. Each metric is declared once, with its type, name, labels and reader.

    @of_broker(GAUGE, "kafka_log_log_size", "topic", "partition")
    def log_size(broker: Broker) -> Samples:
        '''Bytes of the log's segments.'''
        for partition in held(broker):
            yield (partition.topic, str(partition.index)), partition.log.size

Names are Kafka's in the usual format of Prometheus's JMX exporter: `kafka.server:type=BrokerTopicMetrics,
name=MessagesInPerSec` is `kafka_server_brokertopicmetrics_messagesin_total`. Metrics that Kafka does not have begin
with `kbroker_`. The metrics page and docs/metrics.md are generated from the declarations.

A histogram of Kafka's is declared once and gives three metrics: gauges with the label `quantile` and the count, under
Kafka's name, as the exporter shows them, and a histogram of Prometheus, whose buckets can be added over brokers, under
a name that begins with `kbroker_`.

All series of a metric have the same labels. Kafka gives the counts of each topic and of all topics one name, so that
`sum()` counts twice; here the count of all topics begins with `kbroker_all_topics_`.

The docstring of a reader is the help text. The reader of a metric without labels may return a number. A reader runs on
the event loop, a hundred samples at a time. Other tasks run in between, so it iterates over copies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import nan
from typing import TypeAlias

from kbroker.broker import Broker
from kbroker.metadata.image import Image
from kbroker.runtime.metrics import Histogram
from kbroker.web.ports import Observed

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
QUANTILES = {"0.50": 0.5, "0.75": 0.75, "0.95": 0.95, "0.98": 0.98, "0.99": 0.99, "0.999": 0.999}
"""Those of Kafka's histograms, by the exporter's label."""

Sample: TypeAlias = tuple[tuple[str, ...], float | Histogram]
"""(label values, value), with a value for each label."""
Samples: TypeAlias = Iterable[Sample]
NodeReader: TypeAlias = Callable[[Observed], Samples | float]
BrokerReader: TypeAlias = Callable[[Broker], Samples | float]
ImageReader: TypeAlias = Callable[[Image], Samples | float]

DECLARED: list[Declared] = []
"""Every metric, in the order of the page."""


@dataclass(frozen=True, slots=True)
class Declared:
    """One metric."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Observed], Samples]


def of_node(kind: str, name: str, *labels: str, help: str = "") -> Callable[[NodeReader], NodeReader]:
    """Declare a metric that is read from the node; it is available from the start."""
    assert name.endswith("_total") == (kind == COUNTER), name

    def declare(read: NodeReader) -> NodeReader:
        text = " ".join((help or read.__doc__ or "").split())
        assert text, f"{name} has no help text"
        if kind != HISTOGRAM:
            DECLARED.append(Declared(name, kind, text, labels, lambda node: _samples(read(node))))
            return read
        with_quantile = (*labels, "quantile")
        DECLARED.append(Declared(name, GAUGE, text, with_quantile, lambda node: _quantiles(node, read(node))))
        counted = f"Number of values of `{name}`."
        DECLARED.append(Declared(f"{name}_count", COUNTER, counted, labels, lambda node: _counts(read(node))))
        own, text = name.replace("kafka_", "kbroker_", 1), f"{text} As a histogram."
        DECLARED.append(Declared(own, HISTOGRAM, text, labels, lambda node: _samples(read(node))))
        return read

    return declare


def of_broker(kind: str, name: str, *labels: str, help: str = "") -> Callable[[BrokerReader], BrokerReader]:
    """Declare a metric that is read from the broker; it is available once the logs are open."""

    def declare(read: BrokerReader) -> BrokerReader:
        text = help or read.__doc__ or ""
        of_node(kind, name, *labels, help=text)(lambda node: () if node.broker is None else read(node.broker))
        return read

    return declare


def of_image(kind: str, name: str, *, help: str = "") -> Callable[[ImageReader], ImageReader]:
    """Declare a metric that is read from the metadata; it is available once they are loaded, also on a controller."""
    return _of_image(kind, name, help, lambda _: True)


def of_controller(kind: str, name: str, *, help: str = "") -> Callable[[ImageReader], ImageReader]:
    """Declare a metric of the whole cluster: as `of_image`, but only on the controller, so that `sum()` counts once."""
    return _of_image(kind, name, help, lambda node: node.settings.server.is_controller)


def _of_image(
    kind: str, name: str, help: str, is_here: Callable[[Observed], bool]
) -> Callable[[ImageReader], ImageReader]:
    def declare(read: ImageReader) -> ImageReader:
        text = help or read.__doc__ or ""
        of_node(kind, name, help=text)(lambda node: () if node.image is None or not is_here(node) else read(node.image))
        return read

    return declare


def by_topic(values: Iterable[tuple[str, int]]) -> Samples:
    """The sum of each topic."""
    topics: defaultdict[str, int] = defaultdict(int)
    for topic, value in values:
        topics[topic] += value
    return (((topic,), value) for topic, value in topics.items())


def _samples(read: Samples | float) -> Samples:
    return read if isinstance(read, Iterable) else (((), read),)


def _quantiles(node: Observed, read: Samples | float) -> Iterator[Sample]:
    now_ms = node.env.now_ms()
    for labels, histogram in _samples(read):
        assert isinstance(histogram, Histogram)
        recent = histogram.recent(now_ms)
        for label, quantile in QUANTILES.items():
            yield (*labels, label), _quantile_us(recent, quantile) / 1000


def _quantile_us(counts: list[float], quantile: float) -> float:
    """A quantile of a histogram's counts, interpolated in its bucket; NaN if there are no values."""
    wanted, below = quantile * sum(counts), 0.0
    for bits, count in enumerate(counts):
        if count and below + count >= wanted:
            lowest = 2.0 ** (bits - 1) if bits else 0.0
            return lowest + lowest * (wanted - below) / count
        below += count
    return nan


def _counts(read: Samples | float) -> Iterator[Sample]:
    for labels, histogram in _samples(read):
        assert isinstance(histogram, Histogram)
        yield labels, sum(histogram.counts)
