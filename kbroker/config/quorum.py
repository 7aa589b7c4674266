"""Where the controllers are: `controller.quorum.voters` and `controller.quorum.bootstrap.servers`.

kbroker implements no consensus. A node with the role controller is the only controller of its cluster. A cluster with
several controllers runs Apache Kafka's, and kbroker has only the role broker.

Source: QuorumConfig and the checks of KafkaConfig of Apache Kafka 4.3.1.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kbroker.config.listeners import Listeners
from kbroker.config.server import ServerSettings
from kbroker.config.values import ConfigError

_ADDRESS = re.compile(
    r"((?P<id>[0-9]{1,10})@)?(\[(?P<v6>[0-9A-Fa-f:.%a-z]+)\]|(?P<host>[0-9A-Za-z_.%-]+)):(?P<port>[0-9]{1,5})", re.ASCII
)
_SEVERAL = (
    "a kbroker controller is the only one of its cluster; for several controllers run Apache Kafka's, and kbroker with "
    "process.roles=broker"
)


class ControllerAddress(NamedTuple):
    """The address of one controller. id is None for an address from controller.quorum.bootstrap.servers."""

    host: str
    port: int
    id: int | None = None


def quorum_of(server: ServerSettings, listeners: Listeners) -> tuple[ControllerAddress, ...]:
    """The controllers in the settings: the voters, then the bootstrap servers.

    Errors  ConfigError, if the roles do not allow them
    """
    voters = [_parse(text, "controller.quorum.voters") for text in server.controller_quorum_voters]
    servers = [
        _parse(text, "controller.quorum.bootstrap.servers") for text in server.controller_quorum_bootstrap_servers
    ]
    if server.is_controller:
        own_ports = [one.port for one in (*listeners.controllers, *listeners.advertised_controllers)]
        for voter in voters:
            if voter.id != server.node_id:
                raise ConfigError(
                    f"controller.quorum.voters: {voter.id}@{voter.host} is not this node ({server.node_id}); {_SEVERAL}"
                )
        for one in servers:
            if len(servers) > 1 or one.port not in own_ports:
                raise ConfigError(
                    f"controller.quorum.bootstrap.servers: {one.host}:{one.port} is not this node's own controller "
                    f"listener; {_SEVERAL}"
                )
    else:
        if not voters and not servers:
            raise ConfigError(
                "process.roles=broker needs the controllers' addresses: set controller.quorum.bootstrap.servers to "
                "host:port, or controller.quorum.voters to id@host:port"
            )
        if any(voter.id == server.node_id for voter in voters):
            raise ConfigError(
                f"controller.quorum.voters: node {server.node_id} is a controller; a node with process.roles=broker "
                "needs another node.id"
            )
    return (*voters, *servers)


def _parse(text: str, key: str) -> ControllerAddress:
    match = _ADDRESS.fullmatch(text)
    has_id = key == "controller.quorum.voters"
    if match is None or (match["id"] is not None) != has_id or not int(match["port"]) <= 0xFFFF:
        raise ConfigError(f"{key}: {text!r} is not of the form {'id@' if has_id else ''}host:port")
    return ControllerAddress(
        match["v6"] or match["host"], int(match["port"]), None if match["id"] is None else int(match["id"])
    )
