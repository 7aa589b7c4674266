"""Parses and checks `listeners`, `advertised.listeners` and the settings that refer to them.

Source: `SocketServerConfigs.listenerListToEndPoints` and the checks of `KafkaConfig.validateValues` of Apache Kafka
4.3.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address, IPv6Network
from typing import NamedTuple

from kbroker.config.server import ServerSettings
from kbroker.config.values import ConfigError, parse_list

_URI = re.compile(
    r"(?P<name>[A-Za-z0-9_.-]+)://(\[(?P<v6>[0-9A-Fa-f:.%a-z]+)\]|(?P<host>[0-9A-Za-z_.%-]*)):(?P<port>-?[0-9]+)",
    re.ASCII,
)
_SHARED_NETWORKS = tuple(map(IPv6Network, ("fe80::/10", "fc00::/7", "64:ff9b::/32")))
"""Networks of 64 bits in these have many machines: those of a link, of a site, and IPv4 clients behind a NAT64."""
EVERY_INTERFACE = ("0.0.0.0", "::")  # noqa: S104  (compared with, not bound)
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""The index is the protocol's number in registrations and in Kafka's requests."""


class Listener(NamedTuple):
    """A named address.

    Shape   host None is every interface; port 0 is any free port
    """

    name: str
    host: str | None
    port: int

    def __str__(self) -> str:
        host = self.host or ""
        return f"{self.name}://{f'[{host}]' if ':' in host else host}:{self.port}"


class Listeners(NamedTuple):
    """The addresses on which a node listens, and those that it advertises.

    Shape   bound and advertised are for clients and other brokers, empty without the role broker; controllers and
            advertised_controllers are the controller's, empty without that role. advertised has an entry for each
            advertised listener; the caller replaces a host None and a port 0 by the bound address
            inter_broker_name is the listener for connections between brokers, controller_name the controllers'
            listener to which brokers connect; None if the node has or knows none. protocols is the protocol of each of
            these listeners
    """

    bound: tuple[Listener, ...]
    advertised: tuple[Listener, ...]
    controllers: tuple[Listener, ...]
    advertised_controllers: tuple[Listener, ...]
    inter_broker_name: str | None
    controller_name: str | None
    protocols: Mapping[str, str]


def is_loopback(host: str) -> bool:
    """Whether an address is reachable only from this machine."""
    return host == "::1" or host.startswith("127.")


def counted_address(host: str) -> str:
    """What limits for addresses count as one client: an IPv4 address, or an IPv6 network of 64 bits.

    A host with one address of such a network can usually take any other one. Addresses in _SHARED_NETWORKS and loopback
    addresses are counted by themselves.
    """
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    if address.is_loopback or any(address in network for network in _SHARED_NETWORKS):
        return host
    return str(IPv6Network((int(address) >> 64 << 64, 64)))


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

    Errors  ConfigError, if Kafka refuses the settings too
    """
    controller_names = tuple(name.upper() for name in server.controller_listener_names)
    every = _parse_all(server.listeners, key="listeners")
    _check_ports(every)
    bound = tuple(one for one in every if one.name not in controller_names)
    controllers = tuple(one for one in every if one.name in controller_names)
    _check_roles(server, bound, controllers)
    protocols = _protocols(server, every)
    if server.advertised_listeners:
        advertised = _parse_all(server.advertised_listeners, key="advertised.listeners")
    else:
        # Kafka refuses to start if the host is every interface. kbroker starts: the default is for local use.
        advertised = tuple(one._replace(host=None) if one.host in EVERY_INTERFACE else one for one in every)
    _check_advertised(advertised, every)
    of_broker = tuple(one for one in advertised if one.name not in controller_names)
    of_controller = tuple(one for one in advertised if one.name in controller_names)
    # Kafka's default for a controller listener that advertised.listeners does not name.
    known = [one.name for one in of_controller]
    of_controller += tuple(one for one in controllers if one.name not in known)
    return Listeners(
        bound,
        of_broker,
        controllers,
        of_controller,
        _inter_broker(server, of_broker) if server.is_broker else None,
        next(iter(controller_names), None),
        protocols,
    )


def _check_roles(server: ServerSettings, bound: Sequence[Listener], controllers: Sequence[Listener]) -> None:
    """Check that each listener has a role, and each role what it needs. Errors: ConfigError."""
    if server.is_broker and not bound:
        raise ConfigError("listeners: at least one listener must not be in controller.listener.names")
    if not server.is_broker and bound:
        raise ConfigError(
            f"listeners: process.roles=controller opens only controller listeners; add {bound[0].name} to "
            "controller.listener.names, or remove it from listeners"
        )
    if not server.is_controller and not server.controller_listener_names:
        raise ConfigError(
            "controller.listener.names: process.roles=broker needs the name of the controllers' listener, such as "
            "CONTROLLER"
        )
    if not server.is_controller and controllers:
        raise ConfigError(
            f"listeners: process.roles=broker opens no controller listener; remove {controllers[0]} from listeners"
        )


def _check_advertised(advertised: Sequence[Listener], every: Sequence[Listener]) -> None:
    names = [one.name for one in every]
    for one in advertised:
        if one.name not in names:
            raise ConfigError(
                f"advertised.listeners: {one.name} is not among the names in listeners ({', '.join(names)})"
            )
        if one.host in EVERY_INTERFACE:
            raise ConfigError(
                f"advertised.listeners: clients cannot connect to {one}; use an address that they can reach"
            )


def _inter_broker(server: ServerSettings, advertised: Sequence[Listener]) -> str:
    names = [one.name for one in advertised]
    protocol = server.security_inter_broker_protocol
    if server.inter_broker_listener_name is None:
        if protocol != "PLAINTEXT" and protocol not in names:
            raise ConfigError(
                f"security.inter.broker.protocol: no listener is called {protocol} ({', '.join(names)}); set "
                "inter.broker.listener.name instead"
            )
        return protocol if protocol in names else names[0]
    if protocol != "PLAINTEXT":
        raise ConfigError("Only one of inter.broker.listener.name and security.inter.broker.protocol should be set.")
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


def _protocols(server: ServerSettings, listeners: Sequence[Listener]) -> dict[str, str]:
    """The protocol of each listener by name. Errors: ConfigError."""
    protocols: dict[str, str] = {}
    for entry in parse_list(server.listener_security_protocol_map.strip()):
        name, colon, protocol = entry.partition(":")
        if not colon or protocol.strip().upper() not in PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map: {entry!r} is not NAME:PROTOCOL with one of {', '.join(PROTOCOLS)}"
            )
        protocols[name.strip().upper()] = protocol.strip().upper()
    controller_names = [name.upper() for name in server.controller_listener_names]
    found = {}
    # The controllers' listener to which a broker connects is not among its own.
    for name in dict.fromkeys([*(one.name for one in listeners), *controller_names[:1]]):
        # A controller listener needs no entry. Its default is PLAINTEXT.
        protocol = protocols.get(name, "PLAINTEXT" if name in controller_names else "")
        if not protocol:
            raise ConfigError(f"listener.security.protocol.map: the listener {name} has no protocol")
        found[name] = protocol
    return found
