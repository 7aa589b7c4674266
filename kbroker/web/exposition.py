"""Renders the metrics page in Prometheus's text format, with Prometheus's own library.

The library renders a whole registry at once, which takes half a second for ten thousand partitions. This module renders
a hundred samples at a time; only the first piece of a metric keeps its HELP and TYPE lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    UntypedMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from kbroker.runtime.metrics import Histogram
from kbroker.web import (  # noqa: F401  (they declare the metrics)
    broker_metrics,
    cleaner_metrics,
    quota_metrics,
    server_metrics,
    tier_metrics,
    transaction_metrics,
)
from kbroker.web.metrics import COUNTER, DECLARED, Declared, Sample
from kbroker.web.ports import Observed

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
SAMPLES_IN_A_PIECE = 100
HISTOGRAMS_IN_A_PIECE = 4
# From 32 us to 34 s; faster values count in the first bucket, slower ones in the last.
BUCKETS = range(5, 26)

_PROCESS = ProcessCollector(registry=None)


class _Piece(Collector):
    """A collector for a few samples, as the library expects it."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """The families, unchanged."""
        return self._families


def render(node: Observed) -> Iterator[bytes]:
    """The page, in pieces."""
    for declared in DECLARED:
        samples = iter(declared.read(node))
        first = True
        while piece := list(islice(samples, _piece_size(declared))):
            text = generate_latest(_Piece(_family(declared, piece)))
            yield text if first else text.split(b"\n", 2)[2]  # HELP and TYPE appear only once
            first = False
    yield generate_latest(_Piece(*_PROCESS.collect()))


def process_metrics() -> list[Metric]:
    """The library's metrics of the process."""
    return list(_PROCESS.collect())


def _piece_size(declared: Declared) -> int:
    return HISTOGRAMS_IN_A_PIECE if declared.kind == "histogram" else SAMPLES_IN_A_PIECE


def _family(declared: Declared, samples: list[Sample]) -> Metric:
    if declared.kind == "histogram":
        histograms = HistogramMetricFamily(declared.name, declared.help, labels=declared.labels)
        for labels, value in samples:
            assert isinstance(value, Histogram)
            histograms.add_metric(labels, _buckets_ms(value), sum_value=value.total / 1000)
        return histograms
    numbers: CounterMetricFamily | GaugeMetricFamily | UntypedMetricFamily
    if declared.kind == COUNTER and not declared.name.endswith("_total"):  # the library would append it
        numbers = UntypedMetricFamily(declared.name, declared.help, labels=declared.labels)
    elif declared.kind == COUNTER:
        numbers = CounterMetricFamily(declared.name.removesuffix("_total"), declared.help, labels=declared.labels)
    else:
        numbers = GaugeMetricFamily(declared.name, declared.help, labels=declared.labels)
    for labels, value in samples:
        assert not isinstance(value, Histogram)
        numbers.add_metric(labels, value)
    return numbers


def _buckets_ms(histogram: Histogram) -> list[tuple[str, float]]:
    """The buckets of a histogram of microseconds: upper bounds in milliseconds, and the number of values below each.

    counts[n] holds values below 2^n us.
    """
    counts = list(histogram.counts)
    below = sum(counts[: BUCKETS.start])
    buckets: list[tuple[str, float]] = []
    for bits in BUCKETS:
        below += counts[bits]
        buckets.append((str(2**bits / 1000), below))
    return [*buckets, ("+Inf", sum(counts))]
