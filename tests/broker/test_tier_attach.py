"""A topic of three replicas that is attached to the segments of another cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from uuid import UUID

import pytest
import trio

from kbroker.testing.disk import SimulatedDisk
from kbroker.tiered.api import TopicIdPartition
from kbroker.tiered.attachable import AttachablePartition, Until, attachable_partitions, events, stored_topics
from kbroker.tiered.local import LocalRemoteStorage
from kbroker.tiered.metadata_topic import encode_event, metadata_partition
from tests.broker.several import MemoryCluster, memory_cluster
from tests.broker.shared_store import SHARED_TIER, TIER, SharedStore
from tests.broker.test_tier_deletion import delete_topic
from tests.broker.tiered_cluster import (
    TIERED,
    configure_topic,
    fill,
    read_all,
    replica,
    segments,
    send,
    tiered_cluster,
)
from wire.errors import ErrorCode
from wire.record_batch import Record, build_batch

METADATA_PARTITIONS = 3


def contents(disk: SimulatedDisk) -> dict[str, bytes | None]:
    return {path: data for path, data in disk.image(TIER).items() if data is not None}


async def source() -> SimulatedDisk:
    """A tier with the segments [0], [1], ... [8] of two leader epochs; 9 was only local."""
    async with tiered_cluster() as (cluster, disk):
        await cluster.create(**TIERED)
        await fill(cluster, 4)
        await cluster.kill(1)
        await cluster.until(lambda: cluster.leader() == 2)
        await fill(cluster, 6, start=4)
        return disk


def found_in(disk: SimulatedDisk) -> AttachablePartition:
    storage = LocalRemoteStorage(disk)
    storage.configure({"dir": TIER})
    (topic,) = stored_topics(storage).values()
    (partition,) = attachable_partitions(storage, [topic], until={None: Until()}, is_partial=False)
    assert [issue for issue in partition.issues if not issue.is_note] == []
    return partition


async def record(cluster: MemoryCluster, partition: AttachablePartition, topic_id: UUID) -> None:
    """Write the segments to the metadata topic."""
    named = TopicIdPartition(topic_id, "t", 0)
    index = metadata_partition(named, METADATA_PARTITIONS)
    topic = "__remote_log_metadata"
    await cluster.until(lambda: cluster.image.partition(topic, index) is not None)
    ids = map(UUID, map("{:032x}".format, count(1 << 100)))
    batch = build_batch([Record(-1, 1, None, encode_event(each)) for each in events(partition, named, ids)])
    request = cluster.produce_request([], topic=topic)
    request.topic_data[0].partition_data[0].index = index
    request.topic_data[0].partition_data[0].records = batch
    async with cluster.client(cluster.leader(topic, index)) as client:
        sent = (await client.ask(request, version=9)).responses[0].partition_responses[0]
    assert not sent.error_code, sent


async def create(cluster: MemoryCluster, partition: AttachablePartition) -> UUID:
    return await cluster.create(
        **TIERED,
        kbroker_attached_end_offsets=f"0:{partition.end_offset}",
        kbroker_attached_leader_epoch=partition.leader_epoch,
    )


@asynccontextmanager
async def other_cluster(disk: SimulatedDisk) -> AsyncIterator[MemoryCluster]:
    """Three brokers whose tier is that of the lost cluster."""
    async with memory_cluster(0, settings=SHARED_TIER) as cluster:
        SharedStore.use(cluster.disks)
        SharedStore.shared = disk
        await cluster.start(1, 2, 3)
        yield cluster


def is_attached(cluster: MemoryCluster, end: int) -> bool:
    logs = [one.partition().log for one in cluster.brokers.values()]
    return cluster.isr() == cluster.brokers.keys() and all(log.log_end_offset == end for log in logs)


def registry(disk: SimulatedDisk) -> bytes:
    """The file of the partitions that may have data in the tier."""
    return b"".join(data or b"" for path, data in disk.image().items() if path.endswith("/remote-partitions"))


async def test_every_replica_starts_behind_the_attached_segments() -> None:
    disk = await source()
    before, partition = contents(disk), found_in(disk)
    assert (partition.start_offset, partition.end_offset) == (0, 9)
    async with other_cluster(disk) as cluster:
        await record(cluster, partition, await create(cluster, partition))
        await cluster.until(lambda: is_attached(cluster, 9))
        old = sorted({entry[0] for one in partition.segments for entry in one.segment_leader_epochs})
        assert len(old) == 2
        assert [epoch for epoch, _ in replica(cluster).log.leader_epochs.entries] == [*old, old[-1] + 1]
        await read_all(cluster, 9)
        assert (await send(cluster, 0)).base_offset == 9  # a producer with the id of an old one, and its first batch
        await cluster.kill(cluster.leader())
        await cluster.until(lambda: cluster.leader() in cluster.brokers)
        await read_all(cluster, 9)
        assert replica(cluster).log.log_end_offset == 10
    assert {path: data for path, data in contents(disk).items() if path in before} == before


async def test_a_leader_that_dies_early_leaves_the_attachment_to_the_next() -> None:
    disk = await source()
    partition = found_in(disk)
    async with other_cluster(disk) as cluster:
        topic_id = await create(cluster, partition)
        refused = await cluster.produce([b"early"], to=cluster.leader())
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await cluster.kill(cluster.leader())
        await cluster.until(lambda: cluster.leader() in cluster.brokers)
        await record(cluster, partition, topic_id)
        await cluster.until(lambda: is_attached(cluster, 9))
        await read_all(cluster, 9)


@pytest.mark.long
async def test_an_attachment_without_its_segments_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """`kbroker tier attach` was killed after it had created the topic."""
    disk = await source()
    partition = found_in(disk)

    def waits() -> list[object]:
        found = (vars(each) for each in caplog.records if "waits for the metadata of its last" in each.getMessage())
        return [each["kbroker_fields"]["end_offset"] for each in found]

    async with other_cluster(disk) as cluster:
        topic_id = await create(cluster, partition)
        await cluster.until(lambda: bool(waits()))
        await trio.sleep(600)
        assert waits() == [9], "once"
        await record(cluster, partition, topic_id)
        await cluster.until(lambda: is_attached(cluster, 9))


async def test_expiry_and_deletion_leave_attached_objects() -> None:
    disk = await source()
    before, partition = contents(disk), found_in(disk)
    async with other_cluster(disk) as cluster:
        await record(cluster, partition, await create(cluster, partition))
        await cluster.until(lambda: is_attached(cluster, 9))
        await configure_topic(cluster, retention_bytes="1000")
        await cluster.until(lambda: replica(cluster).log.log_start_offset > 0)
        await cluster.until(lambda: len(segments(cluster, cluster.leader())) < 9)
        await delete_topic(cluster)
        await cluster.until(lambda: not any(b"t\n" in registry(disk) for disk in cluster.disks.values()))
    assert contents(disk) == before
