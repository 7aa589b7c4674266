"""Parses and checks `listeners`, `advertised.listeners` and the settings that refer to them.

Source: `SocketServerConfigs.listenerListToEndPoints` and the checks of `KafkaConfig.validateValues` of Apache Kafka
4.3.1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kbroker.config.server import ServerSettings
from kbroker.config.values import ConfigError, parse_list

_URI = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)://(\[(?P<v6>[0-9A-Fa-f:.%a-z]+)\]|(?P<host>[0-9A-Za-z_.%-]*)):(?P<port>-?[0-9]+)",
    re.ASCII,
)
EVERY_INTERFACE = ("0.0.0.0", "::")  # noqa: S104  (compared with, not bound)
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True)
class Listener:
    """A named address.

    Shape   host None is every interface; port 0 is any free port
    """

    name: str
    host: str | None
    port: int

    def __str__(self) -> str:
        host = self.host or ""
        return f"{self.name}://{f'[{host}]' if ':' in host else host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listeners:
    """The addresses on which a broker listens, and those that it advertises to clients.

    Shape   advertised has an entry for each advertised listener; the caller replaces a host None and a port 0 by the
            bound address. controllers are the controller listeners in the settings, which the broker does not open.
    """

    bound: tuple[Listener, ...]
    advertised: tuple[Listener, ...]
    controllers: tuple[Listener, ...]
    inter_broker_name: str


def is_loopback(host: str) -> bool:
    """Whether an address is reachable only from this machine."""
    return host == "::1" or host.startswith("127.")


def parse_listener(text: str, *, key: str) -> Listener:
    """Parse `NAME://host:port`; the listener's name is converted to upper case.

    Errors  ConfigError
    """
    if (match := _URI.fullmatch(text)) is None:
        raise ConfigError(f"{key}: {text!r} is not of the form NAME://host:port")
    port = int(match["port"])
    if not 0 <= port <= 0xFFFF:
        raise ConfigError(f"{key}: the port of {text!r} is outside 0 to 65535")
    return Listener(match["name"].upper(), match["v6"] or match["host"] or None, port)


def listeners_of(server: ServerSettings) -> Listeners:
    """The addresses in the server's settings.

    Errors  ConfigError, if Kafka refuses the settings too or a protocol is not implemented yet
    """
    controller_names = {name.upper() for name in server.controller_listener_names}
    every = _parse_all(server.listeners, key="listeners")
    _check_ports(every)
    bound = tuple(one for one in every if one.name not in controller_names)
    if not bound:
        raise ConfigError("listeners: at least one listener must not be in controller.listener.names")
    _check_protocols(server, every)
    if server.advertised_listeners:
        given = _parse_all(server.advertised_listeners, key="advertised.listeners")
        advertised = tuple(one for one in given if one.name not in controller_names)
    else:
        # Kafka refuses to start if the host is every interface. kbroker starts: the default is for local use.
        advertised = tuple(replace(one, host=None) if one.host in EVERY_INTERFACE else one for one in bound)
    names = [one.name for one in bound]
    for one in advertised:
        if one.name not in names:
            raise ConfigError(
                f"advertised.listeners: {one.name} is not among the names in listeners ({', '.join(names)})"
            )
        if one.host in EVERY_INTERFACE:
            raise ConfigError(
                f"advertised.listeners: clients cannot connect to {one}; use an address that they can reach"
            )
    return Listeners(
        bound,
        advertised,
        tuple(one for one in every if one.name in controller_names),
        _inter_broker(server, advertised),
    )


def _inter_broker(server: ServerSettings, advertised: Sequence[Listener]) -> str:
    names = [one.name for one in advertised]
    if server.inter_broker_listener_name is None:
        return "PLAINTEXT" if "PLAINTEXT" in names else names[0]
    name = server.inter_broker_listener_name.upper()
    if name not in names:
        raise ConfigError(
            f"inter.broker.listener.name: {name} is not among the advertised listeners ({', '.join(names)})"
        )
    return name


def _parse_all(texts: Sequence[str], *, key: str) -> tuple[Listener, ...]:
    parsed = tuple(parse_listener(text, key=key) for text in texts)
    names = [one.name for one in parsed]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{key}: each listener must have a different name, but {name} occurs twice")
    return parsed


def _check_ports(listeners: Sequence[Listener]) -> None:
    """Two listeners may share a port only if their hosts differ (one for IPv4 and one for IPv6, or two interfaces)."""
    for index, one in enumerate(listeners):
        for other in listeners[:index]:
            if one.port == other.port != 0 and (one.host == other.host or None in (one.host, other.host)):
                raise ConfigError(f"listeners: {other} and {one} are on the same port")


def _check_protocols(server: ServerSettings, listeners: Sequence[Listener]) -> None:
    protocols: dict[str, str] = {}
    for entry in parse_list(server.listener_security_protocol_map.strip()):
        name, colon, protocol = entry.partition(":")
        if not colon or protocol.strip().upper() not in PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map: {entry!r} is not NAME:PROTOCOL with one of {', '.join(PROTOCOLS)}"
            )
        protocols[name.strip().upper()] = protocol.strip().upper()
    for one in listeners:
        # A controller listener needs no entry. Its default is PLAINTEXT.
        protocol = protocols.get(
            one.name, "PLAINTEXT" if one.name in map(str.upper, server.controller_listener_names) else ""
        )
        if not protocol:
            raise ConfigError(f"listener.security.protocol.map: the listener {one.name} has no protocol")
        if protocol != "PLAINTEXT":
            raise ConfigError(f"listeners: {one} uses {protocol}; only PLAINTEXT is implemented yet")
