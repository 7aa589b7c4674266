"""What can be read: topics, the bounds of their partitions, and their segments in the tier.

There are two sources. A broker knows the bounds of the logs, their leader epochs and, from `__remote_log_metadata`, the
segments in the tier. Without a broker, the store is the only source: each segment has a manifest, and the newest
segment of a partition has the leader epochs up to its end, which is then the end of the partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple, Protocol
from uuid import UUID

from kbroker.spark.errors import unknown_topic
from kbroker.spark.options import SourceOptions, Subscription
from kbroker.spark.plan import PartitionState
from kbroker.spark.positions import Partition
from kbroker.spark.stores import open_store
from kbroker.tiered.api import RemoteLogSegmentMetadata, TopicIdPartition


class Bounds(NamedTuple):
    """The bounds of a partition. Units: end_offset is exclusive."""

    log_start_offset: int
    end_offset: int


class Extent(NamedTuple):
    """The subscribed partitions at one moment. Shape: ids by topic; bounds by partition, sorted."""

    ids: dict[str, UUID]
    bounds: dict[Partition, Bounds]


class Inventory(Protocol):
    """The questions of the planner. Errors: KbrokerSourceError."""

    def extent(self, subscription: Subscription) -> Extent:
        """The subscribed partitions that exist. Errors: UnknownTopic."""
        ...

    def offsets_at(self, timestamps_ms: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """For each partition the first offset whose record is at or after the time, None if there is none."""
        ...

    def states(self, partitions: Sequence[Partition], bounds: Mapping[Partition, Bounds]) -> list[PartitionState]:
        """What the planner needs to know of the partitions, in their order."""
        ...


def chosen(subscription: Subscription, existing: Collection[Partition]) -> list[Partition]:
    """The subscribed partitions among the existing ones, sorted. Errors: UnknownTopic."""
    topics = {topic for topic, _ in existing}
    for name in subscription.names or ():
        if name not in topics:
            raise unknown_topic(name)
    for each in subscription.partitions:
        if each not in existing:
            raise unknown_topic(*each)
    return sorted(subscription.partitions or (each for each in existing if subscription.matches(each[0])))


def by_partition(
    segments: Iterable[RemoteLogSegmentMetadata],
) -> dict[TopicIdPartition, list[RemoteLogSegmentMetadata]]:
    """The segments of each partition."""
    found: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = {}
    for each in segments:
        found.setdefault(each.remote_log_segment_id.topic_id_partition, []).append(each)
    return found


def open_inventory(options: SourceOptions, stack: ExitStack) -> Inventory:
    """The broker's inventory, or the store's if no broker is named; `stack` closes what this opens.
    Errors: KbrokerSourceError.
    """
    if options.client is not None:
        from kbroker.spark.broker_inventory import BrokerInventory  # noqa: PLC0415  (only imported if it is needed)
        from kbroker.spark.client import BrokerClient  # noqa: PLC0415

        client = stack.enter_context(BrokerClient(options.client))
        return BrokerInventory(client, has_store=options.store is not None, is_committed_only=options.is_committed_only)
    from kbroker.spark.store_inventory import StoreInventory  # noqa: PLC0415

    assert options.store is not None, "options name a broker or a store"
    return StoreInventory(open_store(options.store), is_committed_only=options.is_committed_only)
