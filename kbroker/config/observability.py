"""Settings of observability, none of which has an effect yet: known, so that files written for Kafka can be read."""

from __future__ import annotations

from kbroker.config.settings import (
    MB,
    SECOND,
    Dynamic,
    Setting,
    harmless,
)
from kbroker.config.values import Kind

CLUSTER_WIDE, PER_BROKER = Dynamic.CLUSTER_WIDE, Dynamic.PER_BROKER

KNOWN: tuple[Setting, ...] = (
    *harmless(
        "kbroker's metrics are not those of the JVM.",
        kafka_metrics_polling_interval_secs=Setting(10, at_least=1),
        kafka_metrics_reporters=Setting(()),
        metric_reporters=Setting(("org.apache.kafka.common.metrics.JmxReporter",), dynamic=CLUSTER_WIDE),
        metrics_num_samples=Setting(2, at_least=1),
        metrics_recording_level=Setting("INFO"),
        metrics_sample_window_ms=Setting(30 * SECOND, kind=Kind.LONG, at_least=1),
    ),
    *harmless(
        "Clients' telemetry is not collected.",
        telemetry_max_bytes=Setting(MB, at_least=1),
    ),
)
