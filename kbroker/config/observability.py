"""Settings of observability: the HTTP pages of a node. Kafka's own keys are accepted but have no effect."""

from __future__ import annotations

from kbroker.config.settings import (
    MB,
    SECOND,
    Dynamic,
    Setting,
    harmless,
    setting,
    settings,
)
from kbroker.config.values import Kind

CLUSTER_WIDE, PER_BROKER = Dynamic.CLUSTER_WIDE, Dynamic.PER_BROKER

_LOOPBACK = "127.0.0.1"


def http_address(text: str) -> tuple[str, int]:
    """Host and port of `kbroker.http.listener`; the default host is loopback. Errors: ValueError."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdecimal() or not port.isascii() or int(port) > 0xFFFF:
        raise ValueError(f"{text!r} is not of the form host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address must be in brackets")
    return host or _LOOPBACK, int(port)


def _is_http_address(text: str | None) -> str | None:
    try:
        if text is not None:
            http_address(text)
    except ValueError as error:
        return str(error)
    return None


@settings
class ObservabilitySettings:
    """The HTTP pages of a running node."""

    kbroker_http_listener: str | None = setting(
        kind=Kind.STRING,
        check=_is_http_address,
        doc="Address of the pages /metrics, /health and /state, as host:port. The default host is loopback. If unset, "
        "the pages are off.",
    )
    kbroker_http_hosts: tuple[str, ...] = setting(
        default=(),
        doc="Additional host names that requests for the pages may use. IP addresses, names without a dot, and the "
        "names in kbroker.http.listener and advertised.listeners are always allowed. Any other name gets status 421.",
    )


KNOWN: tuple[Setting, ...] = (
    *harmless(
        "kbroker has its own metrics, not those of the JVM.",
        kafka_metrics_polling_interval_secs=Setting(10, at_least=1),
        kafka_metrics_reporters=Setting(()),
        metric_reporters=Setting(("org.apache.kafka.common.metrics.JmxReporter",), dynamic=CLUSTER_WIDE),
        metrics_num_samples=Setting(2, at_least=1),
        metrics_recording_level=Setting("INFO"),
        metrics_sample_window_ms=Setting(30 * SECOND, kind=Kind.LONG, at_least=1),
    ),
    *harmless(
        "The broker does not collect telemetry from clients.",
        telemetry_max_bytes=Setting(MB, at_least=1),
    ),
)
