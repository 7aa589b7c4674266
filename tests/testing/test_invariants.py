"""Each invariant finds the state that it is about, in a cluster that is otherwise right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import trio

from kbroker.replication.partition import Partition
from kbroker.storage.producer_state import RememberedBatch
from kbroker.testing.cluster import MemoryCluster, memory_cluster
from kbroker.testing.determinism import run
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.invariants import Invariants
from kbroker.testing.plan import LOOK_EACH_MS
from kbroker.testing.recorder import History
from kbroker.tiered.api import RemoteLogSegmentId, TopicIdPartition
from tests.tiered.test_plan import remote

TOPIC, KEY = "t", ("t", 0)
LATER_S = 3 * LOOK_EACH_MS / 1000


def replica(cluster: MemoryCluster, node: int) -> Partition:
    found = cluster.nodes[node].replica(*KEY)
    assert found is not None
    return found


def plant_epoch(cluster: MemoryCluster) -> None:
    replica(cluster, 2).log.leader_epochs.assign(99, 10_000)


def plant_producer(cluster: MemoryCluster) -> None:
    entry = next(iter(replica(cluster, 2).log.producers.producers.values()))
    entry.batches.append(RememberedBatch(7, 10_000, 0, 0))


def plant_fall(cluster: MemoryCluster) -> None:
    progress = replica(cluster, 1).progress
    assert progress is not None
    progress.high_watermark -= 1


def plant_member(cluster: MemoryCluster) -> None:
    progress = replica(cluster, 1).progress
    assert progress is not None
    progress.high_watermark += 1


def plant_fenced_leader(cluster: MemoryCluster) -> None:
    image = cluster.image
    brokers = {**image.brokers, 1: image.brokers[1]._replace(fenced=True)}
    cluster._image = image._replace(offset=image.offset + 1_000_000, brokers=brokers)


def plant_operation(broker: int, operation: str, end: int) -> Callable[[MemoryCluster], None]:
    def plant(cluster: MemoryCluster) -> None:
        placed = TopicIdPartition(cluster.image.topics_by_name[TOPIC].id, *KEY)
        segment = remote(0, end)
        found = replace(segment, remote_log_segment_id=RemoteLogSegmentId(placed, segment.remote_log_segment_id.id))
        for watcher in cluster.store.watchers:
            watcher(broker, operation, found)

    return plant


def nothing(_: MemoryCluster) -> None:
    """Leave the cluster as it is."""


def found_after(plant: Callable[[MemoryCluster], None]) -> set[tuple[str, str]]:
    history = History()

    async def main() -> None:
        async with memory_cluster(3) as cluster:
            await cluster.create_topic(TOPIC, replicas=[[1, 2, 3]])
            await cluster.produce(TOPIC, b"a", b"b")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Invariants(cluster, history).watch, [KEY])
                await trio.sleep(1)
                assert history.complaints == []
                plant(cluster)
                await trio.sleep(LATER_S)
                nursery.cancel_scope.cancel()

    run(main, seed=1)
    return {(one.check, one.kind) for one in history.complaints}


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (nothing, None),
        (plant_epoch, ("K7", "epoch-beyond-end")),
        (plant_producer, ("K4", "producer-beyond-end")),
        (plant_fall, ("K6", "hw-fell")),
        (plant_member, ("K6", "isr-behind")),
        (plant_fenced_leader, ("K8", "fenced-leader")),
        (plant_operation(1, "copy", 1), None),
        (plant_operation(1, "copy", 2), ("K9", "copied-too-early")),
        (plant_operation(2, "copy", 1), ("K9", "copied-by-a-follower")),
        (plant_operation(1, "delete", 1), None),
        (plant_operation(2, "delete", 1), ("K9", "deleted-by-a-follower")),
    ],
)
def test_a_planted_state_is_found(plant: Callable[[MemoryCluster], None], expected: tuple[str, str] | None) -> None:
    assert found_after(plant) == ({expected} if expected else set())


@pytest.mark.parametrize("syncs_all", [False, True])
def test_an_isr_of_nodes_that_lost_their_power_is_excused(syncs_all: bool) -> None:
    """As without KIP-966's ELR in Kafka: the last member of the ISR may lack what the others have."""
    history = History()

    async def main() -> None:
        async with memory_cluster(3, settings={"broker.session.timeout.ms": 3_000}) as cluster:
            await cluster.create_topic(TOPIC, replicas=[[1, 2, 3]])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Invariants(cluster, history, syncs_all=syncs_all).watch, [KEY])
                await cluster.nodes[1].kill(loss=Loss.ONLY_SYNCED)
                await cluster.until(lambda: cluster.partition(TOPIC).leader == 2)
                await trio.sleep(LATER_S)
                assert not history.excused
                await cluster.nodes[3].kill()
                await cluster.until(lambda: cluster.partition(TOPIC).isr == (2,))
                await cluster.nodes[2].kill(loss=Loss.ONLY_SYNCED)
                await trio.sleep(LATER_S)
                nursery.cancel_scope.cancel()

    run(main, seed=1)
    assert history.excused == (set() if syncs_all else {f"{TOPIC}-0"})
