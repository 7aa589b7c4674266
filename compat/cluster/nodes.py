"""The nodes of a cluster as processes that can be killed, paused and started again.

A node is controller or broker. Its properties file does not depend on whether kbroker or Apache Kafka runs it, so a
directory may even change hands between two starts.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from compat.brokers import CHECKOUT, StartFailed, end, free_port
from compat.cluster.namespaces import Network
from compat.kafka.jvm import java_command, java_environment
from compat.kafka.node import CLUSTER_ID, FOR_COMPARING
from compat.kafka.tools import run_tool
from compat.oracle.raw import RawConnection, connected
from compat.waiting import until

KBROKER, KAFKA = "kbroker", "kafka"
FIRST_CONTROLLER: Final = 100
READY_S: Final = 90.0

COMMON: Final = {
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
}


QUICK_SESSIONS: Final = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
"""A dead broker is noticed after 3 s, so that tests with many deaths take less time."""
METADATA_PARTITION: Final = {"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}
"""For DescribeQuorum."""


class Node:
    """One node: `kind` runs it, KBROKER or KAFKA, and may be changed while it is stopped.

    Shape   data is its log directory, which survives `kill` and `stop`. Kafka's is formatted for a `release` (None
            means the newest), with the levels of single `features`; format_flags are more arguments of the tool, and
            flags of `kbroker serve`
    Note    `ip netns exec` replaces itself by the node, so the process id is the node's
    """

    def __init__(
        self,
        directory: Path,
        *,
        kind: str,
        node_id: int,
        settings: Mapping[str, str],
        release: str | None = "3.9",
        features: Sequence[str] = (),
        options: Sequence[str] = FOR_COMPARING,
        checkout: Path = CHECKOUT,
        network: Network | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        self.kind = kind
        self.node_id = node_id
        self.directory = directory
        self.data = directory / "data"
        self.settings = {**settings, "node.id": str(node_id), "log.dirs": str(self.data)}
        self.process: subprocess.Popen[bytes] | None = None
        self._release = release
        self.format_flags = [part for feature in features for part in ("--feature", feature)]
        self._options = options
        self._checkout = checkout
        self._flags = flags
        self._network = network
        self._log = directory / "log.txt"

    @property
    def address(self) -> str:
        """`host:port` of its last listener, which is that for clients."""
        return self.settings["listeners"].rpartition("//")[2]

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None, "not started"
        return self.process.pid

    def start(self) -> None:
        """Start the process, and do not wait for it. Kafka's directory is formatted first if necessary."""
        assert not self.is_running
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        environment = None
        if self.kind == KAFKA:
            self._format(properties)
            command = java_command("kafka.Kafka", str(properties), options=self._options)
            environment = java_environment()
        else:
            command = [sys.executable, "-m", "kbroker", "serve", "--config", str(properties), *self._flags]
            if self.settings["process.roles"] != "broker":
                command += ["--cluster-id", CLUSTER_ID]
        if self._network is not None:
            command = [*self._network.command(self.node_id), *command]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self._checkout,
                env=environment,
            )  # fmt: skip

    def _format(self, properties: Path) -> None:
        if (self.data / "meta.properties").exists():
            return
        release = [] if self._release is None else ["--release-version", self._release]
        done = run_tool(
            "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties), *release, *self.format_flags
        )
        if done.returncode != 0:
            raise StartFailed(f"cannot format: {done.stdout}{done.stderr}")

    def kill(self) -> None:
        """`kill -9`."""
        assert self.process is not None, "not started"
        self.process.send_signal(signal.SIGCONT)
        end(self.process, signal_number=signal.SIGKILL)

    def stop(self, *, timeout_s: float = 60) -> int:
        """SIGTERM: a controlled shutdown. Returns the exit status, negative if it had to be killed."""
        return 0 if self.process is None else end(self.process, timeout_s=timeout_s)

    def pause(self) -> None:
        """SIGSTOP."""
        assert self.process is not None, "not started"
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self.process is not None, "not started"
        self.process.send_signal(signal.SIGCONT)

    def log_tail(self) -> str:
        """The end of its log."""
        return self.log()[-4000:]

    def log(self) -> str:
        """Its log of all starts."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""


class ProcessCluster:
    """Controllers (ids from 100) and brokers (ids from 1), all of them processes on loopback addresses.

    Use it as a context manager: at the end all processes are killed, and an error gets the ends of their logs. With
    `network` each node is in its namespace; `how` has more arguments for each Node.
    """

    LISTENERS: Sequence[str] = ("PLAINTEXT",)
    """The names of a broker's listeners, that for clients at the end."""

    def __init__(
        self,
        directory: Path,
        *,
        controllers: Sequence[str] = (KBROKER,),
        brokers: Sequence[str] = (KBROKER,) * 3,
        settings: Mapping[str, str] | None = None,
        network: Network | None = None,
        **how: Any,
    ) -> None:
        def host(node_id: int) -> str:
            return "127.0.0.1" if network is None else network.address(node_id)

        ports = [free_port() for _ in controllers]
        ids = range(FIRST_CONTROLLER, FIRST_CONTROLLER + len(controllers))
        voters = ",".join(f"{each}@{host(each)}:{port}" for each, port in zip(ids, ports, strict=True))
        replicas = str(min(3, len(brokers)))
        common = {
            **COMMON,
            "controller.quorum.voters": voters,
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": "1",
            "min.insync.replicas": str(min(2, len(brokers))),
            **(settings or {}),
        }

        def node(node_id: int, kind: str, role: str, listener: str) -> Node:
            own = {**common, "process.roles": role, "listeners": listener}
            place = directory / f"{role}-{node_id}"
            return Node(place, kind=kind, node_id=node_id, settings=own, network=network, **how)

        self.controllers = {
            each: node(each, kind, "controller", f"CONTROLLER://{host(each)}:{port}")
            for each, port, kind in zip(ids, ports, controllers, strict=True)
        }
        self.brokers = {
            each: node(
                each, kind, "broker", ",".join(f"{name}://{host(each)}:{free_port()}" for name in self.LISTENERS)
            )
            for each, kind in enumerate(brokers, 1)
        }

    def __enter__(self) -> ProcessCluster:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            for node in self.nodes:
                state = "running" if node.is_running else "ended"
                error.add_note(f"--- node {node.node_id}, {state}\n{node.log_tail()}")
        for node in self.nodes:
            if node.is_running:
                node.kill()

    @property
    def nodes(self) -> list[Node]:
        return [*self.controllers.values(), *self.brokers.values()]

    @property
    def bootstrap_servers(self) -> str:
        """All brokers."""
        return ",".join(node.address for node in self.brokers.values())

    def start(self, *, timeout_s: float = READY_S) -> float:
        """Start all nodes; returns the seconds until every broker knows that all brokers are unfenced."""
        began = time.perf_counter()
        for node in self.nodes:
            node.start()
        self.await_brokers(*self.brokers, timeout_s=timeout_s)
        return time.perf_counter() - began

    def await_brokers(self, *ids: int, timeout_s: float = READY_S) -> None:
        """Wait until each of these brokers answers Metadata and names all of them. Errors: StartFailed."""
        deadline = time.monotonic() + timeout_s
        for asked in ids:
            node = self.brokers[asked]
            while node.is_running and not set(ids) <= self.seen_by(asked):
                if time.monotonic() > deadline:
                    raise StartFailed(f"broker {asked} sees {sorted(self.seen_by(asked))}, not {ids}")
                time.sleep(0.1)
            if not node.is_running:
                raise StartFailed(f"broker {asked} has ended")

    def connect(self, node: int) -> AbstractContextManager[RawConnection]:
        """A connection to a broker or controller, of a client that may do everything."""
        return connected((self.brokers | self.controllers)[node].address)

    def seen_by(self, broker: int) -> set[int]:
        """The ids of the brokers that a broker names in its Metadata; empty if it does not answer."""
        try:
            return {one["NodeId"] for one in self.metadata(broker, [])["Brokers"]}
        except (OSError, AssertionError):
            return set()

    def metadata(self, broker: int, topics: Sequence[str] | None) -> dict[str, Any]:
        """A broker's answer to Metadata, for all topics with None. Errors: OSError."""
        with self.connect(broker) as connection:
            return _metadata(connection, topics)

    def leader(self, topic: str, partition: int = 0, *, ask: int | None = None) -> int:
        """The leader of a partition as a running broker (or `ask`) sees it; -1 for none."""
        broker = ask or next(each for each, node in self.brokers.items() if node.is_running)
        for found in self.metadata(broker, [topic])["Topics"]:
            for part in found["Partitions"]:
                if part["PartitionIndex"] == partition:
                    return int(part["LeaderId"])
        return -1

    def partitions(self, broker: int, topic: str | None) -> list[dict[str, Any]]:
        """The partitions of a topic, or of all topics, in a broker's Metadata; empty if it does not answer."""
        try:
            topics = self.metadata(broker, None if topic is None else [topic])["Topics"]
        except (OSError, AssertionError):
            return []
        return [part for one in topics for part in one["Partitions"]]

    def await_isrs(self, topic: str | None, *brokers: int, each_s: float = 0.1, patience_s: float = 60) -> None:
        """Wait until all running brokers agree that each partition of a topic, or of all topics, has a leader and
        exactly these brokers in its ISR.
        """

        def reached() -> bool:
            for broker in (each for each, node in self.brokers.items() if node.is_running):
                parts = self.partitions(broker, topic)
                if not parts or any(part["LeaderId"] < 0 or set(part["IsrNodes"]) != set(brokers) for part in parts):
                    return False
            return True

        until(reached, each_s=each_s, patience_s=patience_s)

    def active_controller(self, *, patience_s: float = 60) -> int:
        """The id of the active controller; waits until a running controller leads the quorum."""
        leaders: dict[int, int] = {}

        def found() -> bool:
            for each in (node_id for node_id, node in self.controllers.items() if node.is_running):
                with contextlib.suppress(OSError, AssertionError), self.connect(each) as connection:
                    answer = connection.call("DescribeQuorum", 0, {"Topics": [METADATA_PARTITION]})
                    for part in [] if answer["ErrorCode"] else answer["Topics"][0]["Partitions"]:
                        if not part["ErrorCode"]:
                            leaders[part["LeaderEpoch"]] = part["LeaderId"]
            return bool(leaders)

        until(found, each_s=0.1, patience_s=patience_s)
        return leaders[max(leaders)]

    def replicas_become_equal(self, topic: str, partitions: Iterable[int], *, patience_s: float = 10) -> bool:
        """Whether all brokers have the same bytes of these partitions; waits a moment for the last ones."""

        def equal() -> bool:
            return all(
                len({self.log_bytes(broker, topic, index) for broker in self.brokers}) == 1 for index in partitions
            )

        try:
            until(equal, each_s=0.1, patience_s=patience_s)
        except AssertionError:
            return False
        return True

    def log_bytes(self, broker: int, topic: str, partition: int) -> bytes:
        """The concatenated segments of a replica."""
        segments = sorted((self.brokers[broker].data / f"{topic}-{partition}").glob("*.log"))
        return b"".join(segment.read_bytes() for segment in segments)


def brokers_seen(address: str) -> set[int]:
    """The ids of the brokers that a broker names in its Metadata; empty if it does not answer."""
    try:
        with connected(address) as connection:
            return {broker["NodeId"] for broker in _metadata(connection, [])["Brokers"]}
    except (OSError, AssertionError):
        return set()


def _metadata(connection: RawConnection, topics: Sequence[str] | None) -> dict[str, Any]:
    named = None if topics is None else [{"Name": topic} for topic in topics]
    return connection.call("Metadata", 5, {"Topics": named, "AllowAutoTopicCreation": False})
