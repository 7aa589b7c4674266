"""A blocking client of a cluster: it finds brokers, leaders and coordinators, and keeps one connection to each broker.

Settings have the names that `kbroker.config.client_properties` translates to. A request fails with a KafkaError: a lost
connection is NETWORK_EXCEPTION, an unknown leader LEADER_NOT_AVAILABLE, no reachable broker BROKER_NOT_AVAILABLE.
`retry` repeats what can be repeated, and looks up the leaders in between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from select import select
from socket import gaierror
from ssl import SSLCertVerificationError
from threading import Event
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from kbroker.client.blocking import Connection
from kbroker.client.security import connect, tls_context
from kbroker.config.client_properties import parse_server
from kbroker.runtime.clocks import RealClocks
from wire.client import UnsupportedApi
from wire.errors import ErrorCode, KafkaError, Malformed, check, code_of
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

T = TypeVar("T")
Partition = tuple[str, int]

BOOTSTRAP_TIMEOUT_MS: Final = 30_000
NOT_TLS: Final = "the server does not use TLS on this port; security.protocol is for a port with TLS"
_SPEAKS_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_EOF_WHILE_READING"})
REQUEST_TIMEOUT_MS: Final = 30_000
RETRY_MS: Final = 100
ANY: Final = None
"""The node id for a request that every broker can answer."""
UNKNOWN_NODE: Final = -1
_ONE_KEY: Final = 3
"""The last version of FindCoordinator for a single key."""


class UnknownPartition(KafkaError):
    """A topic that does not exist, or has no such partition (`index` is None for a topic)."""

    def __init__(self, topic: str, index: int | None = None) -> None:
        name = topic if index is None else f"{topic}-{index}"
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} does not exist")
        self.topic = topic
        self.index = index


def _ignore(_reason: str) -> None:
    pass


def reason_of(error: KafkaError, partitions: Collection[Partition] = ()) -> str:
    """The error and the partition, if there is one."""
    said = error.message or error.code.name
    name = "-".join(map(str, next(iter(partitions)))) if len(partitions) == 1 else ""
    return f"{name}: {said}" if name and name not in said else said


def throttled(cluster: Cluster, answer: Any) -> None:
    """Say so if a quota delays the next response of a broker."""
    if answer.throttle_time_ms:
        cluster.waits_for("a quota of the broker throttles this client")


class Cluster:
    """A context manager. Errors: KafkaError (BROKER_NOT_AVAILABLE) from the constructor; OSError for TLS files."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        places = map(parse_server, settings["bootstrap_servers"])
        self.servers = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in places)
        self.env = RealClocks()
        self.leaders: dict[Partition, int] = {}
        self.leader_epochs: dict[Partition, int] = {}
        self.controller_id = UNKNOWN_NODE
        self.retry_ms = int(settings.get("retry_backoff_ms", RETRY_MS))
        self.timeout_ms = int(settings.get("request_timeout_ms", REQUEST_TIMEOUT_MS))
        self._tls = tls_context(settings)
        self.nodes: dict[int, tuple[str, int]] = {}
        """Host and port of the known brokers."""
        self.waits_for: Callable[[str], object] = _ignore
        """Gets the reason of each wait before another attempt, and of a throttled response."""
        self._connections: dict[int, Connection] = {}
        bootstrap_ms = int(settings.get("bootstrap_timeout_ms", BOOTSTRAP_TIMEOUT_MS))
        waits = settings.get("waits_for_broker", True)
        try:
            self.retry(lambda: self._bootstrap(bootstrap_ms), timeout_ms=bootstrap_ms if waits else 0)
        except KafkaError as error:
            self.close()
            if error.code is not ErrorCode.NETWORK_EXCEPTION:
                raise
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, error.message) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # --- requests -----------------------------------------------------------------------------------------------------

    def ask(
        self, request: object, node_id: int | None = ANY, *, at_most: int | None = None, timeout_ms: int | None = None
    ) -> Any:
        """Send a request to a broker and wait for its response, in the newest common version up to `at_most`."""
        node = self.node(node_id)
        self.send(request, node, at_most=at_most)
        return self.receive(node, timeout_ms=timeout_ms)

    def send(self, request: object, node_id: int, *, at_most: int | None = None, is_answered: bool = True) -> None:
        """Send a request; `receive` returns its response."""
        with self._errors_of(node_id):
            connection = self._connected(node_id)
            version = connection.protocol.newest_version(type(request))
            if version is not None and at_most is not None:
                version = min(version, at_most)
            connection.send(request, version=version, is_answered=is_answered)

    def receive(self, node_id: int, *, timeout_ms: int | None = None) -> Any:
        """The response to the oldest request that was sent to a broker. An interrupted wait closes the connection."""
        with self._errors_of(node_id):
            connection = self._connections.get(node_id)
            if connection is None:
                raise ConnectionError("the connection was closed")
            connection.socket.settimeout((self.timeout_ms if timeout_ms is None else timeout_ms) / 1000)
            return connection.receive()

    def has_answer(self, node_id: int, timeout_ms: int) -> bool:
        """Whether a response begins to arrive from a broker within a time, or the connection is lost."""
        connection = self._connections.get(node_id)
        return connection is None or bool(select([connection.socket], [], [], timeout_ms / 1000)[0])

    def serves(self, request_class: type, *, version: int = 0) -> bool:
        """Whether the broker that answers general requests serves this version of an API."""
        newest = self._connected(self.node(ANY)).protocol.newest_version(request_class)
        return newest is not None and newest >= version

    def retry(
        self,
        attempt: Callable[[], T],
        partitions: Collection[Partition] = (),
        *,
        timeout_ms: int | None = None,
        also: Collection[ErrorCode] = (),
    ) -> T:
        """Repeat `attempt` while it raises a retriable KafkaError, or one of `also`, up to a time; then raise it.

        Before each repetition the leaders of `partitions` are looked up. Errors: UnknownPartition.
        """
        deadline = self.env.now_ms() + (self.timeout_ms if timeout_ms is None else timeout_ms)
        pause_ms = 0 if partitions else self.retry_ms
        while True:
            try:
                return attempt()
            except UnknownPartition:
                raise
            except KafkaError as error:
                if not (error.code.retriable or error.code in also) or self.env.now_ms() + pause_ms > deadline:
                    raise
                if pause_ms:
                    self.waits_for(reason_of(error, partitions))
            # No pause before the first look-up: maybe the leader was never looked up.
            self.wait(pause_ms)
            pause_ms = self.retry_ms
            self.refresh(partitions)

    @staticmethod
    def wait(pause_ms: int) -> None:
        """Wait between two attempts."""
        Event().wait(pause_ms / 1000)

    # --- topics and groups --------------------------------------------------------------------------------------------

    def metadata(self, topics: Iterable[str] | None, *, creates: bool = False) -> MetadataResponse:
        """Topics with their partitions; all topics for None. Updates brokers, controller and leaders.

        If `creates` is set, the broker may create missing topics.
        """
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        found: MetadataResponse = self.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=creates))
        self._learn(found)
        return found

    def refresh(self, partitions: Collection[Partition]) -> None:
        """Look up leaders. Errors: UnknownPartition, and what is not retriable about a topic.

        Other errors are ignored, as the next attempt meets them.
        """
        if not partitions:
            return
        for partition in partitions:
            self.leaders.pop(partition, None)
        try:
            found = self.metadata(sorted({topic for topic, _ in partitions}))
        except KafkaError:
            return
        failed = {str(topic.name): code_of(topic.error_code) for topic in found.topics if topic.error_code}
        for name, code in failed.items():
            if code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
                raise UnknownPartition(name)
            if not code.retriable:
                raise KafkaError(code, f"{name}: {code.name}")
        for name, index in partitions:
            if (name, index) not in self.leaders and name not in failed:
                raise UnknownPartition(name, index)

    def leader(self, partition: Partition) -> int:
        """The node id of a partition's leader. Errors: LEADER_NOT_AVAILABLE if it is not known."""
        found = self.leaders.get(partition, UNKNOWN_NODE)
        if found == UNKNOWN_NODE:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "the partition has no known leader")
        return found

    def ask_leaders(
        self,
        partitions: Iterable[Partition],
        request: Callable[[Sequence[Partition]], object],
        read: Callable[[Any], Iterable[tuple[Partition, int, T]]],
        *,
        timeout_ms: int | None = None,
        also: Collection[ErrorCode] = (),
    ) -> dict[Partition, T]:
        """Ask the leaders of the partitions, with one request to each leader, and repeat it for partitions with
        retriable errors. `read` returns the error codes and answers of a response.
        """
        found: dict[Partition, T] = {}
        missing = list(partitions)

        def attempt() -> dict[Partition, T]:
            nonlocal missing
            by_leader: dict[int, list[Partition]] = {}
            for partition in missing:
                by_leader.setdefault(self.leader(partition), []).append(partition)
            failed = 0
            for leader, wanted in by_leader.items():
                for partition, code, answer in read(self.ask(request(wanted), leader)):
                    if code:
                        failed = code
                    else:
                        found[partition] = answer
            missing = [partition for partition in missing if partition not in found]
            check(failed)
            return found

        return self.retry(attempt, missing, timeout_ms=timeout_ms, also=also) if missing else found

    def coordinator(self, key: str, key_type: int = 0) -> int:
        """The node id of the coordinator of a group, or of a transactional id (key type 1)."""
        request = FindCoordinatorRequest(key=key, key_type=key_type)
        found = self.ask(request, at_most=_ONE_KEY)
        check(found.error_code, found.error_message)
        self.nodes[found.node_id] = found.host, found.port
        return int(found.node_id)

    def ask_coordinator(
        self,
        group: str,
        request: object,
        read: Callable[[Any], T],
        *,
        at_most: int | None = None,
        timeout_ms: int | None = None,
    ) -> T:
        """Ask the coordinator of a group; `read` raises the error of an answer, and retriable ones are repeated."""

        def attempt() -> T:
            return read(self.ask(request, self.coordinator(group), at_most=at_most))

        return self.retry(attempt, timeout_ms=timeout_ms)

    def ask_controller(self, request: object, *, at_most: int | None = None) -> Any:
        """Ask the controller."""
        if self.controller_id == UNKNOWN_NODE:
            self.metadata([])
        return self.ask(request, ANY if self.controller_id == UNKNOWN_NODE else self.controller_id, at_most=at_most)

    # --- connections --------------------------------------------------------------------------------------------------

    def node(self, node_id: int | None) -> int:
        """The broker to ask. For ANY, a connected one that owes no response, which would be mistaken for another one.

        A connection that the broker has closed, because it was idle or because the broker has ended, is not used.
        """
        if node_id is not None:
            known = self._connections.get(node_id)
            if known is not None and known.was_closed():
                self._drop(node_id)
            return node_id
        for each, connection in list(self._connections.items()):
            if connection.was_closed():
                self._drop(each)
            elif not connection.protocol.unanswered:
                return each
        return self._bootstrap(self.timeout_ms)

    def _bootstrap(self, timeout_ms: int) -> int:
        """Connect to one of the bootstrap servers, or of the known brokers. Returns the connection's node id."""
        failure: KafkaError | None = None
        for address in [*map(parse_server, self.settings["bootstrap_servers"]), *self.nodes.values()]:
            try:
                with self._errors_of(UNKNOWN_NODE):
                    connection = connect(address, self.settings, timeout_ms=timeout_ms, tls=self._tls)
                self._connections[UNKNOWN_NODE] = connection
                self.metadata([])
            except KafkaError as error:
                if not error.code.retriable:
                    raise
                failure = error
                continue
            node_id = next((each for each, place in self.nodes.items() if place == address), UNKNOWN_NODE)
            if node_id in self._connections:  # it owes a response
                node_id = UNKNOWN_NODE
            self._connections[node_id] = self._connections.pop(UNKNOWN_NODE)
            return node_id
        why = failure.message if failure is not None else "no address"
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"no broker answers at {self.servers}: {why}") from failure

    def _connected(self, node_id: int) -> Connection:
        if node_id not in self._connections:
            if node_id not in self.nodes:
                self.metadata([])
            address = self.nodes.get(node_id)
            if address is None:
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"broker {node_id} is not part of the cluster")
            try:
                self._connections[node_id] = connect(address, self.settings, timeout_ms=self.timeout_ms, tls=self._tls)
            except (ConnectionRefusedError, TimeoutError, gaierror) as error:
                host, port = address
                said = f"broker {node_id} cannot be reached at its advertised address {host}:{port}: "
                raise type(error)(error.errno, said + (error.strerror or str(error))) from error
        return self._connections[node_id]

    @contextmanager
    def _errors_of(self, node_id: int) -> Iterator[None]:
        """Close the connection if the block is interrupted, and convert the errors of a connection."""
        try:
            yield
        except KafkaError:
            raise
        except UnsupportedApi as error:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error
        except SSLCertVerificationError as error:
            said = f"the broker's certificate is not accepted: {error.verify_message}"
            raise KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, said) from error
        except (OSError, Malformed) as error:
            self._drop(node_id)
            code = ErrorCode.REQUEST_TIMED_OUT if isinstance(error, TimeoutError) else ErrorCode.NETWORK_EXCEPTION
            is_not_tls = getattr(error, "reason", None) in _SPEAKS_NO_TLS
            why = NOT_TLS if is_not_tls else getattr(error, "strerror", None) or str(error)
            raise KafkaError(code, why) from error
        except BaseException:
            self._drop(node_id)
            raise

    def _drop(self, node_id: int) -> None:
        connection = self._connections.pop(node_id, None)
        if connection is not None:
            connection.close()

    def _learn(self, found: MetadataResponse) -> None:
        self.nodes = {broker.node_id: (broker.host, broker.port) for broker in found.brokers}
        self.controller_id = found.controller_id
        for topic in found.topics:
            for each in topic.partitions:
                self.leaders[str(topic.name), each.partition_index] = each.leader_id
                self.leader_epochs[str(topic.name), each.partition_index] = each.leader_epoch
