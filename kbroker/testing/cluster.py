"""A whole cluster in memory: real nodes on simulated disks, one simulated network and one simulated tier, in virtual
time.

    async with memory_cluster(brokers=3) as cluster:
        await cluster.create_topic("orders", partitions=1, replicas=3)
        await cluster.leader("orders").kill()
        client = await cluster.connect(cluster.leader("orders"))

Each node is the program that `kbroker serve` runs, with its own disk, its own wall clock and its own host on the
network. Under `trio.testing.MockClock` with autojump an hour takes seconds, and with a seed every run is the same: see
`kbroker.testing.determinism`.
"""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import trio
import trio.testing

from kbroker.broker import Broker
from kbroker.config import Settings
from kbroker.coordinator.common.ports import partition_for
from kbroker.metadata.image import Image
from kbroker.metadata.names import GROUP_METADATA_TOPIC
from kbroker.metadata.parts import PartitionImage
from kbroker.node import Node, NodeFailed
from kbroker.replication.partition import Partition
from kbroker.runtime.net_ports import Stream
from kbroker.security.sasl.peer import PeerLogin, log_in
from kbroker.security.server_tls import ServerTls
from kbroker.storage.checkpoint import write_atomically
from kbroker.testing import records
from kbroker.testing.disk import Crashed, SimulatedDisk
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.draws import Draws
from kbroker.testing.env import WALL_START_MS, MemoryEnv
from kbroker.testing.event_lines import EventLines, running_as
from kbroker.testing.hosts import NODE
from kbroker.testing.memory_node import Client
from kbroker.testing.network import Pace, SimulatedNetwork
from kbroker.testing.store import RemoteStore
from kbroker.testing.virtual_time import VirtualClock

DATA: Final = "/data"
CONTROLLER: Final = 100
CLUSTER_ID: Final = "kbrokerTestCluster0000"
CLIENT: Final = "client"
_POLL_S: Final = 0.01
_NOTED: Final = 20
_CONTROLLER_LISTENER: Final = "CONTROLLER"

T = TypeVar("T")


class MemoryNode:
    """One node of a cluster; it lives from `start` to `stop`, `kill` or its own failure, and may start again.

    Shape  disk is what the node finds at its next start, or uses now; failure is why it ended by itself
    """

    def __init__(self, cluster: MemoryCluster, node_id: int, *, is_controller: bool) -> None:
        self.id = node_id
        self.host = f"{NODE}{node_id}"
        self.port = 9093 if is_controller else 9092
        self.is_controller = is_controller
        self.disk = SimulatedDisk()
        for path, data in cluster._files.items():
            write_atomically(self.disk, path, data)
        self.failure: NodeFailed | None = None
        self.lives = 0
        self.settings: dict[str, object] = {}
        """More settings of this node; they count from its next start."""
        self.wall_jump_ms = 0
        self.wall_drift = 0.0
        self.env: MemoryEnv
        self.node: Node | None = None
        self._cluster = cluster
        self._is_starting = False
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return self.node is not None

    @property
    def is_serving(self) -> bool:
        """Whether it accepts connections."""
        return self.node is not None and self.node.is_serving and not self.disk.dead  # tasks of a killed node end late

    @property
    def broker(self) -> Broker:
        """The domain of a broker that runs and has loaded its logs."""
        assert self.node is not None, f"{self.host} does not run"
        assert self.node.broker is not None, f"{self.host} is still loading"
        return self.node.broker

    @property
    def image(self) -> Image | None:
        """The metadata that this node has."""
        return None if self.node is None else self.node.image

    def replica(self, topic: str, index: int = 0) -> Partition | None:
        """Its replica of a partition, if it has one."""
        if self.node is None or self.node.broker is None:
            return None
        return self.node.broker.replicas.partitions.get((topic, index))

    def jump(self, ms: int) -> None:
        """Set its wall clock forward, or back."""
        self.wall_jump_ms += ms
        if self.is_running:
            self.env.wall_jump_ms = self.wall_jump_ms

    def drift(self, ratio: float) -> None:
        """Let its wall clock run faster than time by this ratio (1e-4: 0.1 ms each second), or slower."""
        self.wall_drift = ratio
        if self.is_running:
            self.env.wall_drift = ratio

    async def start(self, *, waits: bool = True) -> None:
        """Start it; with `waits` until it serves. A node that runs or starts is left as it is."""
        if self.is_running or self._is_starting:
            return
        self._is_starting = True
        await self._cluster._nursery.start(self._run)
        if waits:
            await self._cluster.until(lambda: self.is_serving or not self.is_running)
            if self.failure is not None:
                raise self.failure

    async def stop(self) -> None:
        """Shut it down cleanly, as SIGTERM does, and wait for its end."""
        if self.node is not None:
            self.node.stop()
            await self._ended.wait()

    async def kill(self, *, loss: Loss = Loss.PROCESS_DEATH) -> None:
        """End it at once, as SIGKILL does. Everything that it has written survives, unless `loss` loses its power."""
        if self.node is None:
            return
        has_power = loss is Loss.PROCESS_DEATH
        if not has_power:
            self._cluster.suspects[self.id] = self._cluster.in_sync(self.id)
        survivor = self.disk.crash(loss, seed=self._draws("crash").below(1 << 32))
        self.disk.dead = True  # no `finally` of the dying node can change the disk
        self._cluster.network.kill(self.host, power=not has_power)
        self._scope.cancel()
        await self._ended.wait()
        self.disk = survivor

    def _draws(self, purpose: str) -> Draws:
        return Draws(purpose, self._cluster.seed, self.id, self.lives)

    async def _run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        cluster = self._cluster
        self.lives += 1
        cluster.network.revive(self.host)
        self.env = env = MemoryEnv(
            self.disk, seed=self._draws("environment").below(1 << 62), latency_ms=cluster.latency_ms
        )
        env.network = cluster.network.host(self.host)
        env.wall_jump_ms, env.wall_drift = self.wall_jump_ms, self.wall_drift
        self.disk.slowed = env.charge
        cluster.store.disks[self.id] = self.disk
        self.failure, self._ended, self._scope = None, trio.Event(), trio.CancelScope()
        self.node = Node(env, cluster.settings_of(self), cluster_id=CLUSTER_ID if self.is_controller else None)
        self._is_starting = False
        cluster.trace("start", self.id)
        task_status.started()
        try:
            with self._scope, running_as(self.id):
                await self.node.run(on_ready=lambda _host, _port: None)
        except* Crashed:
            pass
        except* NodeFailed as group:
            self.failure = _first(group)
            cluster.failures.append((self.id, f"{self.host} ended by itself: {self.failure}"))
        except* Exception as bugs:  # noqa: BLE001 - a bug must end this node only, and be reported
            cluster.faults.append(f"{self.host} died: {''.join(traceback.format_exception(bugs))}")
        finally:
            metrics = self.node.metrics
            self.node = None
            cluster.network.kill(self.host)
            cluster.trace("end", self.id, str(self.failure or ""))
            self._ended.set()
        faults = metrics.counter("requests.faults").value
        if faults:
            cluster.faults.append(f"{faults} requests met a fault of {self.host}")


class MemoryClock:
    """The clocks of a cluster."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster

    def jump(self, ms: int, *nodes: MemoryNode | int) -> None:
        """Set the wall clock of these nodes, or of all, forward or back. Time itself passes only while tasks sleep."""
        chosen = {node if isinstance(node, int) else node.id for node in nodes}
        for node in self._cluster.nodes.values():
            if not chosen or node.id in chosen:
                node.jump(ms)

    def timestamp_ms(self) -> int:
        """The correct wall time in milliseconds since 1970: for timestamps of records and the clock of a client."""
        return WALL_START_MS + round(trio.current_time() * 1000)


class MemoryCluster:
    """See the module docstring; made by `memory_cluster`.

    Shape  nodes has the brokers 1 to n and the controller; faults are sentences about bugs that a request or a node
           met, failures the ids of nodes that ended by themselves, with a sentence; suspects maps a node that has lost
           its power to the partitions that had it in their ISR then
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        seed: int,
        latency_ms: int,
        pace: Pace | None,
        settings: Mapping[str, object],
        files: Mapping[str, bytes],
    ) -> None:
        self.seed = seed
        self.latency_ms = latency_ms
        self.network = SimulatedNetwork(seed=seed, pace=pace)
        self.store = RemoteStore()
        self.clock = MemoryClock(self)
        self.nodes: dict[int, MemoryNode] = {}
        self.faults: list[str] = []
        self.failures: list[tuple[int, str]] = []
        self.suspects: dict[int, set[tuple[str, int]]] = {}
        self.events = EventLines()
        self.trace: Callable[..., object] = lambda *_: None
        self.tls: ServerTls | None = None  # that of this cluster's clients
        self.login: PeerLogin | None = None  # theirs too
        self._given = settings
        self._files = files
        self._nursery = nursery
        self.store.charge = lambda node, ms: self.nodes[node].env.charge(ms)
        self._image = Image()

    create_topic, produce = records.create_topic, records.produce
    records, consumer_offset = records.records, records.consumer_offset

    def settings_of(self, node: MemoryNode) -> Settings:
        """The settings of a node."""
        role = "controller" if node.is_controller else "broker"
        listener = _CONTROLLER_LISTENER if node.is_controller else "PLAINTEXT"
        given = {**self._given, **node.settings}
        return Settings.load(
            overrides=[f"{key}={value}" for key, value in given.items()],
            defaults={
                "node.id": str(node.id),
                "process.roles": role,
                "listeners": f"{listener}://{node.host}:{node.port}",
                "controller.listener.names": _CONTROLLER_LISTENER,
                "controller.quorum.voters": f"{CONTROLLER}@{NODE}{CONTROLLER}:9093",
                "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{_CONTROLLER_LISTENER}:PLAINTEXT",
                "log.dirs": DATA,
                "kbroker.metadata.reserve.bytes": "65536",  # the default would take memory on a simulated disk
            },
        )

    @property
    def brokers(self) -> list[MemoryNode]:
        """The brokers, by id."""
        return [node for node in self.nodes.values() if not node.is_controller]

    @property
    def bootstrap_servers(self) -> str:
        """Host and port of the brokers, separated by commas, as clients are configured."""
        return ",".join(f"{node.host}:{node.port}" for node in self.brokers)

    @property
    def controller(self) -> MemoryNode:
        """The controller."""
        return self.nodes[CONTROLLER]

    @property
    def image(self) -> Image:
        """The newest metadata that a running node has; the last ones before if none runs."""
        images = [self._image, *(image for node in self.nodes.values() if (image := node.image) is not None)]
        self._image = max(images, key=lambda image: image.offset)
        return self._image

    def in_sync(self, node_id: int) -> set[tuple[str, int]]:
        """The partitions that have a node in their ISR, by the newest metadata."""
        topics = self.image.topics_by_name.items()
        return {
            (name, index) for name, topic in topics for index, each in topic.partitions.items() if node_id in each.isr
        }

    def partition(self, topic: str, index: int = 0) -> PartitionImage:
        """The newest metadata of a partition."""
        found = self.image.partition(topic, index)
        assert found is not None, f"there is no partition {topic}-{index}"
        return found

    def leader(self, topic: str, index: int = 0) -> MemoryNode:
        """The leader of a partition in the newest metadata. Errors: KeyError if it has none."""
        return self.nodes[self.partition(topic, index).leader]

    def coordinator(self, group: str) -> MemoryNode:
        """The coordinator of a group. Errors: KeyError before the first use of any group, or if there is none."""
        topic = self.image.topics_by_name[GROUP_METADATA_TOPIC]
        return self.leader(GROUP_METADATA_TOPIC, partition_for(group, len(topic.partitions)))

    async def connect(self, node: MemoryNode | int, *, host: str = CLIENT, client_id: str = "test") -> Client:
        """Connect to a node from a client's host. Errors: OSError."""
        to = self.nodes[node] if isinstance(node, int) else node
        stream: Stream = await self.network.connect_from(host, to.host, to.port)
        if self.tls is not None:
            stream = await self.tls.connect(stream, to.host)
        if self.login is not None:
            await log_in(self.nodes[1].env, stream, self.login, host=to.host)
        return Client(stream, client_id=client_id)

    async def ask(self, node: MemoryNode | int, request: object, *, version: int | None = None) -> Any:
        """One request to a node, over a connection of its own."""
        client = await self.connect(node)
        try:
            return await client.ask(request, version=version)
        finally:
            client.close()

    async def until(self, condition: Callable[[], T], *, within_ms: int = 120_000) -> T:
        """Wait until a condition is true, and return what it returned. Errors: AssertionError after within_ms."""
        with trio.move_on_after(within_ms / 1000):
            while not (found := condition()):  # noqa: ASYNC110 - anything may make it true
                await trio.sleep(_POLL_S)
            return found
        raise AssertionError(f"the condition did not hold within {within_ms} ms")

    def problems(self) -> list[str]:
        """What is missing for a healthy cluster: nodes that do not serve, partitions without a leader or a full ISR."""
        found = [f"{node.host} does not serve" for node in self.nodes.values() if not node.is_serving]
        for name, topic in self.image.topics_by_name.items():
            for index, each in topic.partitions.items():
                if each.leader not in self.nodes:
                    found.append(f"{name}-{index} has no leader")
                elif len(each.isr) < len(each.replicas):
                    found.append(f"{name}-{index} has the ISR {list(each.isr)} of {list(each.replicas)}")
        return found

    async def wait_healthy(self, *, within_ms: int = 120_000) -> None:
        """Wait until all nodes serve and all replicas are in sync. Errors: AssertionError with the `problems`."""
        try:
            await self.until(lambda: not self.problems(), within_ms=within_ms)
        except AssertionError:
            problems = "; ".join(self.problems())
            raise AssertionError(f"the cluster is not healthy after {within_ms} ms: {problems}") from None

    def heal(self) -> None:
        """End the faults of the network, of the disks and of the store. Nodes that have ended stay down."""
        self.network.heal()
        self.store.heal()
        for node in self.nodes.values():
            node.disk.heal()

    async def start(self, brokers: int) -> None:
        """Start the controller, then all brokers at once."""
        self._nursery.start_soon(self.network.run)
        self.nodes[CONTROLLER] = MemoryNode(self, CONTROLLER, is_controller=True)
        await self.controller.start()
        for node_id in range(1, brokers + 1):
            self.nodes[node_id] = MemoryNode(self, node_id, is_controller=False)
        async with trio.open_nursery() as nursery:
            for node in self.brokers:
                nursery.start_soon(node.start)


@asynccontextmanager
async def memory_cluster(
    brokers: int = 3,
    *,
    settings: Mapping[str, object] | None = None,
    files: Mapping[str, bytes] | None = None,
    seed: int = 0,
    latency_ms: int = 1,
    pace: Pace | None = None,
    has_tier: bool = True,
    asserts: bool = True,
) -> AsyncIterator[MemoryCluster]:
    """Run a controller and brokers 1 to `brokers` until the block ends.

    Shape   settings are Kafka's keys, of all nodes; files are what each disk has at first, by path; pace is that of
            the network; without has_tier the tier is off
    Units   latency_ms is the longest time that a blocking call waits for a thread
    Errors  AssertionError at the end if a request or a node met a bug; without `asserts` the caller looks at `faults`
    Errors  RuntimeError without virtual time
    """
    if not isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock | VirtualClock):
        raise RuntimeError(
            "memory_cluster needs virtual time: use kbroker.testing.run, or make autojump_clock of pytest-trio "
            "an argument of the test function itself"
        )
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        cluster = MemoryCluster(nursery, seed=seed, latency_ms=latency_ms, pace=pace, settings={}, files=files or {})
        cluster._given = {
            "offsets.topic.num.partitions": 3,
            "offsets.topic.replication.factor": min(brokers, 3),
            **(cluster.store.settings(brokers=brokers) if has_tier else {}),
            **(settings or {}),
        }
        with cluster.events.recording():
            await cluster.start(brokers)
            try:
                yield cluster
                for node in cluster.nodes.values():
                    await node.kill()
            except trio.Cancelled:
                raise  # of an outer scope, or because a node met a bug
            except BaseException as error:  # noqa: BLE001 - raised below: a nursery would put it into a group
                failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        for fault in cluster.faults:
            failure.add_note(fault)
        failure.add_note("\n".join(["the last events of the cluster:", *map(str, cluster.events.lines[-_NOTED:])]))
        raise failure
    assert not (asserts and cluster.faults), "; ".join(cluster.faults)


def _first(group: BaseExceptionGroup[NodeFailed]) -> NodeFailed:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, NodeFailed)
    return error
