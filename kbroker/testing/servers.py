"""Real brokers for tests, with real sockets and files: for clients that cannot take part in a simulation.

    with kbroker.testing.broker() as server:
        producer = KafkaProducer(bootstrap_servers=server.bootstrap_servers)

A broker runs in a process of its own, which ends with this one, or in a thread of this process. `async with` works
under trio and asyncio. `Server` also describes a broker that other people run; it is then neither started nor stopped.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from kbroker.cli._groups import GroupState, delete, describe, list_groups
from kbroker.cli._topics import create_topic, delete_topics
from kbroker.client.cluster import Cluster, Partition
from kbroker.client.consuming import Consumer, Received
from kbroker.client.operations import EARLIEST, LATEST, committed_offsets, list_offsets
from kbroker.metadata.names import is_internal
from kbroker.runtime.env import RealEnv
from kbroker.testing.control import Clock, Command, Faults
from wire.errors import ErrorCode, KafkaError, check

T = TypeVar("T")

LOCALHOST: Final = "127.0.0.1"
START_S: Final = 60
STOP_S: Final = 15
TAIL_LINES: Final = 100
WAIT_S: Final = 30.0
_LOOK_MS: Final = 5
_POLL_MS: Final = 100
_TIMEOUT_MS: Final = 30_000
_PAGES: Final = " serving pages "
_URL: Final = "url=http://"


class Running(Protocol):
    """A node that was started.

    Shape  address is host:port; http is the address of its pages, None without pages
    """

    address: str
    http: str | None
    log: Path

    @property
    def is_running(self) -> bool: ...

    def control(self, command: Command) -> dict[str, Any]: ...

    def stop(self) -> None: ...


class Server:
    """A broker, or a cluster of them, and what tests ask of it.

    Shape   bootstrap_servers is a comma list of host:port; data_dir is None for a broker that is not ours
    Errors  KafkaError from everything that asks the broker
    """

    def __init__(self, bootstrap_servers: str, *, nodes: Sequence[Running] = (), data_dir: Path | None = None) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.data_dir = data_dir
        self.nodes = nodes
        self._cluster: Cluster | None = None

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
        return Faults(self._ours(), wait_until)

    @property
    def clock(self) -> Clock:
        """The clocks of the brokers."""
        return Clock(self._ours(), self.disconnect)

    def _ours(self) -> list[Running]:
        if not self.nodes:
            raise RuntimeError("faults and clocks need a broker that the test has started")
        return [node for node in self.nodes if node.address and node.is_running]

    @property
    def client(self) -> Cluster:
        """A connection of the helpers to the cluster; made when it is first used."""
        if self._cluster is None:
            self._cluster = Cluster(
                {
                    "bootstrap_servers": self.bootstrap_servers.split(","),
                    "bootstrap_timeout_ms": _TIMEOUT_MS,
                    "client_id": "kbroker-testing",
                }
            )
        return self._cluster

    def disconnect(self) -> None:
        """Close the connection of the helpers."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

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
        # In a cluster the controller answers before the brokers know the topic.
        self._wait(lambda: self._has_leaders(name, partitions), WAIT_S, lambda: f"the leaders of {name}")
        return name

    def _has_leaders(self, name: str, count: int) -> bool:
        (found,) = self.client.metadata([name]).topics
        return len(found.partitions) >= max(1, count) and all(part.leader_id >= 0 for part in found.partitions)

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics."""
        delete_topics(self.client, names)

    def records(self, topic: str, *, read_committed: bool = True) -> list[Received]:
        """All records of a topic, in the order of partitions and offsets; without read_committed aborted ones too."""
        return self._read(self._ends(topic, EARLIEST), is_committed_only=read_committed)

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
                found[:] = self._read(starts, is_committed_only=True)
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

    def _read(self, starts: Mapping[Partition, int], *, is_committed_only: bool) -> list[Received]:
        level = int(is_committed_only)
        ends = list_offsets(self.client, dict.fromkeys(starts, LATEST), isolation_level=level)
        reader = Consumer(self.client, {}, is_committed_only=is_committed_only, reset=EARLIEST)
        reader.assign({place: start for place, start in starts.items() if start < ends[place].offset})
        found: list[Received] = []
        while any(position < ends[place].offset for place, position in reader.positions.items()):
            found += [
                each
                for each in reader.poll(timeout_ms=_POLL_MS)
                if each.offset < ends[each.topic, each.partition].offset
            ]
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

    # --- what to show when a test fails -------------------------------------------------------------------------------

    def log_tail(self, lines: int = TAIL_LINES) -> str:
        """The last lines of each node's log."""
        return "\n".join("\n".join(node.log.read_text(errors="replace").splitlines()[-lines:]) for node in self.nodes)

    def state(self) -> str:
        """The state page of the first node with pages as JSON; empty without one."""
        for node in self.nodes:
            if node.http is not None and node.is_running:
                host, _, port = node.http.rpartition(":")
                connection = HTTPConnection(host, int(port), timeout=5)
                try:
                    connection.request("GET", "/state")
                    return connection.getresponse().read().decode()
                finally:
                    connection.close()
        return ""


def pages_address(log: Path) -> str | None:
    """The address of a node's pages, from its log; None if it has none, or does not log it."""
    for line in reversed(log.read_text(errors="replace").splitlines()):  # the last start counts
        if _PAGES in line and _URL in line:
            return line.partition(_URL)[2].split("/")[0]
    return None


class _Starting:
    """A context that starts nodes, as `broker` and `brokers` return it. It may be entered again after it has ended."""

    def __init__(self, start: Callable[[Path], Sequence[Running]], data_dir: Path | None) -> None:
        self._start = start
        self._given = data_dir
        self._server: Server | None = None

    def __enter__(self) -> Server:
        directory = Path(tempfile.mkdtemp(prefix="kbroker-")) if self._given is None else self._given
        try:
            nodes = self._start(directory)
        except BaseException:
            self._clean(directory)
            raise
        addresses = ",".join(node.address for node in nodes if node.address)
        self._server = Server(addresses, nodes=nodes, data_dir=directory)
        return self._server

    def __exit__(self, *_: object) -> None:
        server, self._server = self._server, None
        assert server is not None, "the context was entered"
        server.disconnect()
        for node in server.nodes:
            node.stop()
        if server.data_dir is not None:
            self._clean(server.data_dir)

    def _clean(self, directory: Path) -> None:
        if self._given is None:
            shutil.rmtree(directory, ignore_errors=True)

    async def __aenter__(self) -> Server:
        return await _in_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await _in_thread(self.__exit__)


async def _in_thread(function: Callable[[], T]) -> T:
    """Run a function in a thread under trio or asyncio, whichever runs."""
    from sniffio import current_async_library  # noqa: PLC0415  (comes with trio; tests without async do not need it)

    if current_async_library() == "trio":
        from trio import CancelScope, to_thread  # noqa: PLC0415

        with CancelScope(shield=True):  # a cancelled test must not leave its broker behind
            return await to_thread.run_sync(function)
    import asyncio  # noqa: PLC0415

    return await asyncio.to_thread(function)


def broker(
    settings: Mapping[str, object] | None = None,
    *,
    port: int = 0,
    data_dir: Path | None = None,
    in_process: bool = False,
    log_level: str = "info",
) -> _Starting:
    """One broker, by default with the profile `test` in a temporary directory that is removed afterwards.

    `settings` are Kafka's; `port` 0 means any free port. Errors: RuntimeError if it does not start.
    """
    chosen = {name: str(value) for name, value in (settings or {}).items()}
    if in_process:
        from kbroker.testing.node_thread import start_thread  # noqa: PLC0415  (imports the whole broker)

        return _Starting(partial(start_thread, chosen, port=port, log_level=log_level), data_dir)
    from kbroker.testing.node_process import start_process  # noqa: PLC0415

    return _Starting(partial(start_process, chosen, port=port, log_level=log_level), data_dir)


def brokers(
    count: int = 3,
    settings: Mapping[str, object] | None = None,
    *,
    data_dir: Path | None = None,
    log_level: str = "info",
) -> _Starting:
    """A cluster of so many brokers and a controller, each in a process of its own. Errors: as `broker`."""
    from kbroker.testing.node_process import start_cluster  # noqa: PLC0415

    chosen = {name: str(value) for name, value in (settings or {}).items()}
    return _Starting(partial(start_cluster, count, chosen, log_level=log_level), data_dir)


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Look every few milliseconds until something is so; False after that time."""
    from threading import Event  # noqa: PLC0415

    env, pause = RealEnv(), Event()
    deadline_ms = env.now_ms() + int(seconds * 1000)
    while not is_so():
        if env.now_ms() >= deadline_ms:
            return False
        pause.wait(_LOOK_MS / 1000)
    return True


__all__ = ["KafkaError", "Server", "broker", "brokers"]
