"""Shared by tests of the metadata manager: a running manager over a topic of logs, on a simulated disk."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from kbroker.config.tier_settings import TierSettings
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import MemoryEnv
from kbroker.testing.remote_metadata import DELETED, DELETING, FINISHED, segment_metadata, update_to
from kbroker.tiered.api import RemoteLogSegmentMetadata, TopicIdPartition
from kbroker.tiered.metadata_manager import TopicRemoteLogMetadataManager
from kbroker.tiered.metadata_topic import encode_event, metadata_partition
from kbroker.tiered.ports import MetadataTopic
from tests.tiered.log_metadata_topic import LogMetadataTopic
from wire.record_batch import Record, build_batch

PARTITIONS = 3
WAIT_MS = 1_000
DIRECTORY = "/topic"


def tier_settings(*, partition_count: int = PARTITIONS, wait_ms: int = WAIT_MS) -> TierSettings:
    configs = {
        "remote.log.metadata.topic.num.partitions": str(partition_count),
        "remote.log.metadata.consume.wait.ms": str(wait_ms),
    }
    return TierSettings(remote_log_storage_manager_class_name=None, rlmm_configs=configs)


def topic_on(
    disk: SimulatedDisk, *, partition_count: int = PARTITIONS, clean_shutdown: bool = False
) -> tuple[MemoryEnv, LogMetadataTopic]:
    """The topic as a process finds it on a disk, which may be empty."""
    env = MemoryEnv(disk)
    return env, LogMetadataTopic(env, DIRECTORY, partition_count=partition_count, clean_shutdown=clean_shutdown)


@asynccontextmanager
async def at_work(
    env: MemoryEnv, topic: MetadataTopic, *, settings: TierSettings | None = None, closes: bool = True
) -> AsyncIterator[TopicRemoteLogMetadataManager]:
    """A running manager; without `closes` it is killed at the end, and leaves no snapshot."""
    manager = TopicRemoteLogMetadataManager(env, topic, settings or tier_settings())
    async with trio.open_nursery() as nursery:
        await nursery.start(manager.run)
        yield manager
        if closes:
            await manager.close()
        nursery.cancel_scope.cancel()


def home_of(partition: TopicIdPartition) -> int:
    """The partition of the topic that has the metadata of this one."""
    return metadata_partition(partition, PARTITIONS)


def snapshot_path(partition: TopicIdPartition) -> str:
    return f"{DIRECTORY}/__remote_log_metadata-{home_of(partition)}/remote_log_snapshot"


def log_path(partition: TopicIdPartition) -> str:
    return f"{DIRECTORY}/__remote_log_metadata-{home_of(partition)}/{0:020}.log"


def history(
    partition: TopicIdPartition, count: int, *, deleted: int = 0, first: int = 0
) -> tuple[list[bytes], list[RemoteLogSegmentMetadata]]:
    """The record values of `count` copies in succession, of which the first are deleted again; and the remaining
    segments.
    """
    begun = [segment_metadata(partition, 10 * at, 10 * at + 9) for at in range(first, first + count)]
    events = [encode_event(event) for each in begun for event in (each, update_to(each, FINISHED, custom=b"custom"))]
    events += [encode_event(update_to(each, state)) for each in begun[:deleted] for state in (DELETING, DELETED)]
    return events, begun[deleted:]


def batch_of(values: list[bytes]) -> bytes:
    """A batch as any client may send it."""
    return build_batch([Record(timestamp=1, key=None, value=value) for value in values])


async def append_all(topic: LogMetadataTopic, index: int, values: list[bytes], *, size: int = 500) -> None:
    """Append a history in batches of `size` records."""
    for at in range(0, len(values), size):
        await topic.append_batch(index, batch_of(values[at : at + size]))


def offsets_of(segments: list[RemoteLogSegmentMetadata]) -> list[tuple[int, int]]:
    return sorted((each.start_offset, int(each.state)) for each in segments)
