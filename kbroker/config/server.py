"""Settings of the server: identity, listeners, connections and sockets."""

from __future__ import annotations

from ipaddress import ip_address

from kbroker.config.settings import KB, MAX_INT32, MB, MINUTE, Dynamic, Long, setting, settings

CLUSTER_WIDE = Dynamic.CLUSTER_WIDE


def _at_least_one_role(roles: tuple[str, ...]) -> str | None:
    return None if roles else "a node is broker, controller, or both"


def _positive_or_system(size: int) -> str | None:
    return None if size == -1 or size > 0 else "Value must be positive, or -1 for the operating system's default"


def connections_by_address(text: str) -> dict[str, int]:
    """Maximum connections by address, from max.connections.per.ip.overrides. Errors: ValueError."""
    found = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        address, separator, count = item.rpartition(":")
        if not separator or not address or not count.isdecimal():
            raise ValueError(f"{item!r} is not of the form address:count")
        address = address.removeprefix("[").removesuffix("]")
        # Use the same form as peer addresses. A host name never matches a peer.
        found[str(ip_address(address)) if is_ip(address) else address] = int(count)
    return found


EVERYBODY_OUT = (
    "no client could connect to change this again: max.connections must be at least 1, and max.connections.per.ip can "
    "be zero only if max.connections.per.ip.overrides admits an IP address"
)


def keeps_everybody_out(limit: int, limit_per_ip: int, overrides: str) -> bool:
    """Whether these values of the settings in EVERYBODY_OUT admit no connection at all."""
    exceptions = connections_by_address(overrides).items()
    return limit == 0 or (limit_per_ip == 0 and not any(count and is_ip(address) for address, count in exceptions))


def is_ip(text: str) -> bool:
    """Whether a text is an IP address, as opposed to a host name."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _addresses_and_counts(text: str) -> str | None:
    try:
        connections_by_address(text)
    except ValueError as error:
        return str(error)
    return None


@settings
class ServerSettings:
    """The node's identity, its listeners, and the limits of its connections."""

    node_id: int = setting(
        default=1, at_least=0, doc="Id of the node in its cluster. The broker writes it into a new data directory."
    )
    broker_id: int = setting(default=-1, doc="Older name of node.id. If both are set, they must be equal.")
    broker_rack: str | None = setting(doc="Rack or zone of this broker, sent to clients in Metadata responses.")
    process_roles: tuple[str, ...] = setting(
        default=("broker", "controller"),
        one_of=("broker", "controller"),
        check=_at_least_one_role,
        doc="Roles of this node in the cluster. A node without the role controller asks the controllers of "
        "controller.quorum.bootstrap.servers or controller.quorum.voters.",
    )
    listeners: tuple[str, ...] = setting(
        default=("PLAINTEXT://:9092",),
        doc="Addresses on which the broker listens, as NAME://host:port. No host means every interface; port 0 means "
        "any free port.",
    )
    advertised_listeners: tuple[str, ...] | None = setting(
        doc="Addresses that clients use, if they differ from listeners (containers, proxies, NAT)."
    )
    listener_security_protocol_map: str = setting(
        default="SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        doc="Protocol of each listener, by name: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
    )
    security_inter_broker_protocol: str = setting(
        default="PLAINTEXT",
        one_of=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        doc="Protocol of the connections between brokers: the name of their listener if inter.broker.listener.name is "
        "not set.",
    )
    inter_broker_listener_name: str | None = setting(doc="Name of the listener for connections between brokers.")
    controller_listener_names: tuple[str, ...] = setting(
        default=(),
        doc="Names of the controllers' listeners. A broker connects to the first one; only a controller may open them.",
    )
    controller_quorum_voters: tuple[str, ...] = setting(
        default=(),
        doc="The controllers, as id@host:port. A controller may name only itself: several controllers are run with "
        "Apache Kafka.",
    )
    controller_quorum_bootstrap_servers: tuple[str, ...] = setting(
        default=(),
        doc="Addresses of some controllers, as host:port; the broker asks them for the others. A controller may name "
        "only its own listener.",
    )
    socket_request_max_bytes: int = setting(
        default=100 * MB, at_least=1, doc="Largest request. The broker closes a connection that announces a larger one."
    )
    socket_send_buffer_bytes: int = setting(
        default=100 * KB,
        check=_positive_or_system,
        doc="SO_SNDBUF of a connection. -1 means the operating system's default.",
    )
    socket_receive_buffer_bytes: int = setting(
        default=100 * KB,
        check=_positive_or_system,
        doc="SO_RCVBUF of a connection. -1 means the operating system's default.",
    )
    socket_listen_backlog_size: int = setting(
        default=50, at_least=1, doc="Maximum number of connections that wait to be accepted."
    )
    request_timeout_ms: int = setting(
        default=30_000, doc="Time for which the broker repeats a request to the controllers before it fails."
    )
    queued_max_request_bytes: Long = setting(
        default=-1,
        doc="Memory for requests that the broker receives or processes. -1 means no limit. When it is full, the broker "
        "receives only one more request at a time. A part of it is reserved for requests of up to 2 MiB.",
    )
    connections_max_idle_ms: Long = setting(
        default=10 * MINUTE, doc="The broker closes a connection that sends no request for this long."
    )
    max_connections: int = setting(
        default=MAX_INT32,
        at_least=0,
        dynamic=CLUSTER_WIDE,
        doc="Maximum number of connections. Further ones wait to be accepted. If inter.broker.listener.name is not the "
        "only listener, its connections wait only for each other. 0 is not allowed.",
    )
    max_connections_per_ip: int = setting(
        default=MAX_INT32,
        at_least=0,
        dynamic=CLUSTER_WIDE,
        doc="Maximum number of connections from one address. The broker closes further ones. 0 requires overrides. A "
        "loopback address may always have one.",
    )
    max_connections_per_ip_overrides: str = setting(
        default="",
        check=_addresses_and_counts,
        dynamic=CLUSTER_WIDE,
        doc="Limits for single addresses instead of max.connections.per.ip, as comma-separated address:count.",
    )
    max_connection_creation_rate: int = setting(
        default=MAX_INT32,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="Maximum number of connections that the broker accepts per second. Further ones wait.",
    )

    @property
    def is_broker(self) -> bool:
        """Whether this node serves clients and has partitions."""
        return "broker" in self.process_roles

    @property
    def is_controller(self) -> bool:
        """Whether this node decides about the cluster. Otherwise it asks the controllers."""
        return "controller" in self.process_roles

    @property
    def keeps_everybody_out(self) -> bool:
        """Whether the limits admit no connection at all."""
        return keeps_everybody_out(
            self.max_connections, self.max_connections_per_ip, self.max_connections_per_ip_overrides
        )
