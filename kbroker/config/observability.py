"""Settings of observability: the pages about a node; and Kafka's own keys, known so that its files can be read."""

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
    """The host and port of `kbroker.http.listener`; ValueError if it is none. Without a host it is loopback."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdecimal() or not port.isascii() or int(port) > 0xFFFF:
        raise ValueError(f"{text!r} is not of the form host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets")
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
    """What a running node shows of itself."""

    kbroker_http_listener: str | None = setting(
        kind=Kind.STRING,
        check=_is_http_address,
        doc="Where /metrics, /health and /state are served, as host:port; loopback without a host, nowhere if unset.",
    )
    kbroker_http_hosts: tuple[str, ...] = setting(
        default=(),
        doc="Host names by which the pages may be read, besides IP addresses, names without a dot, and the names in "
        "kbroker.http.listener and advertised.listeners. A request for any other name gets status 421.",
    )


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
