"""Settings of observability: the HTTP pages of a node. Kafka's own keys are accepted but have no effect."""

from __future__ import annotations

from kbroker.config.settings import setting, settings

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
        check=_is_http_address,
        doc="Address of the state page, /metrics, /health and /state, as host:port. The default host is loopback. If "
        "unset, the pages are off.",
    )
    kbroker_http_hosts: tuple[str, ...] = setting(
        default=(),
        doc="Additional host names that requests for the pages may use. IP addresses, names without a dot, and the "
        "names in kbroker.http.listener and advertised.listeners are always allowed. Any other name gets status 421.",
    )
