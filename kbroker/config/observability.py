"""Settings of observability: the HTTP pages of a node. Kafka's own keys are accepted but have no effect."""

from __future__ import annotations

from kbroker.config.settings import setting, settings
from kbroker.config.values import Secret

_LOOPBACK = "127.0.0.1"
_SHORTEST_TOKEN = 16


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


def token_fault(token: Secret | None) -> str | None:
    """Why a text cannot be the token of the pages; None if it can. The answer does not contain the text."""
    if token is None:
        return None
    text = token.reveal()
    if len(text) < _SHORTEST_TOKEN:
        return f"a token has at least {_SHORTEST_TOKEN} characters, so that it cannot be guessed"
    if not text.isascii() or not text.isprintable() or " " in text:
        return "a token has printable ASCII characters without blanks"
    return None


PAGES = "http"
"""The name of the listener of the pages in settings of TLS."""


@settings
class ObservabilitySettings:
    """The HTTP pages of a running node."""

    kbroker_http_listener: str | None = setting(
        check=_is_http_address,
        doc="Address of the state page, /metrics, /health and /state, as host:port. The default host is loopback. If "
        "unset, the pages are off.",
    )
    kbroker_http_security_protocol: str = setting(
        default="PLAINTEXT",
        one_of=("PLAINTEXT", "SSL"),
        doc="SSL serves the pages over TLS (https), with the settings of TLS of a listener called http: those below "
        "listener.name.http., and for the rest those without a prefix.",
    )
    kbroker_http_hosts: tuple[str, ...] = setting(
        default=(),
        doc="Additional host names that requests for the pages may use. IP addresses, names without a dot, and the "
        "names in kbroker.http.listener and advertised.listeners are always allowed. Any other name gets status 421.",
    )
    kbroker_http_token: Secret | None = setting(
        check=token_fault,
        doc="Token that requests for the pages must have, except for those of /health: as 'Authorization: Bearer "
        "TOKEN', or as the password in a browser. If unset, everybody who can connect can read the pages. `kbroker "
        "serve` also reads it from the environment variable KBROKER_HTTP_TOKEN.",
    )
    kbroker_http_token_file: str | None = setting(
        doc="A file with that token, read at the start; overrides kbroker.http.token."
    )
