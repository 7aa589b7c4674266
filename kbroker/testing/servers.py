"""What a test asks of a real broker: its topics, records and groups, faults, the clock, and what a failure shows.

`Server` also describes a broker that other people run; it is then neither started nor stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from threading import Event, get_ident
from typing import TYPE_CHECKING, Any, Final

from kbroker.cli._groups import GroupState, delete, describe, list_groups
from kbroker.cli._topics import create_topic, delete_topics
from kbroker.client.cluster import Cluster, Partition
from kbroker.client.consuming import Consumer, Received
from kbroker.client.operations import EARLIEST, LATEST, committed_offsets, list_offsets
from kbroker.metadata.names import is_internal
from kbroker.runtime.clocks import RealClocks
from kbroker.testing.control import Clock, Faults, Requests
from kbroker.testing.starting import Running
from wire.codec import decode, encode
from wire.errors import ErrorCode, KafkaError, Malformed, check
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from wire.messages.metadata import MetadataRequest, MetadataResponse
from wire.schema import schema_of

if TYPE_CHECKING:
    from kbroker.testing.clients import OwnClient

TAIL_LINES: Final = 100
WAIT_S: Final = 30.0
_LOOK_MS: Final = 5
_POLL_MS: Final = 100
_TIMEOUT_MS: Final = 30_000


class Server:
    """A broker, or a cluster of them, and what tests ask of it.

    Shape   bootstrap_servers is a comma list of host:port; data_dir is None for a broker that is not ours
    Threads any, each with a connection of its own
    Errors  KafkaError from everything that asks the broker
    """

    def __init__(self, bootstrap_servers: str, *, nodes: Sequence[Running] = (), data_dir: Path | None = None) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.data_dir = data_dir
        self.nodes = nodes
        self._clients: dict[int, Cluster] = {}  # by thread
        self._own_clients: list[OwnClient] = []

    def __repr__(self) -> str:
        return f"<kbroker at {self.bootstrap_servers}>"

    @property
    def host(self) -> str:
        """The host of the first broker."""
        return self.bootstrap_servers.split(",")[0].rpartition(":")[0]

    @property
    def port(self) -> int:
        """The port of the first broker."""
        return int(self.bootstrap_servers.split(",")[0].rpartition(":")[2])

    @property
    def faults(self) -> Faults:
        """Rules that make the brokers answer wrongly."""
        return Faults([node for node in self._running() if node.address], wait_until)

    @property
    def requests(self) -> Requests:
        """The requests that the brokers receive, after `start_request_tracking`."""
        return Requests([node for node in self._running() if node.address])

    @property
    def clock(self) -> Clock:
        """The clocks of the brokers and their controller."""
        return Clock(self._running())

    def _running(self) -> list[Running]:
        if not self.nodes:
            raise RuntimeError("faults and clocks need a broker that the test has started")
        return [node for node in self.nodes if node.is_running]

    @property
    def client(self) -> Cluster:
        """A connection of the helpers of this thread to the cluster; made when it is first used."""
        thread = get_ident()
        if thread not in self._clients:
            self._clients[thread] = Cluster(
                {
                    "bootstrap_servers": self.bootstrap_servers.split(","),
                    "bootstrap_timeout_ms": _TIMEOUT_MS,
                    "client_id": "kbroker-testing",
                }
            )
        return self._clients[thread]

    def disconnect(self) -> None:
        """Close the connections of the helpers, and the clients that tests have asked for."""
        self.close_clients()
        clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    # --- clients of the test's own library ----------------------------------------------------------------------------

    def producer(self, *, library: str | None = None, **settings: Any) -> Any:
        """A producer of the installed client library: kafka-python, confluent-kafka or aiokafka.

        Shape   library is needed if several are installed; settings are spelled as the library spells them
        Errors  ModuleNotFoundError if none is installed, ValueError if the library has to be named
        """
        return self._new_client("Producer", {}, settings, library=library)

    def consumer(self, *topics: str, group: str | None = None, library: str | None = None, **settings: Any) -> Any:
        """A consumer that begins at the first record. Shape, Errors: as `producer`."""
        chosen = {"auto_offset_reset": "earliest", "group_id": group}
        return self._new_client("Consumer", chosen, settings, library=library, topics=topics)

    def admin(self, *, library: str | None = None, **settings: Any) -> Any:
        """An admin client. Shape, Errors: as `producer`."""
        return self._new_client("AdminClient", {}, settings, library=library)

    def _new_client(self, kind: str, chosen: Mapping[str, Any], settings: Mapping[str, Any], **named: Any) -> Any:
        from kbroker.testing.clients import OwnClient  # noqa: PLC0415  (only if a test needs it)

        chosen = {"bootstrap_servers": self.bootstrap_servers, **chosen}
        self._own_clients.append(OwnClient(kind, chosen, settings, **named))
        return self._own_clients[-1].client

    def opened_clients(self) -> int:
        """How many clients tests have asked for and `close_clients` has not closed."""
        return len(self._own_clients)

    def close_clients(self, *, keep: int = 0) -> None:
        """Close the clients that tests have asked for, except the first ones. Rules end before, so that it succeeds."""
        clients, self._own_clients = self._own_clients[keep:], self._own_clients[:keep]
        is_running = any(node.is_running for node in self.nodes)
        if clients and is_running:
            self.faults.clear()
        with ExitStack() as stack:  # closes the others too if one of them fails
            for client in clients:
                stack.callback(client.close, has_broker=is_running or not self.nodes)

    # --- topics and records -------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """The names of all topics that are not internal."""
        found = self.client.metadata(None).topics
        return sorted(topic.name for topic in found if topic.name is not None and not is_internal(topic.name))

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Create a topic and return its name. Errors: TOPIC_ALREADY_EXISTS, INVALID_CONFIG and others."""
        create_topic(
            self.client,
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            assignment=[],
            configs={key: str(value) for key, value in (config or {}).items()},
            if_not_exists=False,
        )
        # A controller of its own answers after its broker knows the topic, other controllers before.
        if len(self.nodes) != 1:
            self._wait(lambda: self._has_leaders(name, partitions), WAIT_S, lambda: f"the leaders of {name}")
        return name

    def _has_leaders(self, name: str, count: int) -> bool:
        (found,) = self.client.metadata([name]).topics
        return len(found.partitions) >= max(1, count) and all(part.leader_id >= 0 for part in found.partitions)

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics."""
        delete_topics(self.client, names)

    def records(self, topic: str, *, read_committed: bool = True, timeout: float = WAIT_S) -> list[Received]:
        """All records of a topic, in the order of partitions and offsets; without read_committed aborted ones too.

        Errors: TimeoutError if no more records come for that time, before the end of the topic.
        """
        return self._read(self._ends(topic, EARLIEST), timeout, is_committed_only=read_committed)

    @contextmanager
    def assert_produces(
        self, topic: str, *, count: int | None = None, timeout: float = WAIT_S
    ) -> Iterator[list[Received]]:
        """Check that a block produces records to a topic; the list has them after the block.

        It waits for `count` records, or for the first one, and fails if there are more than `count`.
        """
        begins = self._ends(topic, LATEST) if topic in self.topics() else {}
        found: list[Received] = []
        yield found

        def look() -> bool:
            if topic in self.topics():
                starts = {place: begins.get(place, offset) for place, offset in self._ends(topic, EARLIEST).items()}
                found[:] = self._read(starts, timeout, is_committed_only=True)
            return len(found) >= (count or 1)

        wanted = "a record" if count is None else f"{count} records"
        if count != 0:
            self._wait(look, timeout, lambda: f"{wanted} in {topic}, found {len(found)}")
        else:
            look()
        assert count is None or len(found) == count, f"expected {wanted} in {topic}, found {len(found)}"

    def _ends(self, topic: str, which: int) -> dict[Partition, int]:
        (found,) = self.client.metadata([topic]).topics
        check(found.error_code, topic)
        places = {(topic, part.partition_index): which for part in found.partitions}
        return {place: end.offset for place, end in list_offsets(self.client, places).items()}

    def _read(self, starts: Mapping[Partition, int], timeout: float, *, is_committed_only: bool) -> list[Received]:
        level = int(is_committed_only)
        ends = list_offsets(self.client, dict.fromkeys(starts, LATEST), isolation_level=level)
        reader = Consumer(self.client, {}, is_committed_only=is_committed_only, reset=EARLIEST)
        reader.assign({place: start for place, start in starts.items() if start < ends[place].offset})
        found: list[Received] = []
        before, came_ms = dict(reader.positions), self.client.env.now_ms()
        while missing := [place for place, position in reader.positions.items() if position < ends[place].offset]:
            polled = reader.poll(timeout_ms=_POLL_MS)
            found += [each for each in polled if each.offset < ends[each.topic, each.partition].offset]
            now_ms = self.client.env.now_ms()
            if reader.positions != before:  # control batches and empty ones count too
                before, came_ms = dict(reader.positions), now_ms
            elif now_ms - came_ms >= timeout * 1000:
                (topic, partition), *_ = missing
                at, end = reader.positions[topic, partition], ends[topic, partition].offset
                raise TimeoutError(f"waited {timeout:g} s for {topic}-{partition} after offset {at}; it ends at {end}")
        return sorted(found, key=lambda each: (each.partition, each.offset))

    # --- groups -------------------------------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """The ids of all groups of consumers."""
        return [group.group for group in list_groups(self.client)]

    def consumer_offset(self, group: str, topic: str, partition: int = 0) -> int | None:
        """The offset that a group has committed for a partition, None if it has committed none."""
        found = committed_offsets(self.client, group).get((topic, partition))
        return None if found is None or found.offset < 0 else found.offset

    def wait_for_group(
        self, group: str, *, state: str = "Stable", members: int | None = None, timeout: float = WAIT_S
    ) -> None:
        """Wait until a group has a state and a number of members. Errors: TimeoutError."""
        found: list[GroupState] = []

        def look() -> bool:
            found[:] = describe(self.client, [group], timeout_ms=_TIMEOUT_MS)
            return found[0].state == state and members in (None, len(found[0].members))

        wanted = f"group {group} to be {state}" + (f" with {members} members" if members is not None else "")
        self._wait(look, timeout, lambda: f"{wanted}; it is {found[0].state} with {len(found[0].members)} members")

    def delete_groups(self, groups: Sequence[str]) -> None:
        """Delete groups; those with members remain."""
        for group in groups:
            try:
                delete(self.client, group, timeout_ms=_TIMEOUT_MS)
            except KafkaError as error:
                if error.code not in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND):
                    raise

    def _wait(self, is_so: Callable[[], bool], timeout: float, wanted: Callable[[], str]) -> None:
        env = self.client.env
        deadline_ms = env.now_ms() + int(timeout * 1000)
        while not is_so():
            if env.now_ms() >= deadline_ms:
                raise TimeoutError(f"waited {timeout:g} s for {wanted()}")
            self.client.wait(_LOOK_MS * 4)

    # --- clean-up -----------------------------------------------------------------------------------------------------

    def contents(self) -> dict[str, list[str]]:
        """The topics that are not internal, and the groups of any kind. Errors: RuntimeError."""
        found: dict[str, list[str]] = {"topics": [], "groups": []}
        for node in self._brokers():
            answer = node.control({"contents": True})
            if "failed" in answer:
                raise RuntimeError(f"the broker cannot be asked what it holds: {answer['failed'][0]}")
            for kind in found:
                found[kind] += answer[kind]
        return found

    def empty(self, *, keep: Mapping[str, list[str]], keep_clients: int = 0) -> None:
        """Remove all rules, and delete the topics and groups that are not in `keep`; groups with members remain.

        Before that, paused brokers go on, and the clients that tests have asked for are closed, except the first ones.

        Errors: RuntimeError if something cannot be deleted
        """
        for node in self._brokers():
            node.resume()
        try:
            self.close_clients(keep=keep_clients)
        finally:
            self._delete_all(keep)

    def _delete_all(self, keep: Mapping[str, list[str]]) -> None:
        if failed := [each for node in self._brokers() for each in node.control({"empty": keep})["failed"]]:
            raise RuntimeError(f"not deleted after the test: {'; '.join(failed)}")

    def _brokers(self) -> list[Running]:
        found = [node for node in self._running() if node.address]
        if not found:
            raise RuntimeError("the broker does not run")
        return found

    # --- what to show when a test fails -------------------------------------------------------------------------------

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of each node's log."""
        return "\n".join("\n".join(node.log.read_text(errors="replace").splitlines()[-lines:]) for node in self.nodes)

    def state(self, of: Running | None = None) -> str:
        """The state page of a node, by default of the first one with pages, as JSON; empty without one."""
        for node in self.nodes if of is None else [of]:
            if node.http is not None and node.is_running:
                host, _, port = node.http.rpartition(":")
                connection = HTTPConnection(host, int(port), timeout=5)
                try:
                    connection.request("GET", "/state")
                    return connection.getresponse().read().decode()
                finally:
                    connection.close()
        return ""


def prepare() -> None:
    """Generate what encodes and decodes the messages of every test. It costs 5 ms, while the broker still starts."""
    topic = CreatableTopic(name="", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    for request, response in (
        (MetadataRequest(topics=None), MetadataResponse),
        (CreateTopicsRequest(topics=[topic], timeout_ms=0), CreateTopicsResponse),
    ):
        newest = schema_of(response).versions.highest
        encode(request, newest)
        with suppress(Malformed):  # no bytes are enough to have the parser
            decode(response, newest, b"")


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Look every few milliseconds until something is so; False after that time."""
    clocks, pause = RealClocks(), Event()
    deadline_ms = clocks.now_ms() + int(seconds * 1000)
    while not is_so():
        if clocks.now_ms() >= deadline_ms:
            return False
        pause.wait(_LOOK_MS / 1000)
    return True
