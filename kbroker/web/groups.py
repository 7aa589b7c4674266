"""The groups that a broker coordinates, and their lag."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kbroker.broker import Broker
from kbroker.coordinator.common.led import State
from kbroker.coordinator.context import AnyGroup
from kbroker.coordinator.shard import GroupShard


class Committed(NamedTuple):
    """A group's committed offset for one partition.

    Units  offset counts records; lag is the number of records from there to the high watermark, None if this broker
           does not lead the partition, 0 for an offset beyond the high watermark (the topic was recreated)
    """

    topic: str
    partition: int
    offset: int
    lag: int | None


def groups(broker: Broker) -> Iterator[tuple[GroupShard, AnyGroup]]:
    """Every group with its shard. Groups may appear and disappear during the iteration."""
    for shard in shards(broker):
        for group_id in shard.group_ids():
            group = shard.group(group_id)
            if group is not None:
                yield shard, group


def shards(broker: Broker) -> list[GroupShard]:
    """The shards whose groups are loaded."""
    return [led.shard for led in broker.groups.led.values() if led.state is State.ACTIVE]


def count(broker: Broker, state: State) -> int:
    """The number of partitions of `__consumer_offsets` in a state."""
    return sum(led.state is state for led in broker.groups.led.values())


def committed(shard: GroupShard, group: AnyGroup, broker: Broker) -> Iterator[Committed]:
    """A group's committed offsets, ordered by topic and partition."""
    for topic, partitions in sorted(shard.offsets_of(group.group_id).items()):
        for index, stored in sorted(partitions.items()):
            partition = broker.replicas.partitions.get((topic, index))
            progress = None if partition is None else partition.progress
            lag = None if progress is None else max(0, progress.high_watermark - stored.offset)
            yield Committed(topic, index, stored.offset, lag)
