"""`listeners`, `advertised.listeners` and the settings that name them, as addresses.

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
    """One address under its name.

    Shape   host None is every interface; port 0 is any free one
    """

    name: str
    host: str | None
    port: int

    def __str__(self) -> str:
        host = self.host or ""
        return f"{self.name}://{f'[{host}]' if ':' in host else host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Listeners:
    """Where a broker listens for clients, and what it tells them.

    Shape   advertised has an entry for each listener that clients are told of; one without a host (None) or with port
            0 is to be completed by what was bound. controllers are named in the settings but not opened.
    """

    bound: tuple[Listener, ...]
    advertised: tuple[Listener, ...]
    controllers: tuple[Listener, ...]
    inter_broker_name: str


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address."""
    return host == "::1" or host.startswith("127.")


def parse_listener(text: str, *, key: str) -> Listener:
    """`NAME://host:port` as a Listener; names are compared in upper case.

    Errors  ConfigError
    """
    if (match := _URI.fullmatch(text)) is None:
        raise ConfigError(f"{key}: {text!r} is no address of the form NAME://host:port")
    port = int(match["port"])
    if not 0 <= port <= 0xFFFF:
        raise ConfigError(f"{key}: the port of {text!r} is outside 0 to 65535")
    return Listener(match["name"].upper(), match["v6"] or match["host"] or None, port)


def listeners_of(server: ServerSettings) -> Listeners:
    """The addresses that some settings mean.

    Errors  ConfigError, where Kafka would refuse them too or a protocol is not implemented yet
    """
    controller_names = {name.upper() for name in server.controller_listener_names}
    every = _parse_all(server.listeners, key="listeners")
    _check_ports(every)
    bound = tuple(one for one in every if one.name not in controller_names)
    if not bound:
        raise ConfigError("listeners: there must be at least one that is not in controller.listener.names")
    _check_protocols(server, every)
    if server.advertised_listeners:
        told = _parse_all(server.advertised_listeners, key="advertised.listeners")
        advertised = tuple(one for one in told if one.name not in controller_names)
    else:
        # Kafka refuses to start here. A broker that was told nothing else is most likely meant for this machine.
        advertised = tuple(replace(one, host=None) if one.host in EVERY_INTERFACE else one for one in bound)
    names = [one.name for one in bound]
    for one in advertised:
        if one.name not in names:
            raise ConfigError(
                f"advertised.listeners: {one.name} is not among the names in listeners ({', '.join(names)})"
            )
        if one.host in EVERY_INTERFACE:
            raise ConfigError(
                f"advertised.listeners: no client can connect to {one}; name an address that it can reach"
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
            raise ConfigError(f"{key}: each listener must have a different name, and {name} comes twice")
    return parsed


def _check_ports(listeners: Sequence[Listener]) -> None:
    """One port is for one listener, unless the hosts differ (one for IPv4 and one for IPv6, or two interfaces)."""
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
        # A controller's listener needs no entry: it speaks PLAINTEXT unless something else is said.
        protocol = protocols.get(
            one.name, "PLAINTEXT" if one.name in map(str.upper, server.controller_listener_names) else ""
        )
        if not protocol:
            raise ConfigError(f"listener.security.protocol.map: no protocol is given for the listener {one.name}")
        if protocol != "PLAINTEXT":
            raise ConfigError(f"listeners: {one} speaks {protocol}, which is not implemented yet; only PLAINTEXT is")
