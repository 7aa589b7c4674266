"""The groups that a broker coordinates, and how far they are behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kbroker.broker import Broker
from kbroker.coordinator.group import Group
from kbroker.coordinator.led import State
from kbroker.coordinator.shard import GroupShard


class Committed(NamedTuple):
    """What a group has committed for one partition.

    Units  offset counts records; lag is the records from there to the high watermark, None where the partition is not
           led here. An offset beyond the high watermark (the topic was made anew) is no lag
    """

    topic: str
    partition: int
    offset: int
    lag: int | None


def groups(broker: Broker) -> Iterator[tuple[GroupShard, Group]]:
    """Every group with its shard. Groups may come and go between two of them."""
    for shard in shards(broker):
        for group_id in shard.group_ids():
            group = shard.group(group_id)
            if group is not None:
                yield shard, group


def shards(broker: Broker) -> list[GroupShard]:
    """The shards whose groups are known."""
    return [led.shard for led in broker.groups.led.values() if led.state is State.ACTIVE]


def count(broker: Broker, state: State) -> int:
    """How many partitions of the groups' offsets are in a state."""
    return sum(led.state is state for led in broker.groups.led.values())


def committed(shard: GroupShard, group: Group, broker: Broker) -> Iterator[Committed]:
    """What a group has committed, by topic and partition."""
    for topic, partitions in sorted(shard.offsets_of(group.group_id).items()):
        for index, stored in sorted(partitions.items()):
            partition = broker.replicas.partitions.get((topic, index))
            progress = None if partition is None else partition.progress
            lag = None if progress is None else max(0, progress.high_watermark - stored.offset)
            yield Committed(topic, index, stored.offset, lag)
