"""Translates a Java client's settings into settings of `kbroker.client`.

They have the names and meanings of kafka-python's settings, which are also accepted.

Source  ConsumerConfig, ProducerConfig and AdminClientConfig of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from kbroker.config.jaas import parse_jaas
from kbroker.config.server import is_ip
from kbroker.config.values import ConfigError, as_boolean

DEFAULT_PORT: Final = 9092

_SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def _security_protocol(text: str) -> str:
    """A protocol's name; as in Java, case does not matter."""
    if text.upper() not in _SECURITY_PROTOCOLS:
        raise ConfigError(f"security.protocol={text} is not one of {', '.join(_SECURITY_PROTOCOLS)}")
    return text.upper()


def token_file(text: str) -> str:
    """The path in a URL of a file with a token, as Java clients take it. Errors: ConfigError for other URLs."""
    if not text.startswith("file:"):
        raise ConfigError("sasl.oauthbearer.token.endpoint.url must be file:PATH: only tokens in files are supported")
    return unquote(urlsplit(text).path)


# Java's name: our name and the type of its value.
_RENAMED: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "client.id": ("client_id", str),
    "connections.max.idle.ms": ("connections_max_idle_ms", int),
    "default.api.timeout.ms": ("bootstrap_timeout_ms", int),
    "metadata.max.age.ms": ("metadata_max_age_ms", int),
    "receive.buffer.bytes": ("receive_buffer_bytes", int),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", int),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", int),
    "request.timeout.ms": ("request_timeout_ms", int),
    "retry.backoff.ms": ("retry_backoff_ms", int),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", str),
    "sasl.mechanism": ("sasl_mechanism", str),
    "sasl.oauthbearer.token.endpoint.url": ("sasl_oauthbearer_token_file", token_file),
    "security.protocol": ("security_protocol", _security_protocol),
    "send.buffer.bytes": ("send_buffer_bytes", int),
    "ssl.key.password": ("ssl_password", str),
}
_OWN_NAMES: Final[Mapping[str, Callable[[str], Any]]] = {
    "bootstrap_timeout_ms": int,
    "sasl_plain_password": str,
    "sasl_plain_username": str,
    "ssl_cafile": str,
    "ssl_certfile": str,
    "ssl_check_hostname": bool,
    "ssl_crlfile": str,
    "ssl_keyfile": str,
    "ssl_password": str,
    **dict(_RENAMED.values()),
}
# The smallest value of a number, if it is not 0.
_LOWEST: Final[Mapping[str, int]] = {
    "bootstrap_timeout_ms": 1,
    "connections_max_idle_ms": -1,
    "heartbeat_interval_ms": 1,
    "max_in_flight_requests_per_connection": 1,
    "max_poll_interval_ms": 1,
    "max_poll_records": 1,
    "receive_buffer_bytes": -1,
    "request_timeout_ms": 1,
    "send_buffer_bytes": -1,
}
_STORES: Final = frozenset({"ssl.truststore.location", "ssl.keystore.location"})
_SILENT: Final = frozenset({"bootstrap.servers", "ssl.truststore.type", "ssl.keystore.type"})
_OTHERS: Final = frozenset({"sasl.jaas.config", "ssl.endpoint.identification.algorithm"})

KNOWN: Final = frozenset({*_RENAMED, *_OWN_NAMES, *_STORES, *_SILENT, *_OTHERS})
"""Every name that `translate` accepts even without `known`."""


def translate(
    properties: Mapping[str, str], *, known: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Translate properties into settings of the client; also return the names of ignored properties.

    Shape   `known` maps further settings to their defaults; the type of a default is the type of the value
    Errors  ConfigError
    """
    settings: dict[str, Any] = {}
    ignored: list[str] = []
    for key, value in properties.items():
        if key == "sasl.jaas.config":
            settings |= _jaas(value)
        elif key in _STORES:
            settings |= _store(key, value, properties)
        elif key == "ssl.endpoint.identification.algorithm":
            settings["ssl_check_hostname"] = bool(value.strip())
        elif key in _SILENT:
            continue
        elif key in _RENAMED or key in _OWN_NAMES:
            name, kind = _RENAMED.get(key) or (key, _OWN_NAMES[key])
            settings[name] = _convert(key, name, value.strip(), kind)
        elif (name := key.replace(".", "_")) in (known or {}):
            default = (known or {})[name]
            settings[name] = _convert(key, name, value.strip(), str if default is None else type(default))
        else:
            ignored.append(key)
    return settings, ignored


def _convert(key: str, name: str, value: str, kind: Callable[[str], Any]) -> Any:
    """Convert a text to a flag, a number or another kind of value."""
    if kind is bool:
        if (flag := as_boolean(value)) is None:
            raise ConfigError(f"{key}={value} is neither true nor false")
        return flag
    if kind is not int:
        return kind(value)
    try:
        number = int(value)
    except ValueError as error:
        raise ConfigError(f"{key}={value} is not a number") from error
    if number < (lowest := _LOWEST.get(name, 0)):
        raise ConfigError(f"{key}={value} is less than {lowest}")
    return number


def _jaas(text: str) -> dict[str, str]:
    """User name and password, or the file with the token, from the line of a login module."""
    module = parse_jaas(text)
    found = module.options
    if module.name == "OAuthBearerLoginModule":
        return {"sasl_oauthbearer_token_file": found["tokenFile"]} if "tokenFile" in found else {}
    if "username" not in found or "password" not in found:
        raise ConfigError("sasl.jaas.config has no username and password")
    return {"sasl_plain_username": found["username"], "sasl_plain_password": found["password"]}


def _store(key: str, location: str, properties: Mapping[str, str]) -> dict[str, str]:
    """The settings for a key store or trust store, which must be a PEM file."""
    type_key = key.replace("location", "type")
    kind = properties.get(type_key, "JKS").upper()
    if kind != "PEM":
        raise ConfigError(
            f"{key}: kbroker's clients read only PEM files, not {kind}. Convert it (PKCS12: openssl pkcs12 -nodes -in "
            f"{location} -out client.pem; JKS: first to PKCS12 with keytool -importkeystore), and set {type_key}=PEM"
        )
    return {"ssl_cafile": location} if "trust" in key else {"ssl_certfile": location, "ssl_keyfile": location}


def parse_server(server: str) -> tuple[str, int]:
    """Host and port of `host:port`, `host`, `[address]:port` or an IPv6 address. Errors: ConfigError."""
    if "/" in server:
        raise ConfigError(f"{server!r} is the address of a page; a broker's is host:port")
    host, colon, port = server.rpartition(":")
    if not colon or server.endswith("]") or is_ip(server):
        host, port = server, str(DEFAULT_PORT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not port.isascii() or not port.isdigit() or not host or set(host) & set("[]") or int(port) > 0xFFFF:
        raise ConfigError(f"{server!r} is not of the form host:port")
    return host, int(port)
