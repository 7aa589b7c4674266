"""Settings of the server: identity, listeners, connections and sockets."""

from __future__ import annotations

from ipaddress import ip_address

from kbroker.config.settings import (
    KB,
    MAX_INT32,
    MAX_INT64,
    MB,
    MINUTE,
    SECOND,
    Dynamic,
    Setting,
    harmless,
    refused,
    setting,
    settings,
)
from kbroker.config.values import Kind

CLUSTER_WIDE, PER_BROKER = Dynamic.CLUSTER_WIDE, Dynamic.PER_BROKER


def _only_the_combined_node(roles: tuple[str, ...]) -> str | None:
    if set(roles) == {"broker", "controller"}:
        return None
    return "a node is broker and controller in one; nodes with one of these roles are not implemented yet"


def _positive_or_system(size: int) -> str | None:
    return None if size == -1 or size > 0 else "Value must be positive, or -1 for the operating system's default"


def connections_by_address(text: str) -> dict[str, int]:
    """What max.connections.per.ip.overrides says: addresses and how many connections each may have; ValueError."""
    found = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        address, separator, count = item.rpartition(":")
        if not separator or not address or not count.isdecimal():
            raise ValueError(f"{item!r} is not of the form address:count")
        address = address.removeprefix("[").removesuffix("]")
        # In the form in which the peers of connections are written; a host name matches no peer.
        found[str(ip_address(address)) if is_ip(address) else address] = int(count)
    return found


EVERYBODY_OUT = (
    "no client could connect and change this again: max.connections must be at least 1, and max.connections.per.ip can "
    "be zero only with max.connections.per.ip.overrides that let an IP address in"
)


def keeps_everybody_out(limit: int, limit_per_ip: int, overrides: str) -> bool:
    """Whether no address may have a connection; arguments are the values of the settings in EVERYBODY_OUT."""
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
    """Who this node is, where it listens, and what it takes from a connection."""

    node_id: int = setting(
        default=1,
        at_least=0,
        doc="The node's number in its cluster. Written into the data directory when that is formatted.",
    )
    broker_id: int = setting(default=-1, doc="Older name of node.id. Where both are given they must agree.")
    broker_rack: str | None = setting(
        kind=Kind.STRING, doc="The rack or zone of this broker, told to clients in Metadata."
    )
    process_roles: tuple[str, ...] = setting(
        default=("broker", "controller"),
        one_of=("broker", "controller"),
        check=_only_the_combined_node,
        doc="What this process does in the cluster.",
    )
    listeners: tuple[str, ...] = setting(
        default=("PLAINTEXT://:9092",),
        doc="Where to listen, as NAME://host:port; no host is every interface, port 0 any free one.",
    )
    advertised_listeners: tuple[str, ...] | None = setting(
        kind=Kind.LIST,
        doc="The addresses told to clients, where they differ from those listened on (containers, proxies, NAT).",
    )
    listener_security_protocol_map: str = setting(
        default="SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        doc="Which protocol each listener name speaks. Only PLAINTEXT can be served yet.",
    )
    inter_broker_listener_name: str | None = setting(
        kind=Kind.STRING, doc="The listener by which brokers reach one another."
    )
    controller_listener_names: tuple[str, ...] = setting(
        default=(),
        doc="Listeners kept for controllers. The controller is in this process, so nothing is opened for them.",
    )
    controller_quorum_voters: tuple[str, ...] = setting(
        default=(), doc="The controllers as id@host:port. Only this node itself can stand here yet."
    )
    controller_quorum_bootstrap_servers: tuple[str, ...] = setting(
        default=(),
        doc="Where controllers are found, as host:port. Only this node's own controller listener can stand here yet.",
    )
    socket_request_max_bytes: int = setting(
        default=100 * MB,
        at_least=1,
        doc="The largest request. A connection that announces a larger one is closed at once.",
    )
    socket_send_buffer_bytes: int = setting(
        default=100 * KB,
        check=_positive_or_system,
        doc="SO_SNDBUF of a connection; -1 leaves it to the operating system.",
    )
    socket_receive_buffer_bytes: int = setting(
        default=100 * KB,
        check=_positive_or_system,
        doc="SO_RCVBUF of a connection; -1 leaves it to the operating system.",
    )
    socket_listen_backlog_size: int = setting(
        default=50, at_least=1, doc="How many connections may wait to be accepted."
    )
    queued_max_request_bytes: int = setting(
        default=-1,
        kind=Kind.LONG,
        doc="The memory for requests that arrive or are answered; -1: no bound. Beyond it the broker receives no more "
        "of them, but for one. Those of up to 2 MiB have a part of it for themselves.",
    )
    connections_max_idle_ms: int = setting(
        default=10 * MINUTE, kind=Kind.LONG, doc="A connection without a request for so long is closed."
    )
    max_connections: int = setting(
        default=MAX_INT32,
        at_least=0,
        dynamic=CLUSTER_WIDE,
        doc="How many connections there may be; further ones wait to be accepted. 0 is refused.",
    )
    max_connections_per_ip: int = setting(
        default=MAX_INT32,
        at_least=0,
        dynamic=CLUSTER_WIDE,
        doc="How many connections one address may have; further ones are closed. 0 needs overrides. A loopback "
        "address always has one.",
    )
    max_connections_per_ip_overrides: str = setting(
        default="",
        check=_addresses_and_counts,
        dynamic=CLUSTER_WIDE,
        doc="Other limits than max.connections.per.ip for single addresses, as address:count with commas between.",
    )
    max_connection_creation_rate: int = setting(
        default=MAX_INT32,
        at_least=1,
        dynamic=CLUSTER_WIDE,
        doc="How many connections a second are accepted; further ones wait.",
    )

    @property
    def keeps_everybody_out(self) -> bool:
        """Whether no address may have a connection."""
        return keeps_everybody_out(
            self.max_connections, self.max_connections_per_ip, self.max_connections_per_ip_overrides
        )


KNOWN: tuple[Setting, ...] = (
    *harmless(
        "One event loop serves every connection; there are no thread pools to size.",
        background_threads=Setting(10, at_least=1, dynamic=CLUSTER_WIDE),
        num_io_threads=Setting(8, at_least=1, dynamic=CLUSTER_WIDE),
        num_network_threads=Setting(3, at_least=1, dynamic=CLUSTER_WIDE),
    ),
    *harmless(
        "A connection holds one request at a time, and none waits in a queue between threads.",
        queued_max_requests=Setting(500, at_least=1),
    ),
    *harmless(
        "This node opens no connections to other nodes yet.",
        controller_socket_timeout_ms=Setting(30 * SECOND),
        request_timeout_ms=Setting(30 * SECOND),
        socket_connection_setup_timeout_max_ms=Setting(30 * SECOND, kind=Kind.LONG),
        socket_connection_setup_timeout_ms=Setting(10 * SECOND, kind=Kind.LONG),
    ),
    *harmless(
        "Every listener opens when the broker is ready, and every stop by a signal is a controlled one.",
        controlled_shutdown_enable=Setting(True),
        early_start_listeners=Setting(kind=Kind.LIST),
    ),
    *harmless(
        "Names start-up checks and interfaces that Apache Kafka keeps for its own tests.",
        server_max_startup_time_ms=Setting(MAX_INT64, kind=Kind.LONG, at_least=0, internal=True),
        unstable_api_versions_enable=Setting(False, internal=True),
        unstable_feature_versions_enable=Setting(False, internal=True),
    ),
    *harmless(
        "Throttling clients by quota is not implemented yet, so there are no samples to size.",
        quota_window_num=Setting(11, at_least=1),
        quota_window_size_seconds=Setting(1, at_least=1),
    ),
    *refused(
        "Classes of the JVM cannot be loaded here.",
        alter_config_policy_class_name=Setting(kind=Kind.CLASS),
        client_quota_callback_class=Setting(kind=Kind.CLASS),
        config_providers=Setting((), dynamic=CLUSTER_WIDE),
        create_topic_policy_class_name=Setting(kind=Kind.CLASS),
    ),
)
