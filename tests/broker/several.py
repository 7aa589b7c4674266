"""Several brokers and one controller in one trio run, on simulated disks and one simulated network, in virtual time.

Each broker gets the controller's images after a delay of its own, so that brokers disagree for a while.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import trio

from kbroker.broker import Broker
from kbroker.broker.lifecycle import BrokerLifecycle
from kbroker.broker.log_tasks import start_log_tasks
from kbroker.broker.recovery import RecoveryProgress, load_partitions
from kbroker.config.rules import ConfigRules
from kbroker.controller.context import ControllerSettings
from kbroker.controller.embedded import EmbeddedController, open_controller
from kbroker.controller.port import NEWEST_VERSION
from kbroker.controller.upkeep import fence_silent_brokers
from kbroker.handlers import discover
from kbroker.metadata.image import Image
from kbroker.metadata.publisher import MetadataPublisher
from kbroker.replication.replicas import Replicas
from kbroker.runtime.metrics import Metrics
from kbroker.runtime.turns import Turns
from kbroker.server.dispatch import Dispatcher
from kbroker.server.tcp import Server
from kbroker.storage.log_directory import LogDirectory
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import MemoryEnv
from kbroker.testing.memory_node import Client
from tests.broker.running_broker import DATA, Links, Port, RunningBroker, settings_of
from wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from wire.messages.broker_registration import Endpoint
from wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from wire.messages.produce import PartitionProduceData, PartitionProduceResponse, ProduceRequest, TopicProduceData
from wire.record_batch import Record, RecordBatch, build_batch

CLUSTER_ID = "kbrokerTestCluster0000"
HEARTBEAT_MS = 2_000


class MemoryCluster:
    """See the module docstring. `given` are settings of all brokers."""

    def __init__(self, nursery: trio.Nursery, given: Mapping[str, object], delays_ms: Mapping[int, int]) -> None:
        self.brokers: dict[int, RunningBroker] = {}
        self.disks: dict[int, SimulatedDisk] = {}
        self._nursery = nursery
        self._given = given
        self._delays_ms = delays_ms
        self._controller_env = MemoryEnv(SimulatedDisk(), seed=99)
        self.network = self._controller_env.network
        self.controller: EmbeddedController

    async def open(self) -> None:
        """Start the controller."""
        self._controller_env.disk.make_directory(DATA)
        settings = settings_of(100, {})
        self.controller = await open_controller(
            self._controller_env,
            DATA,
            settings=ControllerSettings.of(settings, CLUSTER_ID),
            rules=ConfigRules(settings),
            config=settings.metadata,
        )
        await self._nursery.start(self.controller.run)
        self._nursery.start_soon(fence_silent_brokers, self.controller, self._controller_env)

    @property
    def image(self) -> Image:
        return self.controller.publisher.image

    # Brokers

    async def start(self, *ids: int, rack: str | None = None, settings: Mapping[str, object] | None = None) -> None:
        """Start brokers and wait until they are unfenced. `settings` are more settings of these brokers."""
        for broker_id in ids:
            disk = self.disks.setdefault(broker_id, SimulatedDisk())
            env = MemoryEnv(disk, seed=broker_id, latency_ms=1)
            env.network = Links(self.network)
            running = RunningBroker(broker_id, disk, env, self._delays_ms.get(broker_id, 0))
            await self._nursery.start(self._run, running, rack, {**self._given, **(settings or {})})
            self.brokers[broker_id] = running

    async def _run(
        self,
        running: RunningBroker,
        rack: str | None,
        given: Mapping[str, object],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        try:
            with running.scope:
                await self._serve(running, rack, given, task_status)
        finally:
            self.network.listeners.pop((f"broker-{running.id}", 9092), None)
            running.ended.set()

    async def _serve(
        self, running: RunningBroker, rack: str | None, given: Mapping[str, object], task_status: trio.TaskStatus[None]
    ) -> None:
        env, settings = running.env, settings_of(running.id, given)
        directory = running.directory = LogDirectory(
            DATA, disk=running.disk, node_id=running.id, new_cluster_id=CLUSTER_ID, new_uuid=env.new_uuid
        )
        metadata = running.metadata = MetadataPublisher(self.image)
        send, receive = trio.open_memory_channel[tuple[float, Image]](10_000)
        is_alive = True

        def forward(image: Image, _: object) -> None:
            if is_alive:
                send.send_nowait((trio.current_time() + running.delay_ms / 1000, image))

        self.controller.publisher.add_listener(forward)
        replicas = Replicas(env=env, directory=directory, broker_id=running.id, settings=settings, image=metadata.image)
        await load_partitions(env, replicas, frozenset, RecoveryProgress())
        turns, port = Turns(env.now_ns), Port(running, self.controller)
        broker = running.broker = Broker(
            env=env,
            settings=replicas.settings,
            cluster_id=CLUSTER_ID,
            replicas=replicas,
            metadata=metadata,
            controller=port,
            lifecycle=BrokerLifecycle(port, metadata, env=env, broker_id=running.id, cluster_id=CLUSTER_ID),
            turns=turns,
        )
        metadata.add_listener(broker.on_image)

        async def follow() -> None:
            async for due, image in receive:
                await trio.sleep_until(due)
                while running.is_cut_from_controller:  # noqa: ASYNC110
                    await trio.sleep(0.05)
                await metadata.publish(image)
                running.published.set()
                running.published = trio.Event()

        metrics = Metrics()
        dispatcher = Dispatcher(discover(), broker, metrics=metrics, env=env, turns=turns, limits=settings.limits)
        server = Server(env, dispatcher, metrics=metrics, settings=settings)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow)
                await nursery.start(broker.groups.run)
                await broker.lifecycle.register(
                    incarnation_id=env.new_uuid(),
                    endpoints=[Endpoint(name="PLAINTEXT", host=f"broker-{running.id}", port=9092, security_protocol=0)],
                    log_dirs=[directory.identity.directory_id],
                    rack=rack,
                )
                await nursery.start(broker.fetchers.run)
                nursery.start_soon(broker.isr_changes.run)
                await nursery.start(server.run)
                listener = await env.listen(f"broker-{running.id}", 9092)
                server.add(listener, name="PLAINTEXT")
                await broker.lifecycle.unfence()
                await broker.tier.start(nursery)
                if settings.tier.rsm_configs:  # retention frees what the tier has
                    start_log_tasks(nursery, directory, broker)
                nursery.start_soon(self._keep_alive, running)
                task_status.started()
                await trio.sleep_forever()
        finally:
            is_alive = False
            for connection in list(server.connections):
                connection.stream.close()
            assert not metrics.counter("requests.faults").value, "a request met a fault of the broker"

    async def _keep_alive(self, running: RunningBroker) -> None:
        while True:
            await trio.sleep(HEARTBEAT_MS / 1000)
            if not running.is_cut_from_controller:
                await self.heartbeat(running)

    async def heartbeat(self, running: RunningBroker, *, want_fence: bool = False) -> None:
        """One heartbeat of a broker."""
        await self.controller.ask(
            BrokerHeartbeatRequest(
                broker_id=running.id,
                broker_epoch=running.broker.lifecycle.epoch,
                current_metadata_offset=running.metadata.image.offset,
                want_fence=want_fence,
                want_shut_down=False,
            ),
            BrokerHeartbeatResponse,
            version=NEWEST_VERSION,
        )

    async def kill(self, broker_id: int, *, fences: bool = True) -> None:
        """End a broker as a killed process; what it has written survives. The controller fences it at once."""
        running = self.brokers.pop(broker_id)
        running.scope.cancel()
        await running.ended.wait()
        self.disks[broker_id] = running.disk.crash()
        if fences:
            await self.heartbeat(running, want_fence=True)

    def cut(self, follower: int, leader: int) -> None:
        """Cut the link over which one broker fetches from another."""
        links = self.brokers[follower].env.network
        assert isinstance(links, Links)
        links.cut(f"broker-{leader}")

    def mend(self, follower: int) -> None:
        """Restore all links of a broker."""
        links = self.brokers[follower].env.network
        assert isinstance(links, Links)
        links.cut_hosts.clear()

    # Clients

    async def create(
        self, topic: str = "t", *, replicas: Sequence[Sequence[int]] = ((1, 2, 3),), **configs: object
    ) -> UUID:
        """Create a topic with these replicas, and wait until every broker knows it."""
        answer = await self.controller.ask(
            CreateTopicsRequest(
                topics=[
                    CreatableTopic(
                        name=topic,
                        num_partitions=-1,
                        replication_factor=-1,
                        assignments=[
                            CreatableReplicaAssignment(partition_index=index, broker_ids=list(ids))
                            for index, ids in enumerate(replicas)
                        ],
                        configs=[
                            CreatableTopicConfig(name=name.replace("_", "."), value=str(value))
                            for name, value in configs.items()
                        ],
                    )
                ],
                timeout_ms=1000,
            ),
            CreateTopicsResponse,
            version=NEWEST_VERSION,
        )
        assert not answer.topics[0].error_code, answer.topics[0]
        await self.until(lambda: all(topic in one.metadata.image.topics_by_name for one in self.brokers.values()))
        return self.image.topics_by_name[topic].id

    async def configure(self, key: str, value: str, *, broker: str = "") -> None:
        """Change a dynamic setting of one broker, or of all, and wait until every broker knows it."""
        answer = await self.controller.ask(
            IncrementalAlterConfigsRequest(
                resources=[
                    AlterConfigsResource(
                        resource_type=4,
                        resource_name=broker,
                        configs=[AlterableConfig(name=key, config_operation=0, value=value)],
                    )
                ],
                validate_only=False,
            ),
            IncrementalAlterConfigsResponse,
            version=NEWEST_VERSION,
        )
        assert not answer.responses[0].error_code, answer.responses[0]
        offset = self.image.offset
        await self.until(lambda: all(one.metadata.image.offset >= offset for one in self.brokers.values()))

    @asynccontextmanager
    async def client(self, broker_id: int) -> AsyncIterator[Client]:
        """A connection to one broker."""
        client = Client(await self._controller_env.connect(f"broker-{broker_id}", 9092))
        try:
            yield client
        finally:
            client.close()

    async def produce(
        self, values: Iterable[bytes], *, to: int, acks: int = -1, timeout_ms: int = 60_000, topic: str = "t"
    ) -> PartitionProduceResponse:
        """Produce one batch to a broker."""
        async with self.client(to) as client:
            answer = await client.ask(
                self.produce_request(values, acks=acks, timeout_ms=timeout_ms, topic=topic), version=9
            )
        found: PartitionProduceResponse = answer.responses[0].partition_responses[0]
        return found

    def produce_request(
        self, values: Iterable[bytes], *, acks: int = -1, timeout_ms: int = 60_000, topic: str = "t"
    ) -> ProduceRequest:
        """A Produce of one batch to partition 0."""
        batch = build_batch([Record(timestamp=self._controller_env.timestamp_ms(), value=value) for value in values])
        data = PartitionProduceData(index=0, records=batch)
        return ProduceRequest(
            acks=acks, timeout_ms=timeout_ms, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
        )

    # Observation

    async def until(self, condition: Any, *, within_ms: int = 120_000) -> None:
        """Wait until a condition holds, in virtual time."""
        with trio.move_on_after(within_ms / 1000):
            while not condition():  # noqa: ASYNC110 - anything may make it true
                await trio.sleep(0.005)
            return
        raise AssertionError(f"the condition did not hold within {within_ms} ms")

    def isr(self, topic: str = "t", index: int = 0) -> set[int]:
        """The committed ISR."""
        found = self.image.partition(topic, index)
        assert found is not None
        return set(found.isr)

    def leader(self, topic: str = "t", index: int = 0) -> int:
        """The leader in the controller's image."""
        found = self.image.partition(topic, index)
        assert found is not None
        return found.leader

    def bytes_of(self, broker_id: int, topic: str = "t", index: int = 0) -> bytes:
        """The whole log of a replica."""
        log = self.brokers[broker_id].partition(topic, index).log
        if log.log_end_offset == log.local_log_start_offset:
            return b""
        return b"".join(segment.open().file.pread(segment.size, 0) for segment in log.segments)

    async def agree(self, topic: str = "t", index: int = 0) -> None:
        """Wait until all running replicas have the same bytes and epochs as the leader."""
        found = self.image.partition(topic, index)
        assert found is not None
        running = [one for one in found.replicas if one in self.brokers]

        def equal() -> bool:
            logs = [self.brokers[one].partition(topic, index).log for one in running]
            # Only the leader knows an epoch without records.
            epochs = {tuple(each for each in log.leader_epochs.entries if each[1] < log.log_end_offset) for log in logs}
            ends = {log.log_end_offset for log in logs}
            return len(ends) == len(epochs) == len({self.bytes_of(one, topic, index) for one in running}) == 1

        await self.until(equal)


def values(data: bytes) -> list[bytes]:
    """The values of the records of a log."""
    found, position = [], 0
    while position < len(data):
        batch = RecordBatch(data, position)
        found += [record.value or b"" for record in batch.records()]
        position += batch.size
    return found


@asynccontextmanager
async def memory_cluster(
    count: int = 3, *, settings: Mapping[str, object] | None = None, delays_ms: Mapping[int, int] | None = None
) -> AsyncIterator[MemoryCluster]:
    """Run a controller and brokers 1 to `count`, until the block ends."""
    async with trio.open_nursery() as nursery:
        cluster = MemoryCluster(nursery, settings or {}, delays_ms or {})
        await cluster.open()
        await cluster.start(*range(1, count + 1))
        yield cluster
        nursery.cancel_scope.cancel()
