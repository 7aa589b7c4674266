"""A tiered partition on several brokers with one store, and what tests demand of it.

Each batch of `value` is a segment: the tier gets it when the next one comes, and then it is no longer local.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from uuid import UUID

from kbroker.controller.port import NEWEST_VERSION
from kbroker.metadata.image import TOPIC_RESOURCE
from kbroker.replication.partition import Partition
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.tier_checker import TierState, complaints_about, complaints_about_objects, epoch_at
from kbroker.tiered.api import FINISHED, RemoteLogSegmentMetadata
from kbroker.tiered.layout import SEGMENT, parse_object_name
from kbroker.tiered.tools import id_of
from tests.broker.several import MemoryCluster, memory_cluster, values
from tests.broker.shared_store import SHARED_TIER, TIER, SharedStore
from tests.handlers.asking import read
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from wire.messages.produce import PartitionProduceResponse
from wire.record_batch import Record, build_batch

TIERED = {"remote.storage.enable": "true", "segment.bytes": 400, "local.retention.bytes": 1, "retention.ms": -1}


def value(number: int) -> bytes:
    return b"%08d" % number + b"x" * 300


@asynccontextmanager
async def tiered_cluster(
    *ids: int, settings: Mapping[str, object] | None = None
) -> AsyncIterator[tuple[MemoryCluster, SimulatedDisk]]:
    """Brokers, by default three, and the disk of their tier."""
    async with memory_cluster(0, settings={**SHARED_TIER, **(settings or {})}) as cluster:
        disk = SharedStore.use(cluster.disks)
        await cluster.start(*(ids or (1, 2, 3)))
        yield cluster, disk


def replica(cluster: MemoryCluster, topic: str = "t") -> Partition:
    """The leader's replica."""
    return cluster.brokers[cluster.leader(topic)].partition(topic)


async def until_led(cluster: MemoryCluster, topic: str = "t") -> None:
    """Wait until a broker leads the partition and knows it."""

    def is_led() -> bool:
        running = cluster.brokers.get(cluster.leader(topic))
        held = None if running is None else running.broker.find_partition((topic, 0))
        return held is not None and held.is_leader

    await cluster.until(is_led)


async def configure_topic(cluster: MemoryCluster, topic: str = "t", **configs: str) -> None:
    """Change settings of a topic."""
    changes = [
        AlterableConfig(name=key.replace("_", "."), config_operation=0, value=text) for key, text in configs.items()
    ]
    resource = AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=topic, configs=changes)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    answer = await cluster.controller.ask(request, IncrementalAlterConfigsResponse, version=NEWEST_VERSION)
    assert not answer.responses[0].error_code, answer


async def send(cluster: MemoryCluster, number: int, *, acks: int = -1) -> PartitionProduceResponse:
    """One batch of an idempotent producer, to the leader."""
    await until_led(cluster)
    request = cluster.produce_request([], acks=acks)
    request.topic_data[0].partition_data[0].records = build_batch(
        [Record(timestamp=1, value=value(number))], producer_id=7, producer_epoch=0, base_sequence=number
    )
    async with cluster.client(cluster.leader()) as client:
        found: PartitionProduceResponse = (await client.ask(request, version=9)).responses[0].partition_responses[0]
    return found


async def fill(cluster: MemoryCluster, count: int, *, start: int = 0) -> None:
    """Produce batches, and wait until the leader has only the last one locally."""
    await produce_all(cluster, count, start=start)
    log = replica(cluster).log
    await cluster.until(lambda: log.local_log_start_offset == start + count - 1)


async def produce_all(cluster: MemoryCluster, count: int, *, start: int = 0) -> None:
    """Produce batches; each is acknowledged."""
    for number in range(start, start + count):
        sent = await send(cluster, number)
        assert (sent.error_code, sent.base_offset) == (0, number)


async def replace_disk(cluster: MemoryCluster, broker_id: int) -> None:
    """Kill a broker and give it an empty disk."""
    await cluster.kill(broker_id)
    del cluster.disks[broker_id]


async def read_all(cluster: MemoryCluster, count: int, *, start: int = 0) -> None:
    """Read every record from the leader, and compare."""
    await cluster.until(lambda: replica(cluster).known_high_watermark >= count)
    async with cluster.client(cluster.leader()) as client:
        for number in range(start, count):
            assert (await read(client, "t", offset=number))[0] == value(number)


# --- what the tier has ------------------------------------------------------------------------------------------------


def knows_the_tier(cluster: MemoryCluster, broker_id: int) -> bool:
    """Whether a broker has read what the tier has of its partition."""
    remote = cluster.brokers[broker_id].partition().remote
    return remote is not None and remote.highest_offset_in_remote_storage is not None


def segments(cluster: MemoryCluster, broker_id: int, topic: str = "t") -> list[RemoteLogSegmentMetadata]:
    """The remote segments that one broker knows, by their offsets."""
    running = cluster.brokers[broker_id]
    manager = running.broker.tier.manager
    assert manager is not None
    return sorted(
        manager.tools.metadata.list_remote_log_segments(id_of(running.partition(topic))),
        key=lambda one: (one.start_offset, one.event_timestamp_ms),
    )


def stored(disk: SimulatedDisk) -> dict[UUID, dict[str, bytes]]:
    """The objects in the store: their bytes, by segment id and kind."""
    found: dict[UUID, dict[str, bytes]] = {}
    for path, data in disk.image(TIER).items():
        name = parse_object_name(path.removeprefix(f"{TIER}/"))
        if name is not None and data is not None:
            found.setdefault(name.segment_id, {})[name.kind] = data
    return found


def complaints(cluster: MemoryCluster, disk: SimulatedDisk) -> list[str]:
    """All violations of K9 on the running brokers. The record at each offset has the `value` of that offset."""
    known, objects = segments(cluster, cluster.leader()), stored(disk)
    found = list(complaints_about_objects(sorted(objects), known))
    epochs = replica(cluster).log.leader_epochs.entries
    for one in known:
        if one.state is not FINISHED or epoch_at(one.segment_leader_epochs, one.end_offset) != epoch_at(
            epochs, one.end_offset
        ):
            continue
        expected = [value(number) for number in range(one.start_offset, one.end_offset + 1)]
        if values(objects.get(one.remote_log_segment_id.id, {}).get(SEGMENT, b"")) != expected:
            found.append(f"the segment {one.start_offset}..{one.end_offset} in the tier differs from what was written")
    placed = cluster.image.partition("t", 0)
    assert placed is not None
    for broker_id in [one for one in placed.replicas if one in cluster.brokers]:
        held = cluster.brokers[broker_id].partition()
        state = TierState.of(
            held.log,
            last_stable_offset=min(held.known_high_watermark, held.log.log_end_offset),
            highest_remote=None if held.remote is None else held.remote.highest_offset_in_remote_storage,
            segments=known,
        )
        found += [f"broker {broker_id}: {one}" for one in complaints_about(state)]
    return found
