"""Which replicas a broker reports as being in its directory: not those whose records are lost."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import trio

from kbroker.broker.directory_assignments import MAX_PARTITIONS, DirectoryAssignments
from kbroker.broker.lifecycle import BrokerLifecycle
from kbroker.metadata.delta import Delta
from kbroker.metadata.publisher import MetadataPublisher
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import MemoryEnv
from tests.controller.cluster import CLUSTER_ID, Cluster, topic
from wire.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

NEW_DIRECTORY = UUID(int=7_777)


class Port:
    """Decides on a cluster's state, as the controller of another process does."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.reported: list[tuple[UUID, int]] = []

    async def ask(self, request: Any, response: type, **_: Any) -> Any:
        assert isinstance(request, AssignReplicasToDirsRequest)
        for directory in request.directories:
            for asked in directory.topics:
                self.reported += [(asked.topic_id, one.partition_index) for one in asked.partitions]
        return self._cluster.ask(request)


def after_loss(cluster: Cluster, ends: dict[tuple[str, int], int]) -> tuple[Port, DirectoryAssignments]:
    """Broker 2 of a cluster has returned with an empty directory. `ends` are the log end offsets of its replicas."""
    cluster.heartbeat(2, fence=True)
    request = cluster.registration(2, incarnation=2)
    request.log_dirs = [NEW_DIRECTORY]
    cluster.now_ms = 10_000
    cluster.ask(request)
    port, env = Port(cluster), MemoryEnv(SimulatedDisk())
    lifecycle = BrokerLifecycle(port, MetadataPublisher(cluster.image), env=env, broker_id=2, cluster_id=CLUSTER_ID)
    lifecycle.epoch = cluster.image.brokers[2].epoch
    return port, DirectoryAssignments(
        env, port, lifecycle, directory_id=NEW_DIRECTORY, end_offset=ends.get, image=cluster.image
    )


async def test_lost_replicas_do_not_delay_the_report_of_others() -> None:
    cluster = Cluster(brokers=2)
    cluster.create(topic("a", assignments={index: [2] for index in range(MAX_PARTITIONS + 1)}))
    ends = {("a", index): 0 for index in range(MAX_PARTITIONS)} | {("a", MAX_PARTITIONS): 1}
    port, assignments = after_loss(cluster, ends)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(assignments.run)
        await trio.sleep(0.5)
        assert port.reported == [(cluster.image.topics_by_name["a"].id, MAX_PARTITIONS)]
        nursery.cancel_scope.cancel()


async def test_an_empty_replica_in_the_isr_is_not_reported() -> None:
    cluster = Cluster(brokers=2)
    cluster.create(topic("a", assignments={0: [2], 1: [2]}), topic("b", assignments={0: [1, 2]}))
    port, assignments = after_loss(cluster, {("a", 0): 0, ("a", 1): 5, ("b", 0): 0})
    topic_id, other = (cluster.image.topics_by_name[name].id for name in "ab")

    def publish(before: Any) -> None:
        assignments.on_image(cluster.image, Delta(before, cluster.image))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(assignments.run)
        await trio.sleep(0.5)
        # a-1 has its records, and broker 2 is not in the ISR of b-0.
        assert port.reported == [(topic_id, 1), (other, 0)]
        cluster.heartbeat(2)
        leaders = [partition.leader for partition in cluster.image.topics_by_name["a"].partitions.values()]
        assert leaders == [-1, 2]

        before = cluster.image
        config = AlterableConfig(name="unclean.leader.election.enable", config_operation=0, value="true")
        resource = AlterConfigsResource(resource_type=2, resource_name="a", configs=[config])
        cluster.ask(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
        publish(before)
        await trio.sleep(2)
        assert (topic_id, 0) in port.reported, "the loss is accepted"
        nursery.cancel_scope.cancel()
